#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "backends/registry.h"
#include "checkpoint/checkpoint.h"
#include "engine/golden_models.h"
#include "parallel/lone_rank.h"
#include "runner/model_runner.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

// A scheduler and a runner of the golden Qwen3 model without the engine around them, so that a test chooses
// how many steps are in flight and how many blocks there are.
class SamplingRig {
 public:
  explicit SamplingRig(int num_blocks)
      : config_(resolve_config(golden_config("qwen3"), model_, *backend_, comm_)),
        checkpoint_(directory_),
        runner_(*backend_, comm_, config_, model_, checkpoint_),
        scheduler_(scheduling(config_, num_blocks)) {}

  static SchedulerConfig scheduling(const RuntimeConfig& config, int num_blocks) {
    SchedulerConfig scheduling;
    scheduling.max_num_seqs = config.max_num_seqs;
    scheduling.max_num_batched_tokens = 50;
    scheduling.max_model_len = config.max_model_len;
    scheduling.layout = config.cache.layout;
    scheduling.num_blocks = num_blocks;
    return scheduling;
  }

  // Runs requests together to their ends; what each was told, by its id.
  std::map<SequenceId, std::vector<SequenceUpdate>> run(std::vector<SequenceRequest> requests, int depth) {
    for (SequenceRequest& request : requests)
      scheduler_.add(std::make_shared<SequenceRequest>(std::move(request)));
    std::map<SequenceId, std::vector<SequenceUpdate>> updates;
    while (scheduler_.has_unfinished() || scheduler_.num_in_flight() > 0) {
      if (scheduler_.num_in_flight() < depth) {
        if (const auto plan = scheduler_.schedule()) {
          runner_.submit(*plan);
          continue;
        }
      }
      for (SequenceUpdate& update : scheduler_.apply(runner_.collect()))
        updates[update.id].push_back(std::move(update));
    }
    return updates;
  }

  // The model's logits of every position of a text.
  std::vector<std::vector<float>> logits(const std::vector<TokenId>& tokens) {
    SequenceRequest request;
    request.id = 1'000'000 + ++num_oracles_;
    request.prompt = tokens;
    request.max_tokens = 1;
    request.prompt_output = OutputKind::kAll;
    const SequenceId id = request.id;
    std::vector<std::vector<float>> rows;
    const auto updates = run({request}, 1);
    for (const SequenceUpdate& update : updates.at(id)) {
      const auto vocab = config_.spec.vocab_size;
      for (auto row = update.logits.begin(); row != update.logits.end(); row += vocab)
        rows.emplace_back(row, row + vocab);
    }
    return rows;
  }

  std::uint64_t num_preemptions() const { return scheduler_.stats().num_preemptions; }
  std::uint64_t num_invalid_logits() const { return scheduler_.stats().num_invalid_logits; }
  int vocab_size() const { return config_.spec.vocab_size; }

 private:
  std::filesystem::path directory_ = golden_directory("qwen3");
  std::unique_ptr<Backend> backend_ = make_backend({});
  SingleRank comm_{*backend_};
  ModelConfig model_ = ModelConfig::from_file(directory_ / "config.json");
  RuntimeConfig config_;
  Checkpoint checkpoint_;
  ModelRunner runner_;
  Scheduler scheduler_;
  SequenceId num_oracles_ = 0;
};

inline std::vector<TokenId> tokens_of(const std::vector<SequenceUpdate>& updates) {
  std::vector<TokenId> tokens;
  for (const SequenceUpdate& update : updates)
    if (update.token) tokens.push_back(*update.token);
  return tokens;
}

// What greedy sampling takes after `output`, by the definition of every parameter, in doubles.
inline TokenId plain_choice(const std::vector<float>& logits, const SequenceRequest& request,
                            const std::vector<TokenId>& output) {
  const SamplingState& s = request.sampling;
  const auto contains = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  std::vector<double> x(logits.begin(), logits.end());
  for (const auto& [id, value] : s.biases) x[static_cast<std::size_t>(id)] += value;
  for (TokenId id = 0; id < static_cast<TokenId>(x.size()); ++id) {
    double& value = x[static_cast<std::size_t>(id)];
    const auto count = std::count(output.begin(), output.end(), id);
    if (count > 0 || contains(request.prompt, id))
      value = value > 0 ? value / s.repetition_penalty : value * s.repetition_penalty;
    value -= static_cast<double>(s.frequency_penalty) * static_cast<double>(count);
    value -= count > 0 ? s.presence_penalty : 0;
    if (!s.allowed_ids.empty() && !contains(s.allowed_ids, id)) value = -INFINITY;
    if (static_cast<int>(output.size()) < request.min_tokens && contains(s.stop_ids, id)) value = -INFINITY;
  }
  for (const std::vector<TokenId>& word : s.bad_words) {
    std::vector<TokenId> ending = output;
    ending.push_back(word.back());
    if (ending.size() >= word.size() && std::equal(word.rbegin(), word.rend(), ending.rbegin()))
      x[static_cast<std::size_t>(word.back())] = -INFINITY;
  }
  return static_cast<TokenId>(std::max_element(x.begin(), x.end()) - x.begin());
}

}  // namespace quire::testing
