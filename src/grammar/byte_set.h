#pragma once

#include <array>
#include <bit>
#include <bitset>
#include <cstdint>
#include <string_view>

namespace quire::grammar {

// A set of bytes.
class ByteSet {
 public:
  ByteSet() = default;
  static ByteSet range(unsigned first, unsigned last) {
    ByteSet set;
    for (unsigned byte = first; byte <= last; ++byte) set.add(byte);
    return set;
  }
  static ByteSet of(std::string_view bytes) {
    ByteSet set;
    for (const char byte : bytes) set.add(static_cast<unsigned char>(byte));
    return set;
  }
  static ByteSet all() { return ~ByteSet(); }

  void add(unsigned byte) { bits_.set(byte); }
  bool has(unsigned byte) const { return bits_[byte]; }
  bool empty() const { return bits_.none(); }
  ByteSet operator|(const ByteSet& other) const { return ByteSet(bits_ | other.bits_); }
  ByteSet operator&(const ByteSet& other) const { return ByteSet(bits_ & other.bits_); }
  ByteSet operator~() const { return ByteSet(~bits_); }
  bool operator==(const ByteSet&) const = default;
  std::array<std::uint64_t, 4> words() const { return std::bit_cast<std::array<std::uint64_t, 4>>(bits_); }

  template <typename F>
  void for_each(F&& f) const {
    for (unsigned i = 0; i < 4; ++i)
      for (std::uint64_t word = words()[i]; word != 0; word &= word - 1)
        f(i * 64 + static_cast<unsigned>(std::countr_zero(word)));
  }

 private:
  explicit ByteSet(const std::bitset<256>& bits) : bits_(bits) {}

  std::bitset<256> bits_;
};

}  // namespace quire::grammar
