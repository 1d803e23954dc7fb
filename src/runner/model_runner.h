#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "runner/batch_builder.h"
#include "runner/hidden_sums.h"

namespace quire {

// Runs step plans on a backend: owns the model, the KV cache and the sampling, knows no requests. Plans run
// in the order they are submitted; up to kMaxInFlight may be submitted and not yet collected. Thread
// contract: one thread.
class ModelRunner {
 public:
  static constexpr int kMaxInFlight = kMaxStepsInFlight;

  // Loads the weights. Error when the checkpoint does not fit the model.
  ModelRunner(Backend& backend, Communicator& comm, const RuntimeConfig& config, const ModelConfig& model,
              WeightSource& weights);

  // Records steps of one token a sequence for some numbers of sequences, where the configuration wants
  // graphs and the backend has a kernel for each op. Once, before the first plan.
  void capture_graphs();

  // A plan may have copies alone.
  void submit(const StepPlan& plan);
  // The same op by op, timed; waits for the end. Where the backend has graphs.
  OpTimes submit_profiled(const StepPlan& plan);
  StepResult collect();   // the oldest plan's; waits for it
  void drop_in_flight();  // waits for what was submitted; it has no result

  std::span<const AttentionShape> attention_shapes() const { return batch_builder_.attention_shapes(); }

  // Fills blocks of the KV cache with NaN, with the next plan and behind its saves. For tests.
  void poison(std::vector<BlockId> blocks) { to_poison_ = std::move(blocks); }

 private:
  struct Pending {
    struct Sample {
      std::size_t sequence;  // entry of the result
      int seat;
      int num_logprobs;  // SamplingState::kNoLogprobs: none are reported
      bool mask_stop;    // as the plan has it
    };
    StepResult result;
    std::vector<Sample> sampled;           // those that get a token, in the order of the rows
    LogprobRows logprobs;                  // on the host, of those of them that report some
    std::vector<std::size_t> last_hidden;  // entries of the result that get one, in the order of the rows
    Event done = 0;
  };
  // What one plan in flight needs to itself.
  struct Stage {
    StagingArea inputs;
    Buffer tokens;    // i32 [max_num_seqs] on the host
    Buffer logprobs;  // of the sampled tokens, on the host
    Buffer hidden;    // [max_output_rows, hidden_size] on the host: of last positions
  };

  struct Logits {
    Tensor part;  // Model::compute_logits
    Tensor all;   // gathered of that; undefined: not yet
  };

  // A step of one token a sequence, for `rows` sequences or fewer.
  struct DecodeGraph {
    int rows = 0;
    std::unique_ptr<Graph> graph;
    Tensor hidden;  // [rows, hidden_size]: what the logits are computed from
    Logits logits;
  };

  std::vector<KvCacheLayer> cache_layers(const Buffer& buffer, int num_blocks) const;
  void copy_blocks(const StepTensors& step);
  void poison_block(BlockId block);
  void submit(const StepPlan& plan, const DecodeGraph* graph);
  void compute(const StepPlan& plan, const StepTensors& step, const DecodeGraph* graph, Stage& stage,
               Pending& pending);
  bool capture_graph(int rows);
  const DecodeGraph* find_graph(const StepPlan& plan) const;
  Tensor forward(const StepTensors& tensors);
  Tensor rows_to_sample(const StepTensors& step, const Tensor& hidden);
  void sample(const SamplingTensors& sampling, const Tensor& hidden, const Logits& logits, Stage& stage,
              Pending& pending);
  Tensor gathered(const Logits& logits, std::int64_t row, std::int64_t count);
  bool may_share(std::int64_t rows) const;
  void sample_share(const SamplingTensors& sampling, const Tensor& part);
  Tensor all_logits(const Tensor& hidden) { return model_->gather_logits(model_->compute_logits(hidden)); }
  LogprobRows report_logprobs(const LogprobBatch& batch, const Tensor& logits, void* host);
  void read_prompts(const StepPlan& plan, const StepTensors& step, const Tensor& hidden,
                    const DecodeGraph* graph, StepResult& result);
  using LogitsOf = std::function<Tensor(std::int64_t first, std::int64_t count)>;
  void read_logits(std::int64_t num_rows, const LogitsOf& logits_of, SequenceResult& result);
  void read_prompt_logprobs(const Tensor& hidden, const Tensor& targets, int num_top, SequenceResult& result);
  void pool(const StepPlan& plan, const Tensor& hidden, const Stage& stage, Pending& pending);
  Tensor last_hidden_row(const Stage& stage, std::size_t row) const;

  Backend& backend_;
  Communicator& comm_;
  RuntimeConfig config_;
  Workspace workspace_;
  StateDeclarations states_;
  std::unique_ptr<Model> model_;
  Buffer cache_buffer_;
  std::vector<KvCacheLayer> cache_;   // the layers of a block
  std::vector<KvCacheLayer> caches_;  // those of them that are the model's layers', by StateId
  std::vector<int> lane_of_;          // by StateId
  Buffer host_cache_buffer_;
  std::vector<KvCacheLayer> host_cache_;  // swap space; none: no layers
  BatchBuilder batch_builder_;
  HiddenSums hidden_sums_;
  Tensor last_tokens_;               // i32 [max_num_seqs]: each seat's last sample
  Tensor tokens_;                    // i32 [max_num_seqs or more]: this step's samples
  Tensor own_tokens_;                // i32: those that this rank drew, where ranks share them out
  Tensor output_rows_;               // [max_output_rows, hidden_size]: hidden states that are sampled from
  Buffer logprobs_;                  // of one call of log_probs
  std::vector<DecodeGraph> graphs_;  // by rows, the smallest first
  std::vector<Stage> stages_;
  std::size_t next_stage_ = 0;
  std::vector<BlockId> to_poison_;
  std::deque<Pending> pending_;
};

}  // namespace quire
