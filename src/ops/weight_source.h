#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace quire {

// One named tensor of a checkpoint, read on demand; nothing is held in memory. Seen as a matrix of rows() ×
// cols(): the first dimension by the product of the others (a vector is one row). Adapters give other views
// of the same bytes.
class WeightTensor {
 public:
  virtual ~WeightTensor() = default;

  virtual const std::string& name() const = 0;
  virtual DType dtype() const = 0;  // as stored
  virtual const std::vector<std::int64_t>& shape() const = 0;

  // Writes rows [row, row + dst.dim(0)) into dst, a contiguous host tensor [n, cols()] of any float type. The
  // values are converted with rounding to nearest even. Error when the file cannot be read. Thread contract:
  // any thread, several at once.
  virtual void read_rows(std::int64_t row, const Tensor& dst) const = 0;

  std::int64_t rows() const;
  std::int64_t cols() const;

 protected:
  // Every read_rows starts with it: dst is as described there and its rows lie in this tensor.
  void check_read(std::int64_t row, const Tensor& dst) const;
};

using WeightTensorPtr = std::shared_ptr<const WeightTensor>;

// The tensors of a checkpoint, by name.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool contains(std::string_view name) const = 0;
  // Claims a tensor. Error that names the tensor when it is absent or its shape is not `shape`.
  virtual WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) = 0;
  // Names of the tensors that nobody took, sorted; none where tensors exist because they are asked for.
  virtual std::vector<std::string> unclaimed() const { return {}; }
};

// Rows [begin, begin + count) of a tensor: one rank's shard of a column-parallel weight.
WeightTensorPtr slice_rows(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count);
// Columns [begin, begin + count): one rank's shard of a row-parallel weight.
WeightTensorPtr slice_cols(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count);
// A matrix with rows and columns exchanged. Holds all of it in memory from the first read on.
WeightTensorPtr transpose(WeightTensorPtr tensor);
// Of rows (of a vector: elements) that lie as [groups][parts][n], those of one part: [groups][n].
WeightTensorPtr deinterleave(WeightTensorPtr tensor, std::int64_t groups, std::int64_t parts,
                             std::int64_t part);
// `tensor` followed by rows of zeros up to `rows`: a vocabulary that does not divide by the ranks.
WeightTensorPtr pad_rows(WeightTensorPtr tensor, std::int64_t rows);

// The same tensors under the names that layers ask for. Refers to both arguments.
class RenamedWeights : public WeightSource {
 public:
  using Renames =
      std::vector<std::pair<std::string, std::string>>;  // a part of a layer's name, and the file's

  RenamedWeights(WeightSource& inner, const Renames& renames) : inner_(inner), renames_(renames) {}

  bool contains(std::string_view name) const override;
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;
  std::vector<std::string> unclaimed() const override { return inner_.unclaimed(); }

 private:
  std::string spelled(std::string_view name) const;

  WeightSource& inner_;
  const Renames& renames_;
};

}  // namespace quire
