#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/weight_group.h"

namespace quire {

// The tensors of a checkpoint, by name.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool contains(std::string_view name) const = 0;
  // False: the tensors have shapes and formats, and what is read of them means nothing.
  virtual bool has_values() const { return true; }
  // Claims a tensor. Error that names the tensor when it is absent or its shape is not `shape`; a file's [a,
  // b, c] may be taken as [a * b, c].
  virtual WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) = 0;
  // Claims a tensor of one element or of n, whatever its shape, and reads it. Error as above.
  virtual std::vector<float> take_vector(std::string_view name, std::int64_t n) {
    return read_values<float>(*take(name, {n}));
  }
  // Claims the tensors PREFIX.* of the matrix [rows, cols] of a linear layer: PREFIX.weight where the format
  // is plain. Error as above.
  virtual WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
    return WeightGroup::plain(take(std::string(prefix) + ".weight", {rows, cols}));
  }
  // Names of the tensors that nobody took, sorted; none where tensors exist because they are asked for.
  virtual std::vector<std::string> unclaimed() const { return {}; }
};

}  // namespace quire
