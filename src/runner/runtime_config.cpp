#include "runner/runtime_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "ops/communicator.h"
#include "runner/memory_plan.h"

namespace quire {
namespace {

constexpr std::size_t kMaxAutoCacheBytes = std::size_t{4} << 30;
// What the driver takes of a GPU after start: kernels as they are first run, and graphs.
constexpr std::size_t kDriverReserve = std::size_t{256} << 20;

DType resolve_dtype(const std::string& name, const ModelConfig& model) {
  constexpr std::array kFloats = {DType::kF32, DType::kBF16, DType::kF16};
  const auto named = std::ranges::find(kFloats, name, [](DType d) { return to_string(d); });
  if (name != "auto" && named == kFloats.end())
    fail("dtype \"{}\" is not known; use auto, float32, bfloat16 or float16", name);
  return name == "auto" ? model.dtype().value_or(DType::kF32) : *named;
}

CacheCode resolve_cache_code(const std::string& name) {
  if (name == "auto") return CacheCode::kNone;
  if (name == "fp8" || name == "fp8_e4m3") return CacheCode::kE4m3;
  if (name == "fp8_e5m2") return CacheCode::kE5m2;
  fail("kv-cache-dtype {} is not known; use auto, fp8, fp8_e4m3 or fp8_e5m2", in_quotes(name));
}

CachePolicy resolve_cache_policy(const EngineConfig& config, int num_layers) {
  CachePolicy policy = {.code = resolve_cache_code(config.kv_cache_dtype)};
  std::istringstream names(config.kv_cache_dtype_skip_layers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "sliding_window") {
      policy.skips_windows = true;
      continue;
    }
    const auto layer = parse_number<int>(name);
    if (!layer || *layer < 0 || *layer >= num_layers)
      fail("kv-cache-dtype-skip-layers names {}; use sliding_window, and numbers of layers from 0 to {}",
           in_quotes(name), num_layers - 1);
    policy.skipped.push_back(*layer);
  }
  if (policy.code == CacheCode::kNone && !config.kv_cache_dtype_skip_layers.empty())
    fail("kv-cache-dtype-skip-layers needs kv-cache-dtype fp8 or fp8_e5m2");
  return policy;
}

int in_range(const char* flag, int value, int low, int high) {
  if (value < low || value > high) fail("{} is {}; it must be from {} to {}", flag, value, low, high);
  return value;
}

// Bytes of KV cache at most: on a device, what its share of the memory leaves once all else is there.
std::size_t cache_bytes(RuntimeConfig runtime, const EngineConfig& config, const ModelConfig& model,
                        Backend& backend, Communicator& comm, WeightSource* formats) {
  const std::size_t memory = config.kv_cache_memory;
  if (memory > backend.total_memory())
    fail("kv-cache-memory is {} bytes; {} has {}", memory, backend.name(), backend.total_memory());
  if (memory > 0) return memory;
  if (backend.device() == DeviceKind::kCpu)  // ranks may be on one host
    return std::min(kMaxAutoCacheBytes, backend.total_memory() / 2) / static_cast<std::size_t>(comm.size());
  if (!(config.gpu_memory_utilization > 0 && config.gpu_memory_utilization <= 1))
    fail("gpu-memory-utilization is {}; it must be above 0 and at most 1", config.gpu_memory_utilization);
  runtime.num_blocks = runtime.cache.layout.num_lanes();
  runtime.num_state_slots = runtime.cache.fixed.empty() ? 0 : 1;
  const MemoryPlan plan = plan_memory(backend, comm, runtime, model, formats);
  const std::size_t fixed = backend.used_memory() - comm.held_bytes() + kDriverReserve + plan.weights +
                            plan.workspace + plan.connections;
  const auto allowed =
      static_cast<std::size_t>(config.gpu_memory_utilization * static_cast<double>(backend.total_memory()));
  if (fixed + plan.kv_cache > allowed) {
    fail(
        "{} MiB are needed before the first block of KV cache ({} MiB weights, {} MiB in use already); "
        "gpu-memory-utilization {} of {} MiB is {} MiB",
        fixed >> 20, plan.weights >> 20, backend.used_memory() >> 20, config.gpu_memory_utilization,
        backend.total_memory() >> 20, allowed >> 20);
  }
  return allowed - fixed;
}

std::size_t affordable_blocks(const RuntimeConfig& runtime, std::size_t bytes) {
  const std::size_t blocks = bytes / runtime.block_bytes();
  const auto lanes = static_cast<std::size_t>(runtime.cache.layout.num_lanes());
  if (blocks < lanes) {
    fail("kv-cache-memory of {} bytes does not hold {} tokens; they take {} bytes", bytes,
         runtime.block_size(), lanes * runtime.block_bytes());
  }
  // Slot numbers (block * block_size + offset) are int32.
  return std::min(blocks, static_cast<std::size_t>(std::numeric_limits<int>::max() / runtime.block_size()));
}

// Of `bytes`, for the sequences that run and, as far as there is room, for a checkpoint of each interval that
// the blocks could hold.
int affordable_slots(const RuntimeConfig& runtime, const EngineConfig& config, std::size_t bytes) {
  const std::size_t slot = runtime.cache.state_bytes();
  if (slot == 0) {
    if (config.state_cache_memory > 0) fail("state-cache-memory: no layer of this model has a fixed state");
    return 0;
  }
  const std::size_t share = config.state_cache_memory > 0 ? config.state_cache_memory : bytes / 2;
  if (share < slot || share >= bytes)
    fail(
        "state-cache-memory is {} bytes; it must be at least {}, the states of a sequence, and less than "
        "kv-cache-memory, {}",
        share, slot, bytes);
  const CacheLayout& layout = runtime.cache.layout;
  const auto interval = static_cast<std::size_t>(layout.state_interval);
  const auto num_seqs = static_cast<std::size_t>(runtime.max_num_seqs);
  const std::size_t interval_bytes = runtime.block_bytes() * static_cast<std::size_t>(layout.num_lanes()) *
                                     interval / static_cast<std::size_t>(layout.block_size);
  const std::size_t checkpoints =
      std::min(bytes / interval_bytes, num_seqs * static_cast<std::size_t>(runtime.max_model_len) / interval);
  return static_cast<int>(std::min({share / slot, 2 * num_seqs + checkpoints, std::size_t{1} << 24}));
}

int swap_slots(const RuntimeConfig& runtime, const EngineConfig& config) {
  const double slot = static_cast<double>(runtime.cache.state_bytes());
  if (slot == 0 || config.preemption_mode == "recompute") return 0;
  const double slots = config.swap_space * (std::int64_t{1} << 30) / 2 / slot;
  return static_cast<int>(std::min(slots, static_cast<double>(runtime.max_num_seqs)));
}

int swap_blocks(const RuntimeConfig& runtime, const EngineConfig& config) {
  const double host_gib = static_cast<double>(host_memory()) / (std::int64_t{1} << 30);
  const std::string& mode = config.preemption_mode;
  if (mode != "auto" && mode != "swap" && mode != "recompute")
    fail("preemption-mode {} is not known; use auto, swap or recompute", in_quotes(mode));
  if (!(config.swap_space >= 0 && config.swap_space <= host_gib))
    fail("swap-space is {}; it must be from 0 to this machine's memory, {:.1f} GiB", config.swap_space,
         host_gib);
  if (mode == "swap" && config.swap_space == 0) fail("preemption-mode swap needs swap-space");
  if (mode == "recompute" || config.swap_space == 0) return 0;
  const std::size_t slots_bytes =
      runtime.cache.state_bytes() * static_cast<std::size_t>(runtime.num_host_state_slots);
  const auto blocks = (config.swap_space * (std::int64_t{1} << 30) - static_cast<double>(slots_bytes)) /
                      static_cast<double>(runtime.block_bytes());
  if (blocks < 1 || (slots_bytes == 0 && runtime.cache.state_bytes() > 0)) {
    fail(
        "swap-space of {} GiB holds no block of the KV cache; one takes {} bytes, and a sequence's states {}",
        config.swap_space, runtime.block_bytes(), 2 * runtime.cache.state_bytes());
  }
  return static_cast<int>(std::min(blocks, double{std::numeric_limits<int>::max() / 4}));
}

}  // namespace

RuntimeConfig resolve_config(const EngineConfig& config, const ModelConfig& model, Backend& backend,
                             Communicator& comm, WeightSource* formats) {
  RuntimeConfig runtime;
  runtime.spec = find_model_family(model.architecture()).describe(model);
  if (runtime.spec.max_model_len < 2)
    fail("config.json: a context of {} tokens; it must have at least 2", runtime.spec.max_model_len);
  runtime.dtype = resolve_dtype(config.dtype, model);
  runtime.quantization = parse_quantization(config.quantization);
  if (runtime.quantization != Quantization::kNone && formats != nullptr)
    fail(
        "quantization is {}, but the model says of itself how its weights are stored (a GGUF file, or "
        "quantization_config); it is for checkpoint folders of plain weights",
        to_string(runtime.quantization));
  runtime.quantize_head = config.quantize_head;
  if (runtime.quantize_head && runtime.quantization == Quantization::kNone)
    fail("quantize-head needs quantization");
  runtime.weight_only = config.weight_only;
  runtime.max_num_seqs = in_range("max-num-seqs", config.max_num_seqs, 1, 1 << 16);
  const bool on_cpu = backend.device() == DeviceKind::kCpu;
  runtime.max_num_batched_tokens =
      config.max_num_batched_tokens == 0
          ? (on_cpu ? 2048 : 8192)
          : in_range("max-num-batched-tokens", config.max_num_batched_tokens, 1, 1 << 20);
  runtime.use_graphs = backend.has_graphs() && !config.enforce_eager;
  const int block_size = in_range("block-size", config.block_size, 8, 256);
  if ((block_size & (block_size - 1)) != 0)
    fail("block-size is {}; it must be a power of two from 8 to 256", block_size);
  // No position has more tokens than the vocabulary; -1: all of it.
  const int most = in_range("max-logprobs", config.max_logprobs, -1, kMaxTopLogprobs);
  runtime.max_logprobs = most < 0 ? runtime.spec.vocab_size : std::min(most, runtime.spec.vocab_size);
  if (!config.disable_custom_all_reduce) runtime.connection_bytes = backend.connection_bytes(comm.size());
  runtime.num_heads = static_cast<int>(shard_size(runtime.spec.num_heads, comm, "attention heads"));
  runtime.max_model_len = config.max_model_len == 0 ? runtime.spec.max_model_len
                                                    : in_range("max-model-len", config.max_model_len, 2,
                                                               runtime.spec.max_model_len);
  runtime.cache_policy = resolve_cache_policy(config, runtime.spec.num_layers);
  runtime.cache = CacheShape(declare_states(backend, comm, runtime, model), block_size, runtime.dtype);
  if (runtime.cache.lanes.empty())
    fail("config.json: none of the {} layers attends; at least one must", runtime.spec.num_layers);
  const std::size_t memory = cache_bytes(runtime, config, model, backend, comm, formats);
  runtime.num_state_slots = affordable_slots(runtime, config, memory);
  const std::size_t blocks = affordable_blocks(
      runtime, memory - runtime.cache.state_bytes() * static_cast<std::size_t>(runtime.num_state_slots));
  // Unless it is asked for, nothing is prepared for sequences that the cache could not hold.
  if (config.max_model_len == 0)
    runtime.max_model_len =
        std::min(runtime.max_model_len, runtime.cache.layout.longest(static_cast<int>(blocks)));
  const auto wanted = static_cast<std::size_t>(runtime.max_num_seqs) *
                      static_cast<std::size_t>(runtime.max_blocks_held(runtime.max_model_len));
  runtime.num_blocks = static_cast<int>(config.kv_cache_memory == 0 ? std::min(blocks, wanted) : blocks);
  runtime.num_host_state_slots = swap_slots(runtime, config);
  runtime.num_host_blocks = swap_blocks(runtime, config);
  return runtime;
}

}  // namespace quire
