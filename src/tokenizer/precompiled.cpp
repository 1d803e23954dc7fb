#include <utf8proc.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "tokenizer/normalizer.h"
#include "tokenizer/text_steps.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kUnitBytes = 4;
constexpr std::size_t kMaxGraphemeBytes = 5;  // of one that is looked up whole

std::string decode_base64(const JsonView& value) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view text = value.as_string();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) fail("{}: is not base64", value.where());
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8) & 0xFF));
  }
  return bytes;
}

// The fields of a unit of the trie.
bool has_leaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }
std::uint32_t value_of(std::uint32_t unit) { return unit & 0x7FFFFFFF; }
std::uint32_t label_of(std::uint32_t unit) { return unit & 0x800000FF; }
std::uint32_t offset_of(std::uint32_t unit) { return unit >> 10 << ((unit >> 9 & 1) * 8); }

// The normalisation rules that SentencePiece compiles into a model: a double-array trie (darts-clone's
// format) from text to its replacement. Immutable, usable from any thread.
class PrecompiledCharsmap {
 public:
  // The base64 text of the rules: the bytes of the trie as a 32-bit number, the trie's 32-bit units, and the
  // replacements, each with a zero behind it; all little-endian.
  explicit PrecompiledCharsmap(const JsonView& base64) {
    static_assert(std::endian::native == std::endian::little);
    const std::string bytes = decode_base64(base64);
    const std::string_view rest = std::string_view(bytes).substr(std::min(bytes.size(), kUnitBytes));
    std::uint32_t trie_bytes = 0;
    bytes.copy(reinterpret_cast<char*>(&trie_bytes), kUnitBytes);
    const std::size_t units = trie_bytes / kUnitBytes;
    if (units == 0 || units > rest.size() / kUnitBytes)
      fail("{}: must hold a trie of the size that it gives", base64.where());
    units_.resize(units);
    rest.copy(reinterpret_cast<char*>(units_.data()), units * kUnitBytes);
    replacements_ = rest.substr(units * kUnitBytes);
    if (!is_valid_utf8(replacements_)) fail("{}: the replacements must be valid UTF-8", base64.where());
  }

  // `text`, which is valid UTF-8, in its normalised form.
  std::string operator()(std::string_view text) const {
    std::string out;
    out.reserve(text.size());
    utf8proc_int32_t state = 0;
    char32_t last = 0;
    std::size_t begin = 0;  // of the grapheme
    for (const auto& [position, end, c] : Characters(text)) {
      const bool ends =
          position > 0 && utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                                           static_cast<utf8proc_int32_t>(c), &state);
      if (ends) {
        append_grapheme(text.substr(begin, position - begin), out);
        begin = position;
      }
      last = c;
    }
    append_grapheme(text.substr(begin), out);
    return out;
  }

 private:
  // That of the shortest rule that `text` begins with counts for all of it, as in the library.
  std::optional<std::string_view> replacement_of(std::string_view text) const {
    std::size_t node = offset_of(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || label_of(units_[node]) != byte) return std::nullopt;
      const std::uint32_t unit = units_[node];
      node ^= offset_of(unit);
      if (!has_leaf(unit)) continue;
      if (node >= units_.size()) return std::nullopt;
      const std::size_t begin = value_of(units_[node]);
      const bool in_character = begin < replacements_.size() && is_continuation(replacements_[begin]);
      if (begin > replacements_.size() || in_character) return std::nullopt;
      const std::string_view rest = std::string_view(replacements_).substr(begin);
      return rest.substr(0, rest.find('\0'));
    }
    return std::nullopt;
  }

  void append_grapheme(std::string_view grapheme, std::string& out) const {
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto replacement = replacement_of(grapheme)) {
        out += *replacement;
        return check_growth(out.size());
      }
    }
    for (const auto& [begin, end, c] : Characters(grapheme)) {
      const std::string_view character = grapheme.substr(begin, end - begin);
      out += replacement_of(character).value_or(character);
      check_growth(out.size());
    }
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace

Normalizer::Step precompiled_charsmap(const JsonView& base64) { return {PrecompiledCharsmap(base64)}; }

}  // namespace quire
