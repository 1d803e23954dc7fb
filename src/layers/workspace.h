#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "ops/device.h"
#include "ops/weight_source.h"

namespace quire {

// Owns a model's tensors that are no packed matrices: small parameters, and the activations of one step.
// Everything is taken while the model is built; a step allocates nothing.
class Workspace {
 public:
  // max_tokens: rows of every activation.
  Workspace(Device& device, int max_tokens) : device_(device), max_tokens_(max_tokens) {}

  // A tensor of its own, zeroed.
  Tensor allocate(DType dtype, std::initializer_list<std::int64_t> shape);
  // The activation [max_tokens, cols] of this name and width, one for all layers that ask: its contents last
  // until the next layer writes it.
  Tensor activation(const std::string& name, DType dtype, std::int64_t cols);
  // Bytes of this name, one tensor for all layers that ask: u8 [bytes]; undefined where that is 0.
  Tensor scratch(const std::string& name, std::size_t bytes);
  // float32 or int32 values on the device: [n]; undefined where there are none.
  Tensor upload(const std::vector<float>& values) {
    return upload(DType::kF32, values.data(), {std::ssize(values)});
  }
  Tensor upload(const std::vector<std::int32_t>& values) {
    return upload(DType::kI32, values.data(), {std::ssize(values)});
  }
  // A vector parameter of a checkpoint in float32: [n], (offset + its values) * scale.
  Tensor load(const WeightTensor& vector, float scale = 1, float offset = 0);

  // A matrix in float32: [rows, cols].
  Tensor load_matrix(const WeightTensor& matrix);

  int max_tokens() const { return max_tokens_; }

 private:
  Tensor upload(DType dtype, const void* values, std::initializer_list<std::int64_t> shape);

  Device& device_;
  int max_tokens_;
  std::vector<Buffer> buffers_;
  std::map<std::string, Tensor> activations_;
};

}  // namespace quire
