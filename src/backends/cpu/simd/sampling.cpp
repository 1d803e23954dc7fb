#include <algorithm>
#include <cmath>

#include "backends/cpu/simd/simd_backend.h"
#include "ops/reference/logits_rows.h"

namespace quire {
namespace {

// Ids of a piece of a row are a multiple of this: the draws of one vector of each instruction set.
constexpr std::int64_t kPieceStep = 64;

// The better one, the earlier one of equals; NaN above all.
void take_better(simd::Candidate& best, const simd::Candidate& later) {
  if (!(later.score <= best.score) && !std::isnan(best.score)) best = later;
}

}  // namespace

void SimdBackend::log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) {
  pool_.run(batch.num_rows, [&](int row, int) { log_probs_row(out, logits, batch, row); });
}

// A row is cut into pieces of ids, so that one row alone has all threads.
void SimdBackend::adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                                const LogitsAdjustment& adjustment) {
  constexpr std::int64_t kPiece = 1 << 14;
  const std::int64_t vocab = logits.dim(1);
  const std::int64_t pieces = (vocab + kPiece - 1) / kPiece;
  pool_.run(static_cast<int>(adjustment.num_rows * pieces), [&](int part, int) {
    const std::int64_t begin = part % pieces * kPiece;
    adjust_row(logits, last_tokens, adjustment, part / pieces, begin, std::min(begin + kPiece, vocab));
  });
}

// Rows are cut into pieces where there are fewer of them than threads.
void SimdBackend::sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                         const SamplingBatch& batch) {
  const std::int64_t vocab = logits.dim(1);
  const auto row_at = [&](std::int64_t r) { return logits.data_as<const float>() + r * logits.stride(0); };
  const std::int64_t step =
      simd::round_up((vocab * batch.num_rows + pool_.size() - 1) / pool_.size(), kPieceStep);
  const std::int64_t pieces = std::max<std::int64_t>(1, (vocab + step - 1) / step);
  pieces_.resize(batch.num_rows * pieces);
  pool_.run(static_cast<int>(pieces_.size()), [&](int part, int) {
    const SampledRow row(batch, part / pieces);
    const std::int64_t begin = part % pieces * step;
    const std::int64_t end = std::min(begin + step, vocab);
    const float* values = row_at(part / pieces) + begin;
    Piece& piece = pieces_[part];
    piece.top = kernels_.top(values, end - begin);
    piece.top.id += begin;
    if (row.temperature > 0.0F && !row.filters()) {
      piece.winner =
          kernels_.race({values, begin, end - begin, 1.0F / row.temperature, row.seed, row.position});
    }
  });
  for (std::int64_t r = 0; r < batch.num_rows; ++r) {
    const SampledRow row(batch, r);
    if (!row.filters() || row.temperature <= 0.0F) continue;
    for (std::vector<std::int32_t>& ids : survivors_) ids.reserve(vocab);  // no thread may fail
    break;
  }
  pool_.run(batch.num_rows, [&](int r, int thread) {
    const SampledRow row(batch, r);
    Piece best = pieces_[r * pieces];
    for (std::int64_t i = 1; i < pieces; ++i) {
      const Piece& piece = pieces_[r * pieces + i];
      take_better(best.top, piece.top);
      take_better(best.winner, piece.winner);
    }
    std::int64_t token = best.top.id;
    if (!std::isfinite(best.top.score)) {
      token = kInvalidLogits;
    } else if (row.filters() && row.temperature > 0.0F) {
      token = row.draw({row_at(r), static_cast<std::size_t>(vocab)}, best.top.score, survivors_[thread]);
    } else if (row.temperature > 0.0F) {
      token = best.winner.id;
    }
    tokens.data_as<std::int32_t>()[r] = static_cast<std::int32_t>(token);
    last_tokens.data_as<std::int32_t>()[row.seat] = static_cast<std::int32_t>(token);
  });
}

}  // namespace quire
