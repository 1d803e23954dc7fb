#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// A token and its log-probability: the logarithm of the softmax of the model's logits as they are, before
// anything that sampling does to them.
struct TokenLogprob {
  std::int32_t token_id = -1;
  float logprob = 0;
  int rank = 0;  // 1 and the number of tokens that are more likely; 0: not known
};

// Of one position of a text.
struct PositionLogprobs {
  TokenLogprob token;  // the one that stands there
  // The most likely ones in order, of equal ones the lowest id first; or those of logprob_token_ids, in
  // theirs and without ranks.
  std::vector<TokenLogprob> top;
};

}  // namespace quire
