#pragma once

#include <vector>

#include "ops/ops.h"

namespace quire {

// A matrix whose rows can be looked up.
class RowWeights : public LinearWeights {
 public:
  using LinearWeights::LinearWeights;

  // One row as float32.
  virtual void read_row(std::int64_t row, float* out) const = 0;
};

// A CPU without any acceleration: every op is the reference (ops/reference), and here are those that know how
// weights are packed, as plain. Ops run as they are called.
class ReferenceBackend : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  DeviceKind device() const override { return DeviceKind::kCpu; }

  std::size_t total_memory() const override;
  Buffer allocate(std::size_t bytes, MemoryKind kind) override;
  void copy(const Tensor& dst, const Tensor& src) override;

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override;
  std::size_t linear_bytes(std::span<const WeightGroup> parts, DType dtype) const override;
  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override;
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override;
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override;
  void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights, const ExpertRouting& routing,
               const Tensor& workspace) override;

 private:
  std::vector<float> scratch_;          // rows widened to float32
  std::vector<float> coded_row_;        // one of a matrix of codes
  std::vector<float> expert_sums_;      // [tokens, hidden_size]
  std::vector<std::byte> expert_rows_;  // of one expert's tokens
};

}  // namespace quire
