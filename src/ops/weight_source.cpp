#include "ops/weight_source.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
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
  QUIRE_CHECK(
      is_float(dst.dtype()) && dst.device() == DeviceKind::kCpu && dst.rank() == 2 && dst.contiguous(),
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

}  // namespace

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

}  // namespace quire
