#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// A token and its log-probability: the logarithm of the softmax of the model's logits as they are, before
// anything that sampling does to them.
struct TokenLogprob {
  std::int32_t token_id = -1;
  float logprob = 0;
  int rank = 0;  // 1 and the number of tokens that are more likely
};

// Of one position of a text.
struct PositionLogprobs {
  TokenLogprob token;             // the one that stands there
  std::vector<TokenLogprob> top;  // the most likely ones in order, of equal ones the lowest id first
};

}  // namespace quire
