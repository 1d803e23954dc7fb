#pragma once

#include <array>
#include <memory>
#include <utility>

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/quantized.h"
#include "backends/cuda/kernels/w8a8.h"
#include "base/thread_pool.h"
#include "ops/ops.h"

namespace quire::cuda {

// A weight in the form that kernels see, with its memory.
template <typename Matrix>
class DeviceLinear final : public LinearWeights {
 public:
  DeviceLinear(Buffer buffer, const Matrix& matrix, std::int64_t rows, std::int64_t cols)
      : LinearWeights(rows, cols, buffer.bytes()), buffer_(std::move(buffer)), matrix_(matrix) {}

  const Matrix& matrix() const { return matrix_; }

 private:
  Buffer buffer_;
  Matrix matrix_;
};
using CudaLinear = DeviceLinear<Tensor>;  // row-major [out_features, in_features] in one piece
using QuantizedLinear = DeviceLinear<QuantizedMatrix>;
using W8a8Linear = DeviceLinear<W8a8Matrix>;

// A layer's experts, one below the other: gate_up [num_experts * 2 * intermediate_size, hidden_size] holds
// each one's gate, then its up; down [num_experts * hidden_size, intermediate_size]. Both are plain, or both
// have codes.
struct CudaExperts final : ExpertWeights {
  CudaExperts(const ExpertShape& shape, std::unique_ptr<LinearWeights> gate_up_rows,
              std::unique_ptr<LinearWeights> down_rows)
      : ExpertWeights(shape, gate_up_rows->bytes() + down_rows->bytes()),
        gate_up(std::move(gate_up_rows)),
        down(std::move(down_rows)) {}

  std::unique_ptr<LinearWeights> gate_up, down;
};

// Brings weights to the device through two pinned buffers: while one is copied, several threads fill the
// other. Thread contract: one thread at a time.
class WeightLoader {
 public:
  // stream: where the copies are queued.
  explicit WeightLoader(cudaStream_t stream);
  ~WeightLoader();  // waits for its copies
  WeightLoader(const WeightLoader&) = delete;
  WeightLoader& operator=(const WeightLoader&) = delete;

  // weight [out_features, in_features] on the device = the rows. The last copies may be under way when it
  // returns.
  void load(const WeightTensor& rows, const Tensor& weight);

 private:
  struct Staging {
    std::shared_ptr<void> data;  // pinned
    CudaEvent copied;
  };

  cudaStream_t stream_;
  std::array<Staging, 2> staging_;
  std::size_t next_ = 0;  // of staging_
  ThreadPool pool_;
};

}  // namespace quire::cuda
