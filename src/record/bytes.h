#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quire {

// Numbers as bytes: unsigned ones seven bits a byte, the low ones first, where the highest bit says that more
// follow (LEB128); signed ones with the sign in the lowest bit. A ByteReader has the same functions, so that
// one walk over a value's fields writes and reads them.
struct ByteWriter {
  static constexpr bool kReads = false;
  std::vector<std::byte> bytes;  // so far

  void byte(std::uint8_t value) { bytes.push_back(static_cast<std::byte>(value)); }
  // Also of an enumeration. most: of what is read.
  template <typename T>
  void number(T value, std::uint64_t /*most*/ = 0) {
    auto rest = static_cast<std::uint64_t>(value);
    for (; rest >= 0x80; rest >>= 7) byte(static_cast<std::uint8_t>(rest | 0x80));
    byte(static_cast<std::uint8_t>(rest));
  }
  void integer(std::int64_t value) {
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  // How many elements follow.
  void size_of(const auto& values) { number(values.size()); }
  // Little-endian, as it lies in memory.
  template <typename T>
  void fixed(T value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  void append(std::span<const std::byte> more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
};

// Reads what a ByteWriter has written. Error where the bytes end before, or a number is out of range.
class ByteReader {
 public:
  static constexpr bool kReads = true;

  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t num_left() const { return bytes_.size() - at_; }

  std::uint8_t byte() { return fixed<std::uint8_t>(); }
  void byte(std::uint8_t& value) { value = byte(); }
  template <typename T>
  void number(T& value, std::uint64_t most = std::numeric_limits<T>::max()) {
    value = next_number<T>(most);
  }
  template <typename T = std::uint64_t>
  T next_number(std::uint64_t most = std::numeric_limits<T>::max()) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      if (shift == 63 && next > 1) break;
      value |= std::uint64_t{next & 0x7FU} << shift;
      if (next >= 0x80) continue;
      if (value > most) fail("the number before byte {} is {}; it may be at most {}", at_, value, most);
      return static_cast<T>(value);
    }
    fail("byte {} ends a number of over 64 bits", at_);
  }
  void integer(std::int64_t& value) {
    const auto number = next_number();
    value = static_cast<std::int64_t>(number >> 1) ^ -static_cast<std::int64_t>(number & 1);
  }
  void integer(int& value) {
    std::int64_t wide = 0;
    integer(wide);
    if (!std::in_range<int>(wide))
      fail("the number before byte {} is {}, which is no 32-bit integer", at_, wide);
    value = static_cast<int>(wide);
  }
  // Of things of which each takes a byte or more.
  std::size_t size() { return next_number<std::size_t>(num_left()); }
  void size_of(auto& values) { values.resize(size()); }
  template <typename T>
  T fixed() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > num_left()) fail("cut short: {} bytes are missing at byte {}", count - num_left(), at_);
    return bytes_.subspan(std::exchange(at_, at_ + count), count);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace quire
