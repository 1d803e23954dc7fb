#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "inspect/bench.h"
#include "simulate/step_costs.h"

namespace quire {
namespace {

using Round = std::vector<RequestSize>;  // requests that come at once

std::int64_t num_tokens(const Round& round) {
  std::int64_t sum = 0;
  for (const RequestSize& size : round) sum += size.prompt_tokens + size.output_tokens;
  return sum;
}

// Those that the engine can hold, the shortest first: each length alone, short prompts and long ones in each
// number, and mixtures, whose prompts are computed beside others' decoding.
std::vector<Round> make_rounds(const RuntimeConfig& config) {
  constexpr int kOutput = 8;
  std::vector<Round> rounds;
  for (int prompt = 1; prompt < config.max_model_len; prompt = prompt * 3 / 2 + 1)
    rounds.push_back({{prompt, kOutput}});
  for (const int prompt : {8, 64, 256, 1024, 4096})
    for (int batch = 2; batch <= config.max_num_seqs; batch = batch * 3 / 2 + 1)
      rounds.emplace_back(static_cast<std::size_t>(batch), RequestSize{prompt, kOutput});
  for (int batch = 4; batch <= 2 * config.max_num_seqs; batch *= 2)
    rounds.push_back(random_sizes({batch, 256, 2 * kOutput, 1}, 0));
  std::erase_if(rounds, [&](const Round& round) {
    const auto is_too_long = [&](const RequestSize& size) {
      return size.prompt_tokens + size.output_tokens > config.max_model_len;
    };
    return std::ranges::any_of(round, is_too_long) || num_tokens(round) > config.cached_tokens();
  });
  std::ranges::stable_sort(rounds, {}, num_tokens);
  return rounds;
}

// Twice at least; those that take long only where there is time.
void run_rounds(Engine& engine, const CostsOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const auto total = static_cast<std::size_t>(std::ceil(options.seconds));
  std::vector<Round> rounds = make_rounds(engine.config());
  std::mt19937_64 random(0);
  for (int pass = 0; pass < 2 || passed() < options.seconds; ++pass) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      if (pass > 1 && passed() > options.seconds) return;
      answer_requests(engine, rounds[i], random);
      if (options.on_progress)
        options.on_progress(std::clamp(static_cast<std::size_t>(passed()), std::size_t{1}, total), total);
      if (pass == 0 && passed() > options.seconds / 2) rounds.resize(i + 1);
    }
  }
}

}  // namespace

MachineCosts measure_costs(const CostsOptions& options, ModelFiles model) {
  constexpr double kSomeSwapSpace = 0.5;  // GiB, so that the costs of preemption are measured
  EngineConfig config = options.engine;
  if (config.swap_space == 0) config.swap_space = kSomeSwapSpace;
  double block_bytes = 0;
  {
    Engine engine(config, std::move(model));
    block_bytes = static_cast<double>(engine.config().block_bytes());
    run_rounds(engine, options);
  }
  MachineCosts machine = fit_machine(Recording(std::filesystem::path(config.record)));
  machine.block_bytes = block_bytes;
  if (options.engine.swap_space == 0)
    machine.scheduler.num_host_blocks = machine.scheduler.num_host_state_slots = 0;
  return machine;
}

}  // namespace quire
