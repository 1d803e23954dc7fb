#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"

namespace quire {

// Makes the bytes of a GGUF file, right or wrong.
class GgufBuilder {
 public:
  std::uint32_t version = 3;

  GgufBuilder& add(std::string_view key, std::uint32_t value) { return number(key, 4, value); }
  GgufBuilder& add(std::string_view key, float value) { return number(key, 6, value); }
  GgufBuilder& add(std::string_view key, bool value) { return number(key, 7, static_cast<char>(value)); }
  GgufBuilder& add(std::string_view key, std::string_view value) {
    begin_key(key, 8);
    text(keys_, value);
    return *this;
  }
  GgufBuilder& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  GgufBuilder& add(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) text(keys_, value);
    return *this;
  }
  GgufBuilder& add(std::string_view key, const std::vector<float>& values) { return array(key, 6, values); }
  GgufBuilder& add(std::string_view key, const std::vector<std::int32_t>& values) {
    return array(key, 5, values);
  }
  GgufBuilder& add(std::string_view key, const std::vector<bool>& values) {
    return array(key, 7, std::vector<char>(values.begin(), values.end()));
  }

  // shape: the last dimension is the one whose elements follow one another.
  GgufBuilder& tensor(std::string_view name, const std::vector<std::int64_t>& shape, GgufType type,
                      std::string_view bytes) {
    text(tensors_, name);
    put(tensors_, static_cast<std::uint32_t>(shape.size()));
    for (auto dim = shape.rbegin(); dim != shape.rend(); ++dim) put(tensors_, *dim);
    put(tensors_, static_cast<std::uint32_t>(type));
    put(tensors_, static_cast<std::uint64_t>(data_.size()));
    data_.append(bytes);
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
    return *this;
  }
  GgufBuilder& tensor(std::string_view name, const std::vector<std::int64_t>& shape,
                      std::span<const float> values) {
    return tensor(name, shape, GgufType::kF32,
                  {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  std::string bytes() const {
    std::string file = "GGUF";
    put(file, version);
    put(file, num_tensors_);
    put(file, num_keys_);
    file += keys_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  template <typename T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void text(std::string& to, std::string_view value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to.append(value);
  }
  void begin_key(std::string_view key, std::uint32_t type) {
    text(keys_, key);
    put(keys_, type);
    ++num_keys_;
  }
  void begin_array(std::string_view key, std::uint32_t type, std::size_t size) {
    begin_key(key, 9);
    put(keys_, type);
    put(keys_, static_cast<std::uint64_t>(size));
  }
  template <typename T>
  GgufBuilder& number(std::string_view key, std::uint32_t type, T value) {
    begin_key(key, type);
    put(keys_, value);
    return *this;
  }
  template <typename T>
  GgufBuilder& array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
    begin_array(key, type, values.size());
    for (const T value : values) put(keys_, value);
    return *this;
  }

  std::string keys_, tensors_, data_;
  std::int64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace quire
