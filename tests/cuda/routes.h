#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <random>
#include <vector>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/experts.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda::testing {

// Where tokens go, on both sides.
class Routes {
 public:
  Routes(std::int64_t tokens, std::int64_t top_k)
      : experts_(static_cast<std::size_t>(tokens * top_k)),
        weights_(experts_.size()),
        host_{Tensor(experts_.data(), DType::kI32, {tokens, top_k}),
              Tensor(weights_.data(), DType::kF32, {tokens, top_k})},
        device_experts_(host_.experts),
        device_weights_(host_.weights) {}

  const ExpertRouting& host() const { return host_; }
  ExpertRouting device() const { return {device_experts_.tensor(), device_weights_.tensor()}; }
  const std::vector<std::int32_t>& experts() const { return experts_; }
  const std::vector<float>& weights() const { return weights_; }

  void fetch() {
    device_experts_.download(host_.experts);
    device_weights_.download(host_.weights);
  }
  // Random ones; every fourth token goes to the first experts, so that some have many and some none.
  void draw(int num_experts, std::mt19937& random) {
    const std::int64_t tokens = host_.experts.dim(0);
    quire::testing::Matrix logits(DType::kF32, tokens, num_experts, random, 2.0F);
    for (std::int64_t t = 0; t < tokens; t += 4) {
      for (std::int64_t j = 0; j < host_.experts.dim(1); ++j)
        logits.tensor().rows(t, 1).data_as<float>()[j] += 20.0F;
    }
    ReferenceBackend().route_experts(host_, logits.tensor(), {});
    upload(device_experts_, host_.experts);
    upload(device_weights_, host_.weights);
  }

 private:
  static void upload(const DeviceTensor& to, const Tensor& from) {
    check(cudaMemcpy(to.tensor().data(), from.data(), from.bytes(), cudaMemcpyHostToDevice), "upload");
  }

  std::vector<std::int32_t> experts_;
  std::vector<float> weights_;
  ExpertRouting host_;
  DeviceTensor device_experts_, device_weights_;
};

}  // namespace quire::cuda::testing
