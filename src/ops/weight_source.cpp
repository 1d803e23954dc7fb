#include "ops/weight_source.h"

#include <algorithm>

namespace quire {

std::vector<float> WeightSource::take_vector(std::string_view name, std::int64_t n) {
  std::vector<float> values(n);
  take(name, {n})->read_rows(0, Tensor(values.data(), DType::kF32, {1, n}));
  return values;
}

WeightGroup WeightSource::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  return WeightGroup::plain(take(std::string(prefix) + ".weight", {rows, cols}));
}

WeightTensorPtr RenamedWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  return inner_.take(spelled(name), shape);
}

WeightGroup RenamedWeights::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  return inner_.take_linear(spelled(prefix), rows, cols);
}

std::string RenamedWeights::spelled(std::string_view name) const {
  std::string file_name;
  while (!name.empty()) {
    const auto rename = std::ranges::find_if(renames_, [&](const auto& candidate) {
      const std::size_t size = candidate.first.size();
      return name.starts_with(candidate.first) && (size == name.size() || name[size] == '.');
    });
    const bool found = rename != renames_.end();
    const std::size_t size = found ? rename->first.size() : std::min(name.find('.'), name.size());
    file_name += found ? std::string_view(rename->second) : name.substr(0, size);
    name.remove_prefix(size);
    if (name.empty()) break;
    file_name += '.';
    name.remove_prefix(1);
  }
  return file_name;
}

}  // namespace quire
