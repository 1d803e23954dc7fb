#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/json.h"
#include "quire/request_output.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

// How log-probabilities name tokens.
struct TokenNames {
  const Tokenizer* tokenizer = nullptr;  // null: there is none, and ids stand for tokens
  bool as_ids = false;                   // "token_id:7"

  // The token's text; "bytes:\xe2\x80" of one that is a part of a character.
  std::string operator()(std::int32_t id) const;
};

// What stands in answers: JSON has no infinity, so at least -9999, as vLLM has it.
double logprob_json(float logprob);

// The four parallel lists of /v1/completions. A position that was reported once is not again. For one thread.
class CompletionLogprobs {
 public:
  // skip_special_tokens: as in the text, where offsets point to.
  CompletionLogprobs(TokenNames names, bool skip_special_tokens)
      : names_(names), skip_special_tokens_(skip_special_tokens) {}

  void add_first_of_prompt(std::int32_t id);  // which has none
  void add(std::span<const PositionLogprobs> positions);
  // What was added since the last time.
  OrderedJson take();

 private:
  void add_token(std::int32_t id);

  TokenNames names_;
  bool skip_special_tokens_;
  std::int64_t offset_ = 0;  // in code points
  OrderedJson tokens_ = OrderedJson::array();
  OrderedJson logprobs_ = OrderedJson::array();
  OrderedJson top_ = OrderedJson::array();
  OrderedJson offsets_ = OrderedJson::array();
};

// {"content": [{token, logprob, bytes, top_logprobs}]} of /v1/chat/completions.
OrderedJson chat_logprobs(std::span<const PositionLogprobs> positions, const TokenNames& names);

// vLLM's prompt_logprobs: null of the first token, then {id: {logprob, rank, decoded_token}} of each.
OrderedJson prompt_logprobs_json(std::span<const PositionLogprobs> positions, const TokenNames& names);

}  // namespace quire::server
