#include "layers/embedding.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "ops/ops.h"

namespace quire {
namespace {

std::shared_ptr<const LinearWeights> load_vocab_shard(const LoadContext& context, const std::string& prefix,
                                                      std::int64_t vocab_size, std::int64_t hidden_size) {
  const std::int64_t ranks = context.comm.size();
  const std::int64_t count = (vocab_size + ranks - 1) / ranks;
  WeightGroup weight = context.take_linear(
      prefix, vocab_size, hidden_size, context.quantize_head ? context.quantization : Quantization::kNone);
  if (weight.format.is_ordered)
    fail("tensor {}: its columns stand in an order of their own (desc_act), which is not supported here",
         weight.name());
  if (count * ranks != vocab_size) weight = pad_rows(std::move(weight), count * ranks);
  if (ranks > 1) weight = slice_rows(std::move(weight), context.comm.rank() * count, count);
  return context.backend.make_linear({&weight, 1}, context.dtype);
}

void check_same_values(const WeightTensor& head, const WeightTensor& embedding) {
  constexpr std::int64_t kRows = 256;
  for (std::int64_t row = 0; row < head.rows(); row += kRows) {
    const std::int64_t count = std::min(kRows, head.rows() - row);
    const auto a = read_values<float>(head, row, count), b = read_values<float>(embedding, row, count);
    if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0) {
      fail("tensor {} differs from {}; they are one where tie_word_embeddings is true", head.name(),
           embedding.name());
    }
  }
}

}  // namespace

VocabParallelEmbedding::VocabParallelEmbedding(const LoadContext& context, const std::string& prefix,
                                               std::int64_t vocab_size, std::int64_t hidden_size, float scale)
    : backend_(context.backend),
      comm_(context.comm),
      weights_(load_vocab_shard(context, prefix, vocab_size, hidden_size)),
      scale_(scale) {}

void VocabParallelEmbedding::forward(const Tensor& out, const Tensor& ids) const {
  forward_part(out, ids);
  comm_.all_reduce(out);
}

void VocabParallelEmbedding::forward_part(const Tensor& out, const Tensor& ids) const {
  ops::embedding(backend_, out, *weights_, ids, comm_.rank() * weights_->out_features(), scale_);
}

LmHead::LmHead(const LoadContext& context, std::shared_ptr<const LinearWeights> weights,
               std::int64_t vocab_size, float cap)
    : backend_(context.backend),
      comm_(context.comm),
      weights_(std::move(weights)),
      vocab_size_(vocab_size),
      cap_(cap) {
  const std::int64_t rows = context.max_output_rows;
  local_logits_ = context.workspace.allocate(DType::kF32, {rows, weights_->out_features()});
  logits_ = comm_.size() == 1
                ? local_logits_
                : context.workspace.allocate(DType::kF32, {rows, weights_->out_features() * comm_.size()});
}

LmHead::LmHead(const LoadContext& context, const std::string& prefix, std::int64_t vocab_size,
               std::int64_t hidden_size, float cap)
    : LmHead(context, load_vocab_shard(context, prefix, vocab_size, hidden_size), vocab_size, cap) {}

LmHead::LmHead(const LoadContext& context, const std::string& prefix, const VocabParallelEmbedding& embedding,
               const std::string& embedding_prefix, std::int64_t vocab_size, float cap)
    : LmHead(context, embedding.weights(), vocab_size, cap) {
  if (!context.weights.has_values() || !context.weights.contains(prefix + ".weight")) return;
  const std::int64_t hidden_size = weights_->in_features();
  check_same_values(*dequantized(context.weights.take_linear(prefix, vocab_size, hidden_size)),
                    *dequantized(context.weights.take_linear(embedding_prefix, vocab_size, hidden_size)));
}

Tensor LmHead::forward(const Tensor& x) const {
  const Tensor local = local_logits_.rows(0, x.dim(0));
  ops::linear(backend_, local, x, *weights_);
  if (cap_ > 0) ops::cap(backend_, local, cap_);
  return local;
}

Tensor LmHead::gather(const Tensor& local) const {
  const Tensor all = logits_.rows(0, local.dim(0));
  comm_.all_gather(all, local);
  return all.columns(0, vocab_size_);
}

Tensor LmHead::gather_share(const Tensor& local) const {
  return comm_.gather_share(logits_.rows(0, local.dim(0)), local).columns(0, vocab_size_);
}

}  // namespace quire
