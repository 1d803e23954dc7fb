// Values are drawn once for each scale; a tensor reads them round and round, from a place of its own. That
// makes a model as fast as memory can be copied.
#include "inspect/random_weights.h"

#include <algorithm>
#include <cmath>

#include "ops/philox.h"

namespace quire {
namespace {

// Prime, so that no two rows of a matrix begin at the same place.
constexpr std::int64_t kNumValues = 1'000'003;

std::vector<BFloat16> draw(float mean, float half_width) {
  std::vector<BFloat16> values(kNumValues);
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const auto bits = philox4x32(0, {static_cast<std::uint32_t>(i), 0, 0, 0});
    for (std::size_t j = 0; j < 4 && i + j < values.size(); ++j) {
      const float uniform = static_cast<float>(bits[j]) * 0x1p-31F - 1.0F;
      values[i + j] = from_float<BFloat16>(mean + half_width * uniform);
    }
  }
  return values;
}

// FNV-1a, so that the values are the same in every run.
std::int64_t place_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return static_cast<std::int64_t>(hash % kNumValues);
}

}  // namespace

WeightTensorPtr RandomWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const std::int64_t cols = shape.size() < 2 ? 0 : shape.back();
  Values& values = values_[cols];
  if (!values) {
    const float half_width = cols == 0 ? 0.1F : std::sqrt(3.0F / static_cast<float>(cols));
    values = std::make_shared<const std::vector<BFloat16>>(draw(cols == 0 ? 1.0F : 0.0F, half_width));
  }
  const auto read = [values, first = place_of(name)](std::int64_t row, const Tensor& dst) {
    auto* out = dst.data_as<std::byte>();
    std::int64_t place = (first + row * dst.dim(1)) % kNumValues;
    for (std::int64_t left = dst.numel(); left > 0;) {
      const std::int64_t count = std::min(left, kNumValues - place);
      convert(DType::kBF16, values->data() + place, dst.dtype(), out, static_cast<std::size_t>(count));
      out += static_cast<std::size_t>(count) * size_of(dst.dtype());
      left -= count;
      place = 0;
    }
  };
  return make_weight_tensor(std::string(name), DType::kBF16, shape, read);
}

}  // namespace quire
