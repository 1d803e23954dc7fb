#pragma once

#include <cuda_runtime.h>

#include <array>
#include <memory>
#include <utility>

#include "base/thread_pool.h"
#include "ops/ops.h"

namespace quire::cuda {

// Row-major [out_features, in_features] in one piece.
class CudaLinear final : public LinearWeights {
 public:
  CudaLinear(Buffer buffer, const Tensor& weight)
      : LinearWeights(weight.dim(0), weight.dim(1), weight.bytes()),
        buffer_(std::move(buffer)),
        weight_(weight) {}

  const Tensor& weight() const { return weight_; }

 private:
  Buffer buffer_;
  Tensor weight_;
};

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
    void* data = nullptr;
    cudaEvent_t copied = nullptr;
  };

  void read(const WeightTensor& rows, std::int64_t row, const Tensor& dst);

  cudaStream_t stream_;
  std::array<Staging, 2> staging_;
  std::size_t next_ = 0;  // of staging_
  ThreadPool pool_;
};

}  // namespace quire::cuda
