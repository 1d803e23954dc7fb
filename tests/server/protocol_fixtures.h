#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/json_fields.h"
#include "tokenizer/tiny_tokenizer.h"

namespace quire::server::test {

// One token a byte; 256 is <s>, which begins a text, and 257 <|end|>, both special.
inline const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    Json config = quire::test::tiny_tokenizer_json();
    config["added_tokens"] = {quire::test::added_token(256, "<s>", {"special"}),
                              quire::test::added_token(257, "<|end|>", {"special"})};
    config["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}})");
    return quire::test::load(config);
  }();
  return tokenizer;
}

inline ServedModel served_model() {
  ServedModel model;
  model.names = {"toy", "alias"};
  static constexpr std::array<TokenId, 1> kEos = {257};
  model.sampling = {
      .vocab_size = 258, .max_logprobs = 20, .eos_token_ids = kEos, .tokenizer = &byte_tokenizer()};
  model.max_model_len = 64;
  return model;
}

inline OrderedJson json(std::string_view text) { return OrderedJson::parse(text); }

// The ApiError that f ends with; one of status 0 if it ends well.
template <typename F>
ApiError error_of(F&& f) {
  try {
    std::forward<F>(f)();
  } catch (const ApiError& e) {
    EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos) << e.what();
    EXPECT_LT(std::string_view(e.what()).size(), 500U) << e.what();
    return e;
  }
  return {0, "no error"};
}

}  // namespace quire::server::test
