#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace quire {

// How one request's tokens are chosen and when it ends. Names, meanings and defaults are vLLM's.
struct SamplingParams {
  // Outputs of one prompt, which is computed once; at most 16384, and 1 where greedy. Output i is that of the
  // same request with n 1 and a seed larger by i.
  int n = 1;
  float temperature = 1.0F;           // below 1e-5: greedy
  float top_p = 1.0F;                 // in (0, 1]
  int top_k = 0;                      // 0 or -1: all tokens
  float min_p = 0.0F;                 // in [0, 1], relative to the most likely token
  std::optional<std::uint64_t> seed;  // unset: drawn by the engine
  int max_tokens = 16;                // at least 1
  int min_tokens = 0;                 // before that many, no EOS and no stop token is sampled
  bool ignore_eos = false;
  std::vector<std::string> stop;  // cut from the text; at most 16 of 256 bytes
  std::vector<std::int32_t> stop_token_ids;
  bool skip_special_tokens = true;  // in the text
};

}  // namespace quire
