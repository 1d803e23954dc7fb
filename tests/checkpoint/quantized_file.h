#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quantization/quantized_weights.h"
#include "checkpoint/safetensors_builder.h"
#include "temp_dir.h"

namespace quire {

// A checkpoint of one file, written tensor by tensor.
class QuantizedFile {
 public:
  // values: the tensor's bytes in the file.
  QuantizedFile& add(const std::string& name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                     std::string_view values) {
    std::string dims;
    for (const std::int64_t dim : shape) dims += (dims.empty() ? "" : ",") + std::to_string(dim);
    header_ += (header_.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" + std::string(dtype) +
               R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + values.size()) + "]}";
    data_ += values;
    return *this;
  }
  template <typename T>
  QuantizedFile& add(const std::string& name, std::string_view dtype, const std::vector<std::int64_t>& shape,
                     const std::vector<T>& values) {
    return add(name, dtype, shape, bytes_of(std::span<const T>(values)));
  }

  // Opens it with this quantization_config.
  QuantizedWeights open(const std::string& quantization) const {
    dir_.write("model.safetensors", safetensors_bytes(header_ + "}", data_));
    return {dir_.path(),
            find_quantization(
                ModelConfig::from_json(R"({"quantization_config": )" + quantization + "}", "config.json"),
                dir_.path())};
  }
  const TempDir& dir() const { return dir_; }

 private:
  std::string header_ = "{", data_;
  TempDir dir_;
};

}  // namespace quire
