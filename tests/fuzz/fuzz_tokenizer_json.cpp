// Bytes as a tokenizer.json; one that loads must encode and decode a fixed text without anything but an
// Error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  try {
    const Tokenizer tokenizer = Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const std::vector<TextPiece> pieces = {
        {.text = "<s>Hello 12,  it's a\u0301b \u6F22\u5B57\n", .trusted = true},
        {.text = "<s> aaaa\xFF </s>", .trusted = false}};
    const std::vector<TokenId> ids = tokenizer.encode(pieces, true);
    for (const TokenId id : ids) QUIRE_CHECK(tokenizer.id_to_token(id).has_value());
    (void)tokenizer.decode(ids, true);
  } catch (const Error&) {
  }
  return 0;
}
