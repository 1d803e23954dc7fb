// Bytes as token ids and as text, with tokenizers of each kind: what is streamed is whole characters and the
// text that decoding at once gives, text without trust becomes no special token, and tokenizers that keep all
// of a text give it back.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/text_steps.h"
#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using quire::Json;
using quire::test::added_token;

struct Kind {
  quire::Tokenizer tokenizer;
  std::string space;  // the character that stands for a space; empty: spaces stay
  bool keeps_text;
};

quire::Tokenizer load(Json config) {
  config["added_tokens"] = {added_token(400, "<s>", {"special"}), added_token(401, "é ")};
  return quire::test::load(config);
}

Json byte_level() {
  Json config = quire::test::tiny_tokenizer_json({"Ã ©", "â Ĥ", "ð Ł", "a b", "ab a", "Ġ Ġ"});
  config["pre_tokenizer"]["use_regex"] = true;
  return config;
}

// As Gemma has it: nothing is put in front of a text.
Json sentencepiece_without_prefix() {
  Json config = quire::test::tiny_sentencepiece_json({"_ _", "a b", "b _", "_ é"});
  config["pre_tokenizer"]["prepend_scheme"] = "never";
  config["decoder"]["decoders"].erase(3);
  return config;
}

Json unigram() {
  Json config = quire::test::tiny_unigram_json({{"_", -2}, {"a", -3}, {"b", -3}, {"ab", -4}, {"_a", -3.5}});
  config["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}};
  config["decoder"] = config["pre_tokenizer"];
  config["normalizer"] = {{"type", "Sequence"},
                          {"normalizers", Json::array({{{"type", "Nmt"}}, {{"type", "NFKC"}}})}};
  return config;
}

const std::array<Kind, 4>& kinds() {
  static const std::array<Kind, 4> instance = {{
      {load(byte_level()), "", true},
      {load(sentencepiece_without_prefix()), "_", true},
      {load(quire::test::tiny_sentencepiece_json({"_ a", "a b"})), "_", false},
      {load(unigram()), "_", false},
  }};
  return instance;
}

void check_ids(const quire::Tokenizer& tokenizer, const std::vector<quire::TokenId>& ids) {
  for (const bool skip : {false, true}) {
    quire::IncrementalDetokenizer detokenizer(tokenizer, skip);
    std::string streamed;
    for (const quire::TokenId id : ids) {
      const std::string text = detokenizer.push(id);
      QUIRE_CHECK(quire::valid_utf8_prefix(text) == text.size());
      streamed += text;
    }
    streamed += detokenizer.finish();
    QUIRE_CHECK(streamed == tokenizer.decode(ids, skip));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i + 1 < size; i += 2) ids.push_back((data[i] << 8 | data[i + 1]) % 404 - 1);
  const std::vector<TextPiece> pieces = {
      {.text = std::string(reinterpret_cast<const char*>(data), size), .trusted = false}};
  std::string valid = to_valid_utf8(pieces[0].text);
  for (const Kind& kind : kinds()) {
    check_ids(kind.tokenizer, ids);
    const std::vector<TokenId> encoded = kind.tokenizer.encode(pieces, false);
    for (const TokenId id : encoded) QUIRE_CHECK(!kind.tokenizer.is_special(id));
    if (!kind.keeps_text) continue;
    const std::string text = kind.space.empty() ? valid : replace_all(valid, kind.space, " ");
    QUIRE_CHECK(kind.tokenizer.decode(encoded, true) == text);
  }
  return 0;
}
