#include "ops/weight_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace quire {

std::int64_t WeightTensor::rows() const { return shape().size() < 2 ? 1 : shape().front(); }

std::int64_t WeightTensor::cols() const {
  const std::vector<std::int64_t>& dims = shape();
  std::int64_t product = 1;
  for (std::size_t i = dims.size() < 2 ? 0 : 1; i < dims.size(); ++i) product *= dims[i];
  return product;
}

void WeightTensor::check_read(std::int64_t row, const Tensor& dst) const {
  QUIRE_CHECK((dst.dtype() == dtype() || (is_float(dst.dtype()) && is_float(dtype()))) &&
                  dst.device() == DeviceKind::kCpu && dst.num_dims() == 2 && dst.contiguous(),
              "{} of {}", dst.describe(), name());
  QUIRE_CHECK(row >= 0 && row + dst.dim(0) <= rows() && dst.dim(1) == cols(), "row {} of {} into {}", row,
              name(), dst.describe());
}

namespace {

// Another view of a tensor: its name and dtype, another shape.
class Adapter : public WeightTensor {
 public:
  Adapter(WeightTensorPtr inner, std::vector<std::int64_t> shape)
      : inner_(std::move(inner)), shape_(std::move(shape)) {}

  const std::string& name() const override { return inner_->name(); }
  DType dtype() const override { return inner_->dtype(); }
  const std::vector<std::int64_t>& shape() const override { return shape_; }

 protected:
  const WeightTensor& inner() const { return *inner_; }

 private:
  WeightTensorPtr inner_;
  std::vector<std::int64_t> shape_;
};

class RowSlice final : public Adapter {
 public:
  RowSlice(WeightTensorPtr inner, std::vector<std::int64_t> shape, std::int64_t begin)
      : Adapter(std::move(inner), std::move(shape)), begin_(begin) {}

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    inner().read_rows(begin_ + row, dst);
  }

 private:
  std::int64_t begin_;
};

class ColumnSlice final : public Adapter {
 public:
  ColumnSlice(WeightTensorPtr inner, std::vector<std::int64_t> shape, std::int64_t begin)
      : Adapter(std::move(inner), std::move(shape)), begin_(begin) {}

  // Reads whole rows, which lie one after the other in the file, some at a time.
  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    const std::size_t element = size_of(dst.dtype());
    const std::size_t row_bytes = static_cast<std::size_t>(inner().cols()) * element;
    const std::size_t slice_bytes = static_cast<std::size_t>(cols()) * element;
    if (slice_bytes == 0) return;
    const auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, kScratchBytes / row_bytes));
    std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(step, dst.dim(0))) * row_bytes);
    auto* out = dst.data_as<std::byte>();
    for (std::int64_t done = 0; done < dst.dim(0); done += step) {
      const std::int64_t count = std::min(step, dst.dim(0) - done);
      inner().read_rows(row + done, Tensor(scratch.data(), dst.dtype(), {count, inner().cols()}));
      const std::byte* in = scratch.data() + static_cast<std::size_t>(begin_) * element;
      for (std::int64_t i = 0; i < count; ++i, in += row_bytes, out += slice_bytes) {
        std::memcpy(out, in, slice_bytes);
      }
    }
  }

 private:
  static constexpr std::size_t kScratchBytes = std::size_t{1} << 20;
  std::int64_t begin_;
};

class PaddedRows final : public Adapter {
 public:
  using Adapter::Adapter;

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    const std::int64_t stored = std::clamp<std::int64_t>(inner().rows() - row, 0, dst.dim(0));
    if (stored > 0) inner().read_rows(row, dst.rows(0, stored));
    const Tensor zeros = dst.rows(stored, dst.dim(0) - stored);
    if (zeros.bytes() > 0) std::memset(zeros.data(), 0, zeros.bytes());
  }
};

class Transposed final : public Adapter {
 public:
  using Adapter::Adapter;

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    const bool same = dst.dtype() == dtype();
    std::vector<std::byte> stored(same ? 0 : static_cast<std::size_t>(dst.numel()) * size_of(dtype()));
    void* const out = same ? dst.data() : stored.data();
    if (size_of(dtype()) == 4)
      copy_columns<std::uint32_t>(row, dst.dim(0), out);
    else
      copy_columns<std::uint16_t>(row, dst.dim(0), out);
    if (!same) convert(dtype(), out, dst.dtype(), dst.data(), static_cast<std::size_t>(dst.numel()));
  }

 private:
  template <typename Bits>
  void copy_columns(std::int64_t column, std::int64_t count, void* to) const {
    const auto* in = static_cast<const Bits*>(whole()) + column;
    auto* out = static_cast<Bits*>(to);
    for (std::int64_t i = 0; i < inner().rows(); ++i) {
      for (std::int64_t j = 0; j < count; ++j) out[j * cols() + i] = in[i * inner().cols() + j];
    }
  }

  // The inner matrix as it is stored, whoever asks: it does not change once it is read.
  const void* whole() const {
    const std::lock_guard lock(mutex_);
    if (values_.empty()) {
      std::vector<std::byte> values(static_cast<std::size_t>(inner().rows() * inner().cols()) *
                                    size_of(dtype()));
      inner().read_rows(0, Tensor(values.data(), dtype(), {inner().rows(), inner().cols()}));
      values_ = std::move(values);
    }
    return values_.data();
  }

  mutable std::mutex mutex_;
  mutable std::vector<std::byte> values_;
};

class PickedRows final : public Adapter {
 public:
  PickedRows(WeightTensorPtr inner, std::vector<std::int64_t> shape, std::vector<std::int64_t> rows)
      : Adapter(std::move(inner), std::move(shape)), rows_(std::move(rows)) {}

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    if (shape().size() == 1) return read_elements(dst);
    for (std::int64_t done = 0; done < dst.dim(0);) {
      const std::int64_t* first = &rows_[static_cast<std::size_t>(row + done)];
      std::int64_t count = 1;  // of rows that are neighbours in the file, too
      while (done + count < dst.dim(0) && first[count] == first[0] + count) ++count;
      inner().read_rows(first[0], dst.rows(done, count));
      done += count;
    }
  }

 private:
  void read_elements(const Tensor& dst) const {
    const std::size_t element = size_of(dst.dtype());
    std::vector<std::byte> values(static_cast<std::size_t>(inner().cols()) * element);
    inner().read_rows(0, Tensor(values.data(), dst.dtype(), {1, inner().cols()}));
    auto* out = dst.data_as<std::byte>();
    for (const std::int64_t i : rows_) {
      std::memcpy(out, &values[static_cast<std::size_t>(i) * element], element);
      out += element;
    }
  }

  std::vector<std::int64_t> rows_;  // of the inner tensor
};

class PickedCols final : public Adapter {
 public:
  PickedCols(WeightTensorPtr inner, std::vector<std::int64_t> shape, std::vector<std::int64_t> cols)
      : Adapter(std::move(inner), std::move(shape)), cols_(std::move(cols)) {}

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    const std::size_t element = size_of(dst.dtype());
    std::vector<std::byte> values(static_cast<std::size_t>(inner().cols()) * element);
    auto* out = dst.data_as<std::byte>();
    for (std::int64_t i = 0; i < dst.dim(0); ++i) {
      inner().read_rows(row + i, Tensor(values.data(), dst.dtype(), {1, inner().cols()}));
      for (const std::int64_t col : cols_) {
        std::memcpy(out, &values[static_cast<std::size_t>(col) * element], element);
        out += element;
      }
    }
  }

 private:
  std::vector<std::int64_t> cols_;  // of the inner tensor
};

class Stacked final : public Adapter {
 public:
  Stacked(std::vector<WeightTensorPtr> parts, std::vector<std::int64_t> shape)
      : Adapter(parts.front(), std::move(shape)), parts_(std::move(parts)) {}

  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    std::int64_t done = 0;
    for (const WeightTensorPtr& part : parts_) {
      const std::int64_t count = std::min(part->rows() - row, dst.dim(0) - done);
      if (count > 0) {
        part->read_rows(row, dst.rows(done, count));
        done += count;
      }
      row = std::max<std::int64_t>(0, row - part->rows());
    }
  }

 private:
  std::vector<WeightTensorPtr> parts_;
};

}  // namespace

WeightTensorPtr transpose(WeightTensorPtr tensor) {
  const std::vector<std::int64_t>& shape = tensor->shape();
  QUIRE_CHECK(shape.size() == 2, "{} is no matrix", tensor->name());
  std::vector<std::int64_t> exchanged = {shape[1], shape[0]};
  return std::make_shared<Transposed>(std::move(tensor), std::move(exchanged));
}

WeightTensorPtr deinterleave(WeightTensorPtr tensor, std::int64_t groups, std::int64_t parts,
                             std::int64_t part) {
  const std::vector<std::int64_t>& shape = tensor->shape();
  QUIRE_CHECK(!shape.empty() && shape[0] % (groups * parts) == 0 && part < parts,
              "{} in {} groups of {} parts", tensor->name(), groups, parts);
  const std::int64_t run = shape[0] / (groups * parts);
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < groups * run; ++i) rows.push_back((i / run * parts + part) * run + i % run);
  return pick_rows(std::move(tensor), std::move(rows));
}

WeightTensorPtr pick_rows(WeightTensorPtr tensor, std::vector<std::int64_t> rows) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(!shape.empty());
  for (const std::int64_t row : rows)
    QUIRE_CHECK(row >= 0 && row < shape[0], "row {} of {}", row, tensor->name());
  shape[0] = std::ssize(rows);
  return std::make_shared<PickedRows>(std::move(tensor), std::move(shape), std::move(rows));
}

WeightTensorPtr pick_cols(WeightTensorPtr tensor, std::vector<std::int64_t> cols) {
  QUIRE_CHECK(tensor->shape().size() == 2, "{} is no matrix", tensor->name());
  for (const std::int64_t col : cols)
    QUIRE_CHECK(col >= 0 && col < tensor->cols(), "column {} of {}", col, tensor->name());
  std::vector<std::int64_t> shape = {tensor->rows(), std::ssize(cols)};
  return std::make_shared<PickedCols>(std::move(tensor), std::move(shape), std::move(cols));
}

WeightTensorPtr slice_rows(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(shape.size() >= 2 && begin >= 0 && count >= 0 && begin + count <= shape.front(),
              "rows {} + {} of {}", begin, count, tensor->name());
  shape.front() = count;
  return std::make_shared<RowSlice>(std::move(tensor), std::move(shape), begin);
}

WeightTensorPtr slice_cols(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(
      (shape.size() == 1 || shape.size() == 2) && begin >= 0 && count >= 0 && begin + count <= shape.back(),
      "columns {} + {} of {}", begin, count, tensor->name());
  shape.back() = count;
  return std::make_shared<ColumnSlice>(std::move(tensor), std::move(shape), begin);
}

WeightTensorPtr pad_rows(WeightTensorPtr tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(shape.size() >= 2 && rows >= shape.front(), "{} padded to {} rows", tensor->name(), rows);
  shape.front() = rows;
  return std::make_shared<PaddedRows>(std::move(tensor), std::move(shape));
}

WeightTensorPtr stack_rows(std::vector<WeightTensorPtr> tensors) {
  QUIRE_CHECK(!tensors.empty());
  if (tensors.size() == 1) return tensors.front();
  std::int64_t rows = 0;
  for (const WeightTensorPtr& tensor : tensors) rows += tensor->rows();
  std::vector<std::int64_t> shape = {rows, tensors.front()->cols()};
  return std::make_shared<Stacked>(std::move(tensors), std::move(shape));
}

}  // namespace quire
