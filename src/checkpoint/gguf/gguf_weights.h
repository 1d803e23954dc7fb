#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/gguf_config.h"
#include "checkpoint/gguf/gguf_file.h"
#include "ops/weight_group.h"
#include "ops/weight_source.h"

namespace quire {

// The tensors of a GGUF file under the names of the checkpoint that it was made of, and as they were there.
// Thread contract as for Checkpoint.
class GgufWeights final : public WeightSource {
 public:
  GgufWeights(std::shared_ptr<const GgufModel> model, GgufLayout layout)
      : model_(std::move(model)), layout_(std::move(layout)) {}

  bool contains(std::string_view name) const override;
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override;
  // Names as in the file, behind "mtp." those of layers that predict further tokens.
  std::vector<std::string> unclaimed() const override;

 private:
  // The file's tensor for a name.
  struct Stored {
    std::string name;
    int expert = -1;        // of those that the tensor holds; -1: it holds none
    int parts = 1;          // of each expert's rows
    int part = 0;           // the one of them
    int heads = 0;          // whose rows are permuted
    bool is_tiled = false;  // its value heads stand tiled: rows, or columns
    bool is_norm = false;
    bool is_decay = false;  // -exp of the checkpoint's
  };
  Stored find(std::string_view name) const;
  // Where the file has each of n rows, columns or elements; none where they stand in order.
  std::vector<std::int64_t> order_of(const Stored& stored, std::int64_t n) const;
  WeightGroup take_stored(const Stored& stored, std::vector<std::int64_t> shape);

  std::shared_ptr<const GgufModel> model_;
  GgufLayout layout_;
  std::set<std::string, std::less<>> claimed_;
};

// A tensor's rows, [product of all dimensions but the last, the last], as what they are: codes, scales and
// minima, which are decoded as they are read, or values of a float type. A scale that is read and is not
// finite is an Error that names the tensor.
WeightGroup open_gguf_tensor(const std::string& name, const GgufTensor& tensor);

}  // namespace quire
