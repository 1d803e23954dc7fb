#include "grammar/utf8.h"

#include <algorithm>
#include <array>
#include <bit>

namespace quire::grammar {
namespace {

constexpr std::array<char32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, kLastCharacter};

// The characters [first, last] of `length` bytes, of which the last `tail` are left, by their lower 6 * tail
// bits (and more for a first byte).
ExprId utf8_range(Expressions& expressions, char32_t first, char32_t last, unsigned tail, unsigned lead) {
  const unsigned shift = 6 * tail;
  const char32_t low = (char32_t{1} << shift) - 1;
  const auto byte = [&](char32_t character) { return static_cast<unsigned>(character >> shift) | lead; };
  if (tail == 0) return expressions.bytes(byte_range(byte(first), byte(last)));
  std::vector<ExprId> parts;
  const auto below = [&](char32_t from, char32_t to) {  // of equal leading byte
    return expressions.concat(expressions.bytes(byte_range(byte(from), byte(from))),
                              utf8_range(expressions, from & low, to & low, tail - 1, 0x80));
  };
  if (first >> shift == last >> shift) return below(first, last);
  if ((first & low) != 0) {
    parts.push_back(below(first, first | low));
    first = (first | low) + 1;
  }
  if ((last & low) != low) {
    parts.push_back(below(last & ~low, last));
    last = (last & ~low) - 1;
  }
  if (first < last)
    parts.push_back(expressions.concat(expressions.bytes(byte_range(byte(first), byte(last))),
                                       utf8_range(expressions, 0, low, tail - 1, 0x80)));
  return expressions.any_of(std::move(parts));
}

}  // namespace

std::optional<std::u32string> decode_utf8(std::string_view text) {
  std::u32string result;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const auto ones = static_cast<unsigned>(std::countl_one(lead)), tail = ones == 0 ? 0 : ones - 1;
    if (ones == 1 || ones > 4 || i + tail >= text.size()) return std::nullopt;
    char32_t character = lead & (0x7Fu >> ones);
    for (const std::size_t last = i + tail; i < last;) {
      const auto next = static_cast<unsigned char>(text[++i]);
      if ((next & 0xC0) != 0x80) return std::nullopt;
      character = character << 6 | (next & 0x3Fu);
    }
    ++i;
    if (character > kLastCharacter || (tail > 0 && character <= kLastOfLength[tail - 1]) ||
        (character >= 0xD800 && character < 0xE000))
      return std::nullopt;
    result.push_back(character);
  }
  return result;
}

CharacterSet::CharacterSet(Ranges ranges) {
  std::ranges::sort(ranges);
  for (const auto& [first, last] : ranges) {
    if (ranges_.empty() || first > ranges_.back().second + 1)
      ranges_.emplace_back(first, last);
    else
      ranges_.back().second = std::max(ranges_.back().second, last);
  }
}

CharacterSet CharacterSet::complement() const {
  CharacterSet result;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) result.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCharacter) result.ranges_.emplace_back(next, kLastCharacter);
  return result;
}

CharacterSet CharacterSet::without(const CharacterSet& other) const {
  Ranges outside = complement().ranges_;
  outside.insert(outside.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterSet(std::move(outside)).complement();
}

std::optional<char32_t> CharacterSet::only() const {
  const bool is_one = ranges_.size() == 1 && ranges_.front().first == ranges_.front().second;
  return is_one ? std::optional(ranges_.front().first) : std::nullopt;
}

bool CharacterSet::has(char32_t character) const {
  return std::ranges::any_of(
      ranges_, [&](const auto& range) { return range.first <= character && character <= range.second; });
}

ExprId utf8_character(Expressions& expressions, const CharacterSet& set) {
  expressions.step(1 + set.ranges().size());
  std::vector<ExprId> parts;
  const CharacterSet valid = set.without({{0xD800, 0xDFFF}});
  constexpr std::array<unsigned, 4> kLead = {0, 0xC0, 0xE0, 0xF0};
  for (auto [first, last] : valid.ranges()) {
    for (unsigned tail = 0; tail < 4 && first <= last; ++tail) {
      if (first > kLastOfLength[tail]) continue;
      const char32_t end = std::min(last, kLastOfLength[tail]);
      parts.push_back(utf8_range(expressions, first, end, tail, kLead[tail]));
      first = end + 1;
    }
  }
  return expressions.any_of(std::move(parts));
}

}  // namespace quire::grammar
