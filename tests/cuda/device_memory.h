#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>

#include "backends/cuda/kernels/launch.h"
#include "base/tensor.h"

namespace quire::cuda::testing {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

// For tests that need a GPU: where none is, they are skipped.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    context_ = make_context(0);
  }

  LaunchContext context_;  // the default stream
};

// Device memory shaped like a contiguous host tensor.
class DeviceTensor {
 public:
  explicit DeviceTensor(const Tensor& host)
      : bytes_(host.bytes()), tensor_(allocate(bytes_), host.dtype(), {host.dim(0)}, DeviceKind::kCuda) {
    if (host.num_dims() == 2) {
      tensor_ = Tensor(tensor_.data(), host.dtype(), {host.dim(0), host.dim(1)}, DeviceKind::kCuda);
    }
    check(cudaMemcpy(tensor_.data(), host.data(), bytes_, cudaMemcpyHostToDevice), "upload");
  }
  ~DeviceTensor() { cudaFree(tensor_.data()); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const Tensor& tensor() const { return tensor_; }
  // Makes every float a NaN, so that an element nobody wrote is seen.
  void poison() const { check(cudaMemset(tensor_.data(), 0xFF, bytes_), "poison"); }
  // Waits for the device, and copies to a tensor of the same shape.
  void download(const Tensor& host) const {
    check(cudaDeviceSynchronize(), "kernels under test");
    check(cudaMemcpy(host.data(), tensor_.data(), bytes_, cudaMemcpyDeviceToHost), "download");
  }

 private:
  static void* allocate(std::size_t bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, bytes), "memory for a test");
    return data;
  }

  std::size_t bytes_;
  Tensor tensor_;
};

}  // namespace quire::cuda::testing
