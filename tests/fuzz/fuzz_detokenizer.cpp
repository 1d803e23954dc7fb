// Bytes as token ids and as text: streaming equals decoding at once, and decode(encode(text)) is the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/incremental_detokenizer.h"
#include "tokenizer/tiny_tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

const quire::Tokenizer& tokenizer() {
  static const quire::Tokenizer instance = [] {
    quire::Json config = quire::test::tiny_tokenizer_json({"Ã ©", "â Ĥ", "ð Ł", "a b", "ab a", "Ġ Ġ"});
    config["added_tokens"] = {quire::test::added_token(300, "<s>", {"special"}),
                              quire::test::added_token(301, "é ")};
    config["pre_tokenizer"]["use_regex"] = true;
    return quire::test::load(config);
  }();
  return instance;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i + 1 < size; i += 2) ids.push_back((data[i] << 8 | data[i + 1]) % 310 - 1);
  for (const bool skip : {false, true}) {
    IncrementalDetokenizer detokenizer(tokenizer(), skip);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string text = detokenizer.push(id);
      QUIRE_CHECK(valid_utf8_prefix(text) == text.size());
      streamed += text;
    }
    streamed += detokenizer.finish();
    QUIRE_CHECK(streamed == tokenizer().decode(ids, skip));
  }

  const std::vector<TextPiece> pieces = {
      {.text = std::string(reinterpret_cast<const char*>(data), size), .trusted = false}};
  const std::vector<TokenId> encoded = tokenizer().encode(pieces, false);
  for (const TokenId id : encoded) QUIRE_CHECK(!tokenizer().is_special(id));
  QUIRE_CHECK(tokenizer().decode(encoded, true) == to_valid_utf8(pieces[0].text));
  return 0;
}
