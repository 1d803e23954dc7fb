#include "tokenizer/byte_fallback.h"

#include <algorithm>
#include <charconv>

#include "base/format.h"

namespace quire {

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const char* const digits = token.data() + 3;
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return byte;
}

ByteFallback::ByteFallback(const Vocabulary& vocabulary) {
  for (std::size_t byte = 0; byte < tokens_.size(); ++byte)
    tokens_[byte] = vocabulary.find(format_text("<0x{:02X}>", byte));
}

bool ByteFallback::is_complete() const {
  return std::all_of(tokens_.begin(), tokens_.end(), [](const auto& token) { return token.has_value(); });
}

bool ByteFallback::append(std::string_view text, std::vector<TokenId>& out) const {
  const std::size_t before = out.size();
  for (const char c : text) {
    const auto& token = tokens_[static_cast<unsigned char>(c)];
    if (!token) {
      out.resize(before);
      return false;
    }
    out.push_back(*token);
  }
  return true;
}

}  // namespace quire
