#include "ops/weight_tensor.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace quire {

namespace {

// Bytes of whole rows that are read to take some columns of them.
constexpr std::size_t kScratchBytes = std::size_t{1} << 20;

std::int64_t cols_of(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (std::size_t i = shape.size() < 2 ? 0 : 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

// Another view of a tensor: its name and dtype, another shape.
WeightTensorPtr view_of(const WeightTensor& tensor, std::vector<std::int64_t> shape,
                        WeightTensor::ReadRows read) {
  return make_weight_tensor(tensor.name(), tensor.dtype(), std::move(shape), std::move(read));
}

// Reads whole rows, which lie one after the other in the file, some at a time, and calls take(bytes of a row,
// to) for each; to: its place in dst.
template <typename Take>
void read_whole_rows(const WeightTensor& tensor, std::int64_t row, const Tensor& dst, const Take& take) {
  const std::size_t element = size_of(dst.dtype());
  const std::size_t row_bytes = static_cast<std::size_t>(tensor.cols()) * element;
  const std::size_t out_bytes = static_cast<std::size_t>(dst.dim(1)) * element;
  if (out_bytes == 0) return;
  const auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, kScratchBytes / row_bytes));
  std::vector<std::byte> scratch(static_cast<std::size_t>(std::min(step, dst.dim(0))) * row_bytes);
  auto* out = dst.data_as<std::byte>();
  for (std::int64_t done = 0; done < dst.dim(0); done += step) {
    const std::int64_t count = std::min(step, dst.dim(0) - done);
    tensor.read_rows(row + done, Tensor(scratch.data(), dst.dtype(), {count, tensor.cols()}));
    const std::byte* in = scratch.data();
    for (std::int64_t i = 0; i < count; ++i, in += row_bytes, out += out_bytes) take(in, out);
  }
}

// Of each row the elements of these places.
WeightTensorPtr pick_elements(const WeightTensorPtr& tensor, std::vector<std::int64_t> shape,
                              std::vector<std::int64_t> places) {
  return view_of(*tensor, std::move(shape),
                 [tensor, places = std::move(places)](std::int64_t row, const Tensor& dst) {
                   const std::size_t element = size_of(dst.dtype());
                   read_whole_rows(*tensor, row, dst, [&](const std::byte* from, std::byte* to) {
                     for (const std::int64_t place : places) {
                       std::memcpy(to, from + static_cast<std::size_t>(place) * element, element);
                       to += element;
                     }
                   });
                 });
}

}  // namespace

WeightTensor::WeightTensor(std::string name, DType dtype, std::vector<std::int64_t> shape, ReadRows read)
    : name_(std::move(name)),
      dtype_(dtype),
      shape_(std::move(shape)),
      cols_(cols_of(shape_)),
      read_(std::move(read)) {}

void WeightTensor::read_rows(std::int64_t row, const Tensor& dst) const {
  QUIRE_CHECK((dst.dtype() == dtype() || (is_float(dst.dtype()) && is_float(dtype()))) &&
                  dst.device() == DeviceKind::kCpu && dst.num_dims() == 2 && dst.contiguous(),
              "{} of {}", dst.describe(), name());
  QUIRE_CHECK(row >= 0 && row + dst.dim(0) <= rows() && dst.dim(1) == cols(), "row {} of {} into {}", row,
              name(), dst.describe());
  read_(row, dst);
}

WeightTensorPtr pick_matrix(WeightTensorPtr tensor, std::int64_t index) {
  const std::vector<std::int64_t>& shape = tensor->shape();
  QUIRE_CHECK(shape.size() == 3 && index >= 0 && index < shape[0], "matrix {} of {}", index, tensor->name());
  return view_of(*tensor, {shape[1], shape[2]}, [tensor, index](std::int64_t row, const Tensor& dst) {
    const std::size_t row_bytes = static_cast<std::size_t>(dst.dim(1)) * size_of(dst.dtype());
    std::vector<std::byte> whole(static_cast<std::size_t>(tensor->shape()[1]) * row_bytes);
    tensor->read_rows(index, Tensor(whole.data(), dst.dtype(), {1, tensor->cols()}));
    std::memcpy(dst.data(), &whole[static_cast<std::size_t>(row) * row_bytes], dst.bytes());
  });
}

WeightTensorPtr transpose(WeightTensorPtr tensor) {
  const std::int64_t rows = tensor->rows(), cols = tensor->cols();
  QUIRE_CHECK(tensor->shape().size() == 2, "{} is no matrix", tensor->name());
  struct Whole {
    std::mutex mutex;
    std::vector<std::byte> values;  // as they are stored, from the first read on
  };
  const auto whole = std::make_shared<Whole>();
  return view_of(*tensor, {cols, rows}, [=](std::int64_t row, const Tensor& dst) {
    const DType dtype = tensor->dtype();
    {
      const std::lock_guard lock(whole->mutex);
      if (whole->values.empty()) {
        std::vector<std::byte> values(static_cast<std::size_t>(rows * cols) * size_of(dtype));
        tensor->read_rows(0, Tensor(values.data(), dtype, {rows, cols}));
        whole->values = std::move(values);
      }
    }
    const bool converts = dst.dtype() != dtype;
    std::vector<std::byte> stored(converts ? static_cast<std::size_t>(dst.numel()) * size_of(dtype) : 0);
    const auto exchange = [&]<typename Bits>() {
      const auto* in = reinterpret_cast<const Bits*>(whole->values.data()) + row;
      auto* out = converts ? reinterpret_cast<Bits*>(stored.data()) : dst.data_as<Bits>();
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < dst.dim(0); ++j) out[j * rows + i] = in[i * cols + j];
    };
    size_of(dtype) == 4 ? exchange.template operator()<std::uint32_t>()
                        : exchange.template operator()<std::uint16_t>();
    if (converts)
      convert(dtype, stored.data(), dst.dtype(), dst.data(), static_cast<std::size_t>(dst.numel()));
  });
}

std::vector<std::int64_t> by_turns(std::int64_t n, std::int64_t parts, std::int64_t part) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < n; ++i) places.push_back(i * parts + part);
  return places;
}

WeightTensorPtr pick_rows(WeightTensorPtr tensor, std::vector<std::int64_t> rows) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(!shape.empty());
  for (const std::int64_t row : rows)
    QUIRE_CHECK(row >= 0 && row < shape[0], "row {} of {}", row, tensor->name());
  shape[0] = std::ssize(rows);
  if (shape.size() == 1) return pick_elements(tensor, shape, std::move(rows));
  return view_of(*tensor, shape, [tensor, rows = std::move(rows)](std::int64_t row, const Tensor& dst) {
    for (std::int64_t done = 0; done < dst.dim(0);) {
      const std::int64_t* first = &rows[row + done];
      std::int64_t count = 1;  // of rows that are neighbours in the file, too
      while (done + count < dst.dim(0) && first[count] == first[0] + count) ++count;
      tensor->read_rows(first[0], dst.rows(done, count));
      done += count;
    }
  });
}

WeightTensorPtr pick_cols(WeightTensorPtr tensor, std::vector<std::int64_t> cols) {
  QUIRE_CHECK(tensor->shape().size() == 2, "{} is no matrix", tensor->name());
  for (const std::int64_t col : cols)
    QUIRE_CHECK(col >= 0 && col < tensor->cols(), "column {} of {}", col, tensor->name());
  std::vector<std::int64_t> shape = {tensor->rows(), std::ssize(cols)};
  return pick_elements(tensor, shape, std::move(cols));
}

WeightTensorPtr slice_rows(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(shape.size() >= 2 && begin >= 0 && count >= 0 && begin + count <= shape.front(),
              "rows {} + {} of {}", begin, count, tensor->name());
  shape.front() = count;
  return view_of(*tensor, std::move(shape), [tensor, begin](std::int64_t row, const Tensor& dst) {
    tensor->read_rows(begin + row, dst);
  });
}

WeightTensorPtr slice_cols(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(
      (shape.size() == 1 || shape.size() == 2) && begin >= 0 && count >= 0 && begin + count <= shape.back(),
      "columns {} + {} of {}", begin, count, tensor->name());
  shape.back() = count;
  return view_of(*tensor, std::move(shape), [tensor, begin](std::int64_t row, const Tensor& dst) {
    const std::size_t element = size_of(dst.dtype());
    read_whole_rows(*tensor, row, dst, [&](const std::byte* from, std::byte* to) {
      std::memcpy(to, from + static_cast<std::size_t>(begin) * element,
                  static_cast<std::size_t>(dst.dim(1)) * element);
    });
  });
}

WeightTensorPtr pad_rows(WeightTensorPtr tensor, std::int64_t rows) {
  std::vector<std::int64_t> shape = tensor->shape();
  QUIRE_CHECK(shape.size() >= 2 && rows >= shape.front(), "{} padded to {} rows", tensor->name(), rows);
  shape.front() = rows;
  return view_of(*tensor, std::move(shape), [tensor](std::int64_t row, const Tensor& dst) {
    const std::int64_t stored = std::clamp<std::int64_t>(tensor->rows() - row, 0, dst.dim(0));
    if (stored > 0) tensor->read_rows(row, dst.rows(0, stored));
    const Tensor zeros = dst.rows(stored, dst.dim(0) - stored);
    if (zeros.bytes() > 0) std::memset(zeros.data(), 0, zeros.bytes());
  });
}

WeightTensorPtr stack_rows(std::vector<WeightTensorPtr> tensors) {
  QUIRE_CHECK(!tensors.empty());
  if (tensors.size() == 1) return tensors.front();
  std::int64_t rows = 0;
  for (const WeightTensorPtr& tensor : tensors) rows += tensor->rows();
  std::vector<std::int64_t> shape = {rows, tensors.front()->cols()};
  const WeightTensorPtr first = tensors.front();
  return view_of(*first, std::move(shape), [parts = std::move(tensors)](std::int64_t row, const Tensor& dst) {
    std::int64_t done = 0;
    for (const WeightTensorPtr& part : parts) {
      const std::int64_t count = std::min(part->rows() - row, dst.dim(0) - done);
      if (count > 0) {
        part->read_rows(row, dst.rows(done, count));
        done += count;
      }
      row = std::max<std::int64_t>(0, row - part->rows());
    }
  });
}

}  // namespace quire
