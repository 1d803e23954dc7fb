#include "inspect/capacity.h"

#include <algorithm>

#include "backends/registry.h"
#include "engine/ranks.h"
#include "parallel/lone_rank.h"

namespace quire {

std::size_t Capacity::kv_bytes_per_token() const {
  return config.block_bytes() * config.cache.lanes.size() / static_cast<std::size_t>(config.block_size());
}

std::vector<Capacity::Group> Capacity::groups() const {
  std::vector<Group> groups;
  for (std::size_t lane = 0; lane < config.cache.lanes.size(); ++lane) {
    const CacheLayout alone = {.block_size = config.block_size(),
                               .windows = {config.cache.layout.windows[lane]}};
    const auto group = static_cast<std::size_t>(config.cache.lanes[lane].group);
    if (group == groups.size()) groups.push_back({.window = alone.windows.front()});
    groups[group].num_layers += config.cache.lanes[lane].num_layers;
    ++groups[group].num_lanes;
    groups[group].bytes_held += alone.blocks_held(config.max_model_len, config.max_num_batched_tokens) *
                                static_cast<std::int64_t>(config.block_bytes());
  }
  return groups;
}

Capacity plan_capacity(const EngineConfig& config, const ModelConfig& model, std::size_t memory,
                       WeightSource* formats) {
  const auto backend = make_backend(device_options(config));
  check_rank_count(config);
  AbsentRanks comm(0, config.tensor_parallel_size);
  Capacity result;
  result.architecture = model.architecture();
  result.device = backend->name();
  result.ranks = config.tensor_parallel_size;
  result.config = resolve_config(config, model, *backend, comm, formats);
  result.plan = plan_memory(*backend, comm, result.config, model, formats);
  const bool shared = backend->device() == DeviceKind::kCpu;  // by the ranks
  const auto ranks = static_cast<std::size_t>(shared ? config.tensor_parallel_size : 1);
  result.memory = memory == 0 ? backend->total_memory() / ranks : memory;

  const RuntimeConfig& runtime = result.config;
  const std::size_t fixed = result.plan.total() - result.plan.kv_cache;
  const std::size_t left = result.memory - std::min(result.memory, fixed);
  const auto blocks =
      static_cast<std::int64_t>((left - std::min(left, result.state_slots_bytes())) / runtime.block_bytes());
  result.kv_cache = static_cast<std::size_t>(blocks) * runtime.block_bytes() + result.state_slots_bytes();
  result.tokens = blocks / runtime.cache.layout.num_lanes() * runtime.block_size();
  const auto add_row = [&](int length) {
    const std::int64_t fit = blocks / runtime.max_blocks_held(length);
    result.rows.push_back(
        {length, runtime.num_state_slots > 0 ? std::min<std::int64_t>(fit, runtime.num_state_slots) : fit});
  };
  for (const int length : {512, 2048, 8192, 32768})
    if (length < runtime.max_model_len) add_row(length);
  add_row(runtime.max_model_len);
  return result;
}

}  // namespace quire
