#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {

// The method that the configuration, or hf_quant_config.json beside it, names; null: the weights are plain.
// Error that names it and says which are supported where it is another.
QuantizationMethod find_quantization(const ModelConfig& config, const std::filesystem::path& directory);

// A checkpoint whose linear layers are quantised, most of them. Thread contract as for Checkpoint.
class QuantizedWeights final : public WeightSource {
 public:
  QuantizedWeights(const std::filesystem::path& directory, QuantizationMethod method)
      : file_(directory), method_(std::move(method)) {}

  bool contains(std::string_view name) const override { return file_.contains(name); }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return file_.take(name, shape);
  }
  std::vector<float> take_vector(std::string_view name, std::int64_t n) override {
    return file_.take_vector(name, n);
  }
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    return method_(StoredLinear(file_, prefix, rows, cols));
  }
  // Scales of activations and of an 8-bit KV cache need not be used.
  std::vector<std::string> unclaimed() const override;

 private:
  mutable Checkpoint file_;  // values are read where nobody claims a tensor
  QuantizationMethod method_;
};

}  // namespace quire
