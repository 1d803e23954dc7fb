#include "runner/pooler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"

namespace quire {

void answer_with(std::vector<float> hidden, SequenceResult& result) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (std::ranges::all_of(hidden, is_finite))
    result.hidden = std::move(hidden);
  else
    result.token = SequenceResult::kInvalidLogits;
}

Pooler::Pooler(Device& device, const RuntimeConfig& config)
    : device_(device),
      config_(config),
      window_(make_rows()),
      sums_(static_cast<std::size_t>(config.max_num_seqs)) {}

Pooler::HostRows Pooler::make_rows() const {
  const std::int64_t rows = config_.max_output_rows(), cols = config_.spec.hidden_size;
  const Buffer memory =
      device_.allocate(static_cast<std::size_t>(rows * cols) * size_of(config_.dtype), MemoryKind::kHost);
  return {memory, Tensor(memory.data(), config_.dtype, {rows, cols}), {}};
}

void Pooler::add(const SequencePlan& span, const Tensor& hidden, std::size_t sequence, HostRows& last,
                 StepResult& result) {
  if (span.output == OutputKind::kLastHidden) {
    device_.copy(last.rows.rows(std::ssize(last.sequences), 1), hidden.rows(span.num_tokens - 1, 1));
    last.sequences.push_back(sequence);
    return;
  }
  Sum& sum = sums_[span.seat];
  const auto size = static_cast<std::size_t>(hidden.dim(1));
  if (span.first_position == 0) sum = {std::vector<double>(size), 0};
  QUIRE_CHECK(sum.num_positions == span.first_position, "a sum of {} positions goes on at {}",
              sum.num_positions, span.first_position);
  sum.num_positions += span.num_tokens;
  const std::int64_t most = window_.rows.dim(0);
  for (std::int64_t row = 0; row < hidden.dim(0); row += most) {
    const Tensor rows = window_.rows.rows(0, std::min(most, hidden.dim(0) - row));
    device_.copy(rows, hidden.rows(row, rows.dim(0)));
    device_.wait(device_.record());
    dispatch_float(rows.dtype(), [&]<typename T>() {
      const T* values = rows.data_as<const T>();
      for (std::int64_t i = 0; i < rows.dim(0); ++i, values += size)
        for (std::size_t k = 0; k < size; ++k) sum.values[k] += static_cast<double>(to_float(values[k]));
    });
  }
  if (span.output != OutputKind::kHiddenMean) return;
  const Sum whole = std::exchange(sum, {});
  std::vector<float> mean;
  mean.reserve(whole.values.size());
  for (const double value : whole.values) mean.push_back(static_cast<float>(value / whole.num_positions));
  answer_with(std::move(mean), result.sequences[sequence]);
}

void Pooler::read(const HostRows& last, StepResult& result) const {
  for (std::size_t i = 0; i < last.sequences.size(); ++i) {
    std::vector<float> hidden(config_.spec.hidden_size);
    convert(config_.dtype, last.rows.rows(static_cast<std::int64_t>(i), 1).data(), DType::kF32, hidden.data(),
            hidden.size());
    answer_with(std::move(hidden), result.sequences[last.sequences[i]]);
  }
}

}  // namespace quire
