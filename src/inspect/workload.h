#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tokenizer/token_id.h"

namespace quire {

struct RequestSize {
  int prompt_tokens = 0;
  int output_tokens = 0;
};

// The 256 requests of the standard workload.
const std::vector<RequestSize>& standard_workload();

inline constexpr TokenId kFirstTokenId = 256;  // below it, some vocabularies keep special tokens
// Ids from `first` on, and below vocab_size.
std::vector<TokenId> random_tokens(int count, int vocab_size, std::mt19937_64& random, TokenId first = 0);

// Lengths are drawn evenly from [length * (1 - range_ratio), length * (1 + range_ratio)].
struct RandomSizes {
  int count = 100;
  int input_len = 512;
  int output_len = 128;
  double range_ratio = 0;
};
std::vector<RequestSize> random_sizes(const RandomSizes& sizes, std::uint64_t seed);

// Seconds from the start, at random (a Poisson process), the last one at count / rate, as vLLM's benchmark
// does; all 0 where the rate is infinite.
std::vector<double> arrival_times(std::size_t count, double requests_per_s, std::uint64_t seed);

}  // namespace quire
