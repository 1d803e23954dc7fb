#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace quire {

// The bytes of a safetensors file with this header and data, right or wrong.
inline std::string safetensors_bytes(std::string_view header, std::string_view data = {}) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(header.size() >> shift & 0xFFU));
  }
  return bytes.append(header).append(data);
}

template <typename T>
std::string bytes_of(std::span<const T> values) {
  std::string bytes(values.size_bytes(), '\0');
  std::memcpy(bytes.data(), values.data(), values.size_bytes());
  return bytes;
}

}  // namespace quire
