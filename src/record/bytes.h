#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quire {

// Numbers as bytes: unsigned ones seven bits a byte, the low ones first, where the highest bit says that more
// follow (LEB128); signed ones with the sign in the lowest bit.
class ByteWriter {
 public:
  void byte(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>(value | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }
  void integer(std::int64_t value) {
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  // Little-endian, as it lies in memory.
  template <typename T>
  void fixed(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void append(std::span<const std::byte> more) { bytes_.insert(bytes_.end(), more.begin(), more.end()); }
  void text(std::string_view value) {
    number(value.size());
    append(std::as_bytes(std::span(value)));
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  void clear() { bytes_.clear(); }
  void cut(std::size_t size) { bytes_.resize(size); }
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what a ByteWriter has written. Error where the bytes end before, or a number is out of range.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::size_t num_left() const { return bytes_.size() - at_; }

  std::uint8_t byte() { return static_cast<std::uint8_t>(take(1)[0]); }
  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t next = byte();
      if (shift == 63 && next > 1) break;
      value |= std::uint64_t{next & 0x7FU} << shift;
      if (next < 0x80) return value;
    }
    fail("byte {} ends a number of over 64 bits", at_);
  }
  std::int64_t integer() {
    const std::uint64_t value = number();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
  }
  // As another type, within its range.
  template <typename T>
  T number_as(std::uint64_t most = std::numeric_limits<T>::max()) {
    const std::uint64_t value = number();
    if (value > most) fail("the number before byte {} is {}; it may be at most {}", at_, value, most);
    return static_cast<T>(value);
  }
  int integer_as_int() {
    const std::int64_t value = integer();
    if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
      fail("the number before byte {} is {}, which is no 32-bit integer", at_, value);
    return static_cast<int>(value);
  }
  // Of things of which each takes a byte or more.
  std::size_t size() { return number_as<std::size_t>(num_left()); }
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
  std::string text() {
    const auto bytes = take(size());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
};

}  // namespace quire
