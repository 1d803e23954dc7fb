#pragma once

#include <memory>
#include <string>

#include "layers/load_context.h"

namespace quire {

// The token embedding; each rank holds an equal range of the vocabulary, padded with zeros where it does not
// divide.
class VocabParallelEmbedding {
 public:
  // scale: what its rows are multiplied with.
  VocabParallelEmbedding(const LoadContext& context, const std::string& prefix, std::int64_t vocab_size,
                         std::int64_t hidden_size, float scale = 1);

  void forward(const Tensor& out,
               const Tensor& ids) const;  // out f32 [tokens, hidden_size], ids i32 [tokens]
  // This rank's part of it: of the sum over the ranks.
  void forward_part(const Tensor& out, const Tensor& ids) const;

  const std::shared_ptr<const LinearWeights>& weights() const { return weights_; }

 private:
  Backend& backend_;
  Communicator& comm_;
  std::shared_ptr<const LinearWeights> weights_;
  float scale_;
};

// The output projection; ranks hold ranges of the vocabulary as in the embedding.
class LmHead {
 public:
  // cap: over 0, logits are cap * tanh(logit / cap).
  // A matrix of its own: the checkpoint's PREFIX.
  LmHead(const LoadContext& context, const std::string& prefix, std::int64_t vocab_size,
         std::int64_t hidden_size, float cap = 0);
  // The embedding's matrix, `embedding_prefix` in the checkpoint. PREFIX.weight may stand beside it, but must
  // hold the same values.
  LmHead(const LoadContext& context, const std::string& prefix, const VocabParallelEmbedding& embedding,
         const std::string& embedding_prefix, std::int64_t vocab_size, float cap = 0);

  // x [m, hidden_size], m <= max_output_rows; result f32 [m, this rank's range].
  Tensor forward(const Tensor& x) const;
  // Of a result of forward: all ranges, f32 [m, vocab_size]; the same of the rows of Communicator::share_of.
  Tensor gather(const Tensor& local) const;
  Tensor gather_share(const Tensor& local) const;

 private:
  LmHead(const LoadContext& context, std::shared_ptr<const LinearWeights> weights, std::int64_t vocab_size,
         float cap);

  Backend& backend_;
  Communicator& comm_;
  std::shared_ptr<const LinearWeights> weights_;
  std::int64_t vocab_size_;
  float cap_;
  Tensor local_logits_;  // [max_output_rows, this rank's range]
  Tensor logits_;        // [max_output_rows, all ranges]; the same tensor with one rank
};

}  // namespace quire
