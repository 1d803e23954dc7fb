#include "runner/hidden_sums.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {

HiddenSums::HiddenSums(Device& device, const RuntimeConfig& config)
    : device_(device),
      window_(device.allocate(static_cast<std::size_t>(config.max_output_rows()) * config.spec.hidden_size *
                                  size_of(config.dtype),
                              MemoryKind::kHost)),
      rows_(window_.data(), config.dtype, {config.max_output_rows(), config.spec.hidden_size}),
      sums_(static_cast<std::size_t>(config.max_num_seqs)) {}

void HiddenSums::add(const SequencePlan& span, const Tensor& hidden) {
  Sum& sum = sums_[static_cast<std::size_t>(span.seat)];
  const auto size = static_cast<std::size_t>(hidden.dim(1));
  if (span.first_position == 0) sum = {std::vector<double>(size), 0};
  QUIRE_CHECK(sum.num_positions == span.first_position, "a sum of {} positions goes on at {}",
              sum.num_positions, span.first_position);
  sum.num_positions += span.num_tokens;
  for (std::int64_t row = 0; row < hidden.dim(0); row += rows_.dim(0)) {
    const Tensor rows = rows_.rows(0, std::min(rows_.dim(0), hidden.dim(0) - row));
    device_.copy(rows, hidden.rows(row, rows.dim(0)));
    device_.wait(device_.record());
    dispatch_float(rows.dtype(), [&]<typename T>() {
      const T* values = rows.data_as<const T>();
      for (std::int64_t i = 0; i < rows.dim(0); ++i, values += size)
        for (std::size_t k = 0; k < size; ++k) sum.values[k] += static_cast<double>(to_float(values[k]));
    });
  }
}

std::vector<float> HiddenSums::take_mean(int seat) {
  const Sum sum = std::exchange(sums_[static_cast<std::size_t>(seat)], {});
  std::vector<float> mean;
  mean.reserve(sum.values.size());
  for (const double value : sum.values) mean.push_back(static_cast<float>(value / sum.num_positions));
  return mean;
}

}  // namespace quire
