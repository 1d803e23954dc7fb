#include "inspect/workload.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace quire {
namespace {

std::uniform_int_distribution<int> around(int length, double range_ratio) {
  return std::uniform_int_distribution<int>(
      std::max(1, static_cast<int>(std::floor(length * (1 - range_ratio)))),
      static_cast<int>(std::ceil(length * (1 + range_ratio))));
}

}  // namespace

std::vector<RequestSize> random_sizes(const RandomSizes& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto input = around(sizes.input_len, sizes.range_ratio);
  auto output = around(sizes.output_len, sizes.range_ratio);
  std::vector<RequestSize> drawn(sizes.count);
  for (RequestSize& size : drawn) {
    size.prompt_tokens = input(random);
    size.output_tokens = output(random);
  }
  return drawn;
}

std::vector<double> arrival_times(std::size_t count, double requests_per_s, std::uint64_t seed) {
  std::vector<double> times(count, 0);
  if (std::isinf(requests_per_s)) return times;
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> interval(requests_per_s);
  double now = 0;
  for (double& time : times) time = now += interval(random);
  for (double& time : times) time *= static_cast<double>(count) / requests_per_s / now;
  return times;
}

}  // namespace quire
