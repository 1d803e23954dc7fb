#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire::grammar {

// A set of bytes.
class ByteSet {
 public:
  constexpr ByteSet() = default;
  static constexpr ByteSet range(unsigned first, unsigned last) {
    ByteSet set;
    for (unsigned byte = first; byte <= last; ++byte) set.add(byte);
    return set;
  }
  static constexpr ByteSet of(std::string_view bytes) {
    ByteSet set;
    for (const char byte : bytes) set.add(static_cast<unsigned char>(byte));
    return set;
  }
  static constexpr ByteSet all() { return range(0, 255); }

  constexpr void add(unsigned byte) { words_[byte / 64] |= std::uint64_t{1} << byte % 64; }
  constexpr bool has(unsigned byte) const { return (words_[byte / 64] >> byte % 64 & 1) != 0; }
  constexpr bool empty() const { return (words_[0] | words_[1] | words_[2] | words_[3]) == 0; }
  constexpr ByteSet operator|(const ByteSet& other) const {
    ByteSet set;
    for (std::size_t i = 0; i < 4; ++i) set.words_[i] = words_[i] | other.words_[i];
    return set;
  }
  constexpr ByteSet operator&(const ByteSet& other) const {
    ByteSet set;
    for (std::size_t i = 0; i < 4; ++i) set.words_[i] = words_[i] & other.words_[i];
    return set;
  }
  constexpr ByteSet operator~() const {
    ByteSet set;
    for (std::size_t i = 0; i < 4; ++i) set.words_[i] = ~words_[i];
    return set;
  }
  constexpr bool operator==(const ByteSet&) const = default;
  const std::array<std::uint64_t, 4>& words() const { return words_; }

  template <typename F>
  void for_each(F&& f) const {
    for (unsigned i = 0; i < 4; ++i)
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        f(i * 64 + static_cast<unsigned>(std::countr_zero(word)));
  }

 private:
  std::array<std::uint64_t, 4> words_{};
};

}  // namespace quire::grammar
