#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

// How the tensors of a group stand for a matrix. Rows and columns of it stand or fall together in blocks of
// so many, of which the last ones may be cut short.
struct LinearFormat {
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 1;

  bool operator==(const LinearFormat&) const = default;
};

struct NamedTensor {
  std::string name;  // behind the layer's prefix: "weight"
  WeightTensorPtr tensor;
  bool of_blocks = false;  // it has an element for each block, not for each of the matrix
};

// What a checkpoint has of a linear layer's matrix [rows, cols]. The plain format is one tensor in blocks of
// one element.
struct WeightGroup {
  std::vector<NamedTensor> tensors;
  LinearFormat format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  static WeightGroup plain(WeightTensorPtr tensor);
};

// The matrix of the groups' rows, one below the other.
struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};
MatrixShape shape_of(std::span<const WeightGroup> parts);
// The same as a tensor, for who knows the plain format alone.
WeightTensorPtr plain_rows(std::span<const WeightGroup> parts);

// The tensors of a checkpoint, by name.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool contains(std::string_view name) const = 0;
  // Claims a tensor. Error that names the tensor when it is absent or its shape is not `shape`.
  virtual WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) = 0;
  // Claims the tensors PREFIX.* of the matrix [rows, cols] of a linear layer: PREFIX.weight where the format
  // is plain. Error as above.
  virtual WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols);
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
// These rows (of a vector: elements), in this order.
WeightTensorPtr pick_rows(WeightTensorPtr tensor, std::vector<std::int64_t> rows);
// `tensor` followed by rows of zeros up to `rows`: a vocabulary that does not divide by the ranks.
WeightTensorPtr pad_rows(WeightTensorPtr tensor, std::int64_t rows);
// The rows of matrices with as many columns, one below the other.
WeightTensorPtr stack_rows(std::vector<WeightTensorPtr> tensors);

// The same of groups, all tensors of them at once. Error that names the tensor where a block would be cut.
WeightGroup slice_rows(WeightGroup group, std::int64_t begin, std::int64_t count);
WeightGroup slice_cols(WeightGroup group, std::int64_t begin, std::int64_t count);
WeightGroup transpose(WeightGroup group);
WeightGroup deinterleave(WeightGroup group, std::int64_t groups, std::int64_t parts, std::int64_t part);
WeightGroup pick_rows(WeightGroup group, const std::vector<std::int64_t>& rows);
WeightGroup pad_rows(WeightGroup group, std::int64_t rows);

// The same tensors under the names that layers ask for: names are renamed by whole components, such as
// "mlp.gate_proj", in one pass from left to right, so that no rename sees another's result. Refers to
// `inner`.
class RenamedWeights : public WeightSource {
 public:
  using Renames =
      std::vector<std::pair<std::string, std::string>>;  // components of a layer's name, and the file's

  RenamedWeights(WeightSource& inner, Renames renames) : inner_(inner), renames_(std::move(renames)) {}

  bool contains(std::string_view name) const override;
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override;
  std::vector<std::string> unclaimed() const override { return inner_.unclaimed(); }

 private:
  std::string spelled(std::string_view name) const;

  WeightSource& inner_;
  Renames renames_;
};

}  // namespace quire
