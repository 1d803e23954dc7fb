#include "backends/cpu/simd/simd_backend.h"

#include <sys/mman.h>

#include <algorithm>

#include "backends/cpu/simd/packed_weights.h"
#include "base/error.h"

namespace quire {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Elements from which on an element-wise op is worth a second thread: some 10 µs of work.
constexpr std::int64_t kThreadedElements = 1 << 15;

const simd::Kernels& kernels_of(CpuIsa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return simd::kAvx2Kernels;
    case CpuIsa::kAvx512:
      return simd::kAvx512Kernels;
    case CpuIsa::kAvx512Bf16:
      return simd::kAvx512Bf16Kernels;
#endif
    default:
      break;
  }
  QUIRE_CHECK(false, "no kernels for {}", to_string(isa));
}

const float* floats_or_null(const Tensor& tensor) { return tensor.data_as<const float>(); }

simd::CacheView view_of(const KvCacheLayer& cache) {
  const Tensor& keys = cache.keys;
  for (int i = 0; i < 3; ++i) QUIRE_CHECK(keys.stride(i) == cache.values.stride(i));
  return {keys.data(),    cache.values.data(), keys.dtype(), keys.stride(0),
          keys.stride(1), keys.stride(2),      keys.dim(2)};
}

}  // namespace

SimdBackend::SimdBackend(CpuIsa isa, int num_threads)
    : kernels_(kernels_of(isa)), pool_(num_threads), sampling_(static_cast<std::size_t>(num_threads)) {}

// Large allocations lie in huge pages where the system has them.
Buffer SimdBackend::allocate(std::size_t bytes, MemoryKind kind) {
  Buffer buffer = ReferenceBackend::allocate(bytes, kind);
  if (bytes >= 2 * kHugePage) madvise(buffer.data(), bytes, MADV_HUGEPAGE);  // a wish
  return buffer;
}

void SimdBackend::reserve_scratch(std::size_t floats) {
  if (floats <= scratch_floats_) return;
  scratch_floats_ = (floats + 1023) / 1024 * 1024;
  scratch_ =
      allocate(scratch_floats_ * sizeof(float) * static_cast<std::size_t>(pool_.size()), MemoryKind::kDevice);
}

std::unique_ptr<LinearWeights> SimdBackend::make_linear(std::span<const WeightTensorPtr> parts, DType dtype) {
  QUIRE_CHECK(!parts.empty());
  const std::int64_t in = parts[0]->cols();
  std::int64_t out = 0;
  for (const WeightTensorPtr& part : parts) {
    QUIRE_CHECK(part->cols() == in, "{} has {} columns, not {}", part->name(), part->cols(), in);
    out += part->rows();
  }
  const std::size_t bytes =
      static_cast<std::size_t>(simd::kMaxPassTokens * simd::activation_stride(in)) * sizeof(float);
  if (bytes > activations_.bytes()) activations_ = allocate(bytes, MemoryKind::kDevice);
  reserve_scratch(simd::kLinearScratch);
  auto weights = std::make_unique<PackedWeights>(
      allocate(PackedWeights::packed_bytes(dtype, out, in), MemoryKind::kDevice), dtype, out, in);
  weights->pack(parts);
  return weights;
}

void SimdBackend::linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                         const Tensor& bias) {
  const auto& packed = dynamic_cast<const PackedWeights&>(weights);
  for (std::int64_t first = 0; first < x.dim(0); first += simd::kMaxPassTokens) {
    const std::int64_t tokens = std::min(simd::kMaxPassTokens, x.dim(0) - first);
    const simd::LinearJob job = {packed.data(),
                                 packed.dtype(),
                                 packed.out_features(),
                                 packed.in_features(),
                                 x.rows(first, tokens).data(),
                                 x.dtype(),
                                 x.stride(0),
                                 tokens,
                                 out.rows(first, tokens).data(),
                                 out.dtype(),
                                 out.stride(0),
                                 floats_or_null(bias),
                                 static_cast<float*>(activations_.data())};
    split(tokens, tokens >= simd::kWideTokens,
          [&](std::int64_t begin, std::int64_t end, int) { kernels_.prepare_activations(job, begin, end); });
    split(packed.num_panels(), true, [&](std::int64_t begin, std::int64_t end, int thread) {
      kernels_.linear_panels(job, begin, end, scratch(thread));
    });
  }
}

void SimdBackend::embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                            std::int64_t first_row) {
  const auto& packed = dynamic_cast<const PackedWeights&>(weights);
  const std::int64_t n = ids.dim(0);
  split(n, n >= 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t row = ids.data_as<const std::int32_t>()[t] - first_row;
      float* values = out.data_as<float>() + t * out.stride(0);
      if (row < 0 || row >= packed.out_features()) {
        std::fill_n(values, packed.in_features(), 0.0F);
      } else {
        packed.read_row(row, values);
      }
    }
  });
}

void SimdBackend::rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) {
  const simd::NormJob job = {
      out.data(),  out.dtype(), out.stride(0),          x.data_as<float>(), x.stride(0), nullptr,
      DType::kF32, 0,           floats_or_null(weight), x.dim(1),           eps};
  split(x.dim(0), x.numel() >= kThreadedElements,
        [&](std::int64_t begin, std::int64_t end, int) { kernels_.norm(job, begin, end); });
}

void SimdBackend::add_rms_norm(const Tensor& out, const Tensor& residual, const Tensor& x,
                               const Tensor& weight, float eps) {
  const simd::NormJob job = {
      out.data(), out.dtype(), out.stride(0), residual.data_as<float>(), residual.stride(0),
      x.data(),   x.dtype(),   x.stride(0),   floats_or_null(weight),    x.dim(1),
      eps};
  split(x.dim(0), x.numel() >= kThreadedElements,
        [&](std::int64_t begin, std::int64_t end, int) { kernels_.norm(job, begin, end); });
}

void SimdBackend::silu_mul(const Tensor& out, const Tensor& gate_up) {
  const simd::SiluJob job = {out.data(),    gate_up.data(),    out.dtype(),
                             out.stride(0), gate_up.stride(0), out.dim(1)};
  split(out.dim(0), out.numel() >= kThreadedElements,
        [&](std::int64_t begin, std::int64_t end, int) { kernels_.silu_mul(job, begin, end); });
}

void SimdBackend::prepare_attention(const AttentionInput& input, const KvCacheLayer& cache,
                                    const AttentionBatch& batch) {
  reserve_scratch(static_cast<std::size_t>(input.head_dim));
  simd::PrepareJob job = {};
  job.qkv = input.qkv.data();
  job.qkv_stride = input.qkv.stride(0);
  job.cache = view_of(cache);
  job.q_norm = floats_or_null(input.q_norm);
  job.k_norm = floats_or_null(input.k_norm);
  job.norm_eps = input.norm_eps;
  if (input.cos_sin.defined()) {
    job.cos_sin = floats_or_null(input.cos_sin);
    job.cos_sin_stride = input.cos_sin.stride(0);
    job.rotary_dim = input.cos_sin.dim(1);
  }
  job.num_heads = input.num_heads;
  job.num_kv_heads = input.num_kv_heads;
  job.head_dim = input.head_dim;
  job.positions = batch.positions.data_as<const std::int32_t>();
  job.slots = batch.slot_mapping.data_as<const std::int32_t>();
  split(batch.num_tokens, input.qkv.numel() >= kThreadedElements,
        [&](std::int64_t begin, std::int64_t end, int thread) {
          kernels_.prepare_attention(job, begin, end, scratch(thread));
        });
}

void SimdBackend::plan_attention(const AttentionBatch& batch, std::int64_t num_kv_heads,
                                 std::int64_t tokens_of_item) {
  items_.clear();
  for (std::int64_t s = 0; s < batch.num_sequences; ++s) {
    const std::int64_t begin = batch.query_starts.data_as<const std::int32_t>()[s];
    const std::int64_t end = batch.query_starts.data_as<const std::int32_t>()[s + 1];
    const std::int64_t seq_len = batch.seq_lens.data_as<const std::int32_t>()[s];
    const std::int64_t table_row = batch.table_rows.data_as<const std::int32_t>()[s];
    const auto* blocks =
        batch.block_tables.data_as<const std::int32_t>() + table_row * batch.block_tables.stride(0);
    for (std::int64_t t = begin; t < end; t += tokens_of_item) {
      for (std::int64_t head = 0; head < num_kv_heads; ++head) {
        items_.push_back({t, std::min(tokens_of_item, end - t), seq_len - (end - 1 - t), blocks, head});
      }
    }
  }
}

void SimdBackend::attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                            const AttentionBatch& batch, float scale) {
  const std::int64_t dim = cache.keys.dim(3);
  const std::int64_t kv_heads = cache.keys.dim(1);
  const std::int64_t group = q.dim(1) / dim / kv_heads;
  const std::int64_t tokens = std::max<std::int64_t>(1, simd::kQueryRows / group);
  reserve_scratch(simd::attention_scratch(tokens * group, dim));
  plan_attention(batch, kv_heads, tokens);
  const simd::AttentionJob job = {q.data(),       q.stride(0), out.data(), out.stride(0),
                                  view_of(cache), group,       dim,        scale};
  next_item_.store(0, std::memory_order_relaxed);
  // Whoever is free takes the next item: long contexts and short ones even out.
  pool_.run([&](int thread) {
    for (std::size_t i = next_item_.fetch_add(1, std::memory_order_relaxed); i < items_.size();
         i = next_item_.fetch_add(1, std::memory_order_relaxed)) {
      kernels_.attention(job, items_[i], scratch(thread));
    }
  });
}

}  // namespace quire
