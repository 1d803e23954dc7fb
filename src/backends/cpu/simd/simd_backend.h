#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cpu/simd/kernels.h"
#include "backends/isa.h"
#include "base/thread_pool.h"

namespace quire {

// The ops that take time, by kernels of one instruction set on several threads. Output elements are summed in
// one order, whatever else is in the batch and however many threads there are.
class SimdBackend : public ReferenceBackend {
 public:
  // isa: not kReference, and available here.
  SimdBackend(CpuIsa isa, int num_threads);

  Buffer allocate(std::size_t bytes, MemoryKind kind) override;
  std::size_t linear_bytes(std::span<const WeightGroup> parts, DType dtype) const override;
  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override;
  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override;
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override;
  void norm(const Tensor& out, const Tensor& x, const NormParams& params) override;
  void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                const NormParams& params) override;
  void reserve(std::span<const AttentionShape> shapes) override;
  std::size_t reserved_bytes(std::int64_t widest, bool has_codes,
                             std::span<const AttentionShape> shapes) const override;
  std::shared_ptr<const AttentionPlan> plan_attention(const AttentionBatch& batch,
                                                      const AttentionShape& shape) override;
  void rotate_and_store(const AttentionInput& input, const KvCacheLayer& cache,
                        const AttentionBatch& batch) override;
  void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache, const AttentionBatch& batch,
                 const AttentionScores& scores) override;
  void causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                   const StateBatch& batch) override;
  void gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                        const StateBatch& batch) override;
  void sigmoid_gate(const Tensor& out, const Tensor& x, const Tensor& gate, bool add) override;
  void gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params) override;
  void activate(const Tensor& out, const Tensor& x, Activation activation) override;
  void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) override;
  void cap(const Tensor& x, float cap) override;
  void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                     const LogitsAdjustment& adjustment) override;
  void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
              const SamplingBatch& batch) override;
  void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) override;

 private:
  // The elements of an element-wise op that are worth waking a thread for, some 5 µs.
  static constexpr std::int64_t kElementsOfPart = 1 << 14;

  // Of a part of a row: its largest logit, and who wins the race there.
  struct Piece {
    simd::Candidate top, winner;
  };

  // Calls function(begin, end, thread) on contiguous parts of [0, n), one a thread, or fewer where they would
  // have less to do than `least`. work: of one of the n.
  template <typename Function>
  void split(std::int64_t n, std::int64_t work, std::int64_t least, const Function& function);
  // Runs a kernel on parts of [0, n), with its thread's scratch where it wants some.
  template <typename Job, typename... Scratch>
  void run(void (*kernel)(const Job&, std::int64_t, std::int64_t, Scratch...),
           const std::type_identity_t<Job>& job, std::int64_t n, std::int64_t work,
           std::int64_t least = kElementsOfPart) {
    split(n, work, least, [&](std::int64_t begin, std::int64_t end, [[maybe_unused]] int thread) {
      kernel(job, begin, end, Scratch{scratch(thread)}...);
    });
  }
  void grow(Buffer& buffer, std::size_t bytes);
  float* scratch(int thread) {
    return static_cast<float*>(scratch_.data()) + scratch_floats_ * static_cast<std::size_t>(thread);
  }

  const simd::Kernels& kernels_;
  ThreadPool pool_;
  std::int64_t widest_ = 1;                           // columns of a matrix
  Buffer activations_;                                // of one pass of linear
  Buffer scratch_;                                    // of every thread
  std::size_t scratch_floats_ = 0;                    // of one thread
  std::vector<std::vector<std::int32_t>> survivors_;  // of a row of logits, of every thread
  std::vector<Piece> pieces_;                         // of every row
};

template <typename Function>
void SimdBackend::split(std::int64_t n, std::int64_t work, std::int64_t least, const Function& function) {
  const std::int64_t most = std::min<std::int64_t>(std::max<std::int64_t>(n, 1), pool_.size());
  const std::int64_t parts = std::clamp<std::int64_t>(n * work / least, 1, most);
  pool_.run(static_cast<int>(parts),
            [&](int part, int thread) { function(n * part / parts, n * (part + 1) / parts, thread); });
}

}  // namespace quire
