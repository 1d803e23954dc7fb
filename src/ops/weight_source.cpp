#include "ops/weight_source.h"

namespace quire {

std::vector<float> WeightSource::take_vector(std::string_view name, std::int64_t n) {
  return read_values<float>(*take(name, {n}));
}

WeightGroup WeightSource::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  return WeightGroup::plain(take(std::string(prefix) + ".weight", {rows, cols}));
}

}  // namespace quire
