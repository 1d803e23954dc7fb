#include "backends/cpu/simd/simd_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "backends/cpu/simd/packed_codes.h"
#include "backends/cpu/simd/packed_weights.h"
#include "base/error.h"

namespace quire {
namespace {

struct SpanPlan final : AttentionPlan {
  std::vector<simd::AttentionSpan> spans;
};

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// The multiply-adds of a product that are worth waking a thread for, some 5 µs.
constexpr std::int64_t kProductsOfPart = 1 << 17;

const simd::Kernels& kernels_of(CpuIsa isa) {
#if defined(__x86_64__)
  constexpr const simd::Kernels* kByIsa[] = {nullptr, &simd::kAvx2Kernels, &simd::kAvx512Kernels,
                                             &simd::kAvx512Bf16Kernels, &simd::kAmxKernels};
  if (const simd::Kernels* kernels = kByIsa[static_cast<std::size_t>(isa)]) return *kernels;
#endif
  QUIRE_CHECK(false, "no kernels for {}", to_string(isa));
}

const float* floats_or_null(const Tensor& tensor) { return tensor.data_as<const float>(); }
const std::int32_t* ints_of(const Tensor& tensor) { return tensor.data_as<const std::int32_t>(); }
simd::Rows rows_of(const Tensor& tensor) { return {tensor.data(), tensor.dtype(), tensor.stride(0)}; }

simd::StatesView states_of(const Tensor& slots, const StateBatch& batch) {
  return {rows_of(slots), batch.num_sequences, ints_of(batch.query_starts), ints_of(batch.from),
          ints_of(batch.to)};
}

// dtype: of the queries.
simd::CacheView view_of(const KvCacheLayer& cache, DType dtype) {
  const Tensor& keys = cache.keys;
  for (int i = 0; i < 3; ++i) QUIRE_CHECK(keys.stride(i) == cache.values.stride(i));
  return {.keys = keys.data(),
          .values = cache.values.data(),
          .dtype = dtype,
          .block_stride = keys.stride(0),
          .head_stride = keys.stride(1),
          .row_stride = keys.stride(2),
          .block_size = keys.dim(2),
          .code = cache.code,
          .key_scales = cache.key_scales.data_as<float>(),
          .value_scales = cache.value_scales.data_as<float>(),
          .scale_block_stride = cache.key_scales.stride(0),
          .scale_head_stride = cache.key_scales.stride(1)};
}

// Without an update.
simd::NormJob norm_job(const Tensor& out, const Tensor& x, const NormParams& params) {
  return {.out = rows_of(out),
          .x = rows_of(x),
          .weight = floats_or_null(params.weight),
          .bias = floats_or_null(params.bias),
          .n = x.dim(1),
          .eps = params.eps};
}

simd::ActivationJob activation_job(const Tensor& out, const Tensor& x, Activation activation) {
  return {activation, rows_of(out), rows_of(x), out.dim(1)};
}

std::size_t activation_bytes(std::int64_t in_features) {
  return simd::activation_floats(in_features) * sizeof(float);
}

// Of one thread.
std::size_t scratch_floats(std::span<const AttentionShape> shapes) {
  std::size_t most = simd::kLinearScratch;
  for (const AttentionShape& shape : shapes) {
    const std::int64_t rows = std::max<std::int64_t>(simd::kQueryRows, shape.num_heads / shape.num_kv_heads);
    most = std::max(most, simd::attention_scratch(rows, shape.head_dim, shape.code));
  }
  return (most + 1023) / 1024 * 1024;
}

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(CpuIsa isa, int num_threads) {
  if (isa == CpuIsa::kReference) return std::make_unique<ReferenceBackend>();
  return std::make_unique<SimdBackend>(isa, num_threads);
}

SimdBackend::SimdBackend(CpuIsa isa, int num_threads)
    : kernels_(kernels_of(isa)), pool_(num_threads), survivors_(static_cast<std::size_t>(num_threads)) {}

// Large allocations lie in huge pages where the system has them.
Buffer SimdBackend::allocate(std::size_t bytes, MemoryKind kind) {
  if (bytes < kHugePage) return ReferenceBackend::allocate(bytes, kind);
  Buffer whole = ReferenceBackend::allocate(bytes + kHugePage, kind);  // what is not touched costs nothing
  void* data = whole.data();
  std::size_t space = whole.bytes();
  std::align(kHugePage, bytes, data, space);
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish
  return {std::shared_ptr<void>(data, [whole](void*) {}), bytes, DeviceKind::kCpu};
}

void SimdBackend::reserve(std::span<const AttentionShape> shapes) {
  grow(activations_, activation_bytes(widest_));
  scratch_floats_ = std::max(scratch_floats_, scratch_floats(shapes));
  grow(scratch_, scratch_floats_ * sizeof(float) * static_cast<std::size_t>(pool_.size()));
}

std::size_t SimdBackend::reserved_bytes(std::int64_t widest, bool /*has_codes*/,
                                        std::span<const AttentionShape> shapes) const {
  return activation_bytes(widest) +
         scratch_floats(shapes) * sizeof(float) * static_cast<std::size_t>(pool_.size());
}

void SimdBackend::grow(Buffer& buffer, std::size_t bytes) {
  if (bytes > buffer.bytes()) buffer = allocate(bytes, MemoryKind::kDevice);
}

std::size_t SimdBackend::linear_bytes(std::span<const WeightGroup> parts, DType dtype) const {
  return parts.front().format.is_plain() ? PackedWeights::packed_bytes(dtype, shape_of(parts))
                                         : PackedCodes::packed_bytes(quantized_rows(parts));
}

std::unique_ptr<LinearWeights> SimdBackend::make_linear(std::span<const WeightGroup> parts, DType dtype) {
  widest_ = std::max(widest_, shape_of(parts).cols);
  Buffer buffer = allocate(linear_bytes(parts, dtype), MemoryKind::kDevice);
  if (!parts.front().format.is_plain())
    return std::make_unique<PackedCodes>(std::move(buffer), quantized_rows(parts), pool_);
  return std::make_unique<PackedWeights>(std::move(buffer), dtype, *plain_rows(parts), pool_);
}

void SimdBackend::linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                         const Tensor& bias) {
  if (activations_.bytes() < activation_bytes(widest_) || scratch_floats_ == 0) reserve({});
  const auto& panels = dynamic_cast<const PanelWeights&>(weights);
  const auto* coded = dynamic_cast<const PackedCodes*>(&panels);
  for (std::int64_t first = 0; first < x.dim(0); first += simd::kMaxPassTokens) {
    const std::int64_t tokens = std::min(simd::kMaxPassTokens, x.dim(0) - first);
    const simd::LinearJob job = {
        .weights = panels.data(),
        .dtype = panels.dtype(),
        .out_features = weights.out_features(),
        .in_features = weights.in_features(),
        .tokens = tokens,
        .x = rows_of(x.rows(first, tokens)),
        .out = rows_of(out.rows(first, tokens)),
        .bias = floats_or_null(bias),
        .activations = static_cast<float*>(activations_.data()),
        .coded = coded == nullptr ? nullptr : &coded->layout(),
        .padded = coded == nullptr ? simd::round_up(weights.in_features(), 2) : coded->padded(),
        .block = coded == nullptr ? simd::block_depth(tokens) : coded->layout().span};
    if (job.coded != nullptr && job.coded->input.code != InputFormat::Code::kNone)
      run(kernels_.scale_inputs, job, tokens, job.in_features);
    run(kernels_.prepare_activations, job, (job.padded + job.block - 1) / job.block, job.block * tokens);
    run(kernels_.linear_panels, job, simd::round_up(job.out_features, simd::kPanel) / simd::kPanel,
        simd::kPanel * job.in_features * tokens, kProductsOfPart);
  }
}

void SimdBackend::embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                            std::int64_t first_row, float scale) {
  split(ids.dim(0), weights.in_features(), kElementsOfPart, [&](std::int64_t begin, std::int64_t end, int) {
    ReferenceBackend::embedding(out.rows(begin, end - begin), weights, ids.rows(begin, end - begin),
                                first_row, scale);
  });
}

void SimdBackend::norm(const Tensor& out, const Tensor& x, const NormParams& params) {
  run(kernels_.norm, norm_job(out, x, params), x.dim(0), x.dim(1));
}

void SimdBackend::add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                           const NormParams& params) {
  simd::NormJob job = norm_job(out, residual, params);
  job.update = rows_of(x);
  job.update_scale = scale;
  job.sum_scale = params.sum_scale;
  run(kernels_.norm, job, x.dim(0), x.dim(1));
}

void SimdBackend::causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params,
                              const Tensor& state, const StateBatch& batch) {
  const simd::ConvJob job = {.out = rows_of(out),
                             .x = rows_of(x),
                             .weight = rows_of(params.weight),
                             .bias = floats_or_null(params.bias),
                             .activation = params.activation,
                             .width = params.weight.dim(0),
                             .channels = x.dim(1),
                             .states = states_of(state, batch)};
  const std::int64_t parts = (job.channels + simd::kConvChannels - 1) / simd::kConvChannels;
  run(kernels_.causal_conv, job, parts, simd::kConvChannels * batch.num_tokens);
}

void SimdBackend::gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                                   const StateBatch& batch) {
  static_assert(simd::delta_scratch(kMaxDeltaKeyDim) <= simd::kLinearScratch);
  if (scratch_floats_ == 0) reserve({});
  const simd::DeltaRuleJob job = {.out = rows_of(out),
                                  .qkv = rows_of(input.qkv),
                                  .rates = rows_of(input.rates),
                                  .a_log = floats_or_null(input.a_log),
                                  .dt_bias = floats_or_null(input.dt_bias),
                                  .num_key_heads = input.num_key_heads,
                                  .num_value_heads = state.dim(1),
                                  .key_dim = state.dim(2),
                                  .value_dim = state.dim(3),
                                  .states = states_of(state, batch)};
  run(kernels_.gated_delta_rule, job, job.num_value_heads * batch.num_sequences,
      job.key_dim * job.value_dim * batch.num_tokens / batch.num_sequences);
}

void SimdBackend::sigmoid_gate(const Tensor& out, const Tensor& x, const Tensor& gate, bool add) {
  const simd::GateJob job = {rows_of(out), rows_of(x), rows_of(gate), x.dim(1), gate.dim(1) == 1, add};
  run(kernels_.sigmoid_gate, job, x.dim(0), x.dim(1));
}

void SimdBackend::gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate,
                             const NormParams& params) {
  const std::int64_t n = params.weight.dim(0), heads = x.dim(1) / n;
  const simd::GatedNormJob job = {rows_of(out), rows_of(x), rows_of(gate), floats_or_null(params.weight),
                                  heads,        n,          params.eps};
  run(kernels_.gated_norm, job, x.dim(0) * heads, n);
}

void SimdBackend::activate(const Tensor& out, const Tensor& x, Activation activation) {
  run(kernels_.activate, activation_job(out, x, activation), out.dim(0), out.dim(1));
}

void SimdBackend::activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) {
  run(kernels_.activate_gate, activation_job(out, gate_up, activation), out.dim(0), out.dim(1));
}

void SimdBackend::cap(const Tensor& x, float cap) {
  run(kernels_.cap, {rows_of(x), x.dim(1), cap}, x.dim(0), x.dim(1));
}

void SimdBackend::rotate_and_store(const AttentionInput& input, const KvCacheLayer& cache,
                                   const AttentionBatch& batch) {
  const simd::RotateAndStoreJob job = {.qkv = rows_of(input.qkv),
                                       .cache = view_of(cache, input.qkv.dtype()),
                                       .q_norm = floats_or_null(input.q_norm),
                                       .k_norm = floats_or_null(input.k_norm),
                                       .v_norm = floats_or_null(input.v_norm),
                                       .cos_sin = rows_of(input.cos_sin),
                                       .rotary_dim = input.cos_sin.dim(1),
                                       .q_scale = floats_or_null(input.q_scale),
                                       .k_scales = floats_or_null(input.k_scales),
                                       .v_scales = floats_or_null(input.v_scales),
                                       .norm_eps = input.norm_eps,
                                       .norm_after_rotary = input.norm_after_rotary,
                                       .num_heads = input.num_heads,
                                       .num_kv_heads = input.num_kv_heads,
                                       .head_dim = input.head_dim,
                                       .positions = ints_of(batch.positions),
                                       .slots = ints_of(batch.slot_mapping)};
  if (scratch_floats_ == 0) reserve({});
  run(kernels_.rotate_and_store, job, batch.num_tokens, input.qkv.dim(1));
}

std::shared_ptr<const AttentionPlan> SimdBackend::plan_attention(const AttentionBatch& batch,
                                                                 const AttentionShape& shape) {
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t rows = std::max(simd::kQueryRows, group);
  if (scratch_floats_ < scratch_floats({&shape, 1})) reserve({&shape, 1});
  auto plan = std::make_shared<SpanPlan>();
  for (std::int64_t s = 0; s < batch.num_sequences; ++s) {
    const std::int64_t begin = ints_of(batch.query_starts)[s], end = ints_of(batch.query_starts)[s + 1];
    const std::int64_t seq_len = ints_of(batch.seq_lens)[s];
    const std::int64_t table_row = ints_of(batch.table_rows)[s];
    if (seq_len == 0) continue;
    const std::int64_t tokens = std::min(end - begin, rows / group);
    // As many heads as there are rows for, but not so many that a thread gets none.
    const std::int64_t heads =
        std::clamp<std::int64_t>(shape.num_kv_heads * batch.num_sequences / (2 * pool_.size()), 1,
                                 std::min<std::int64_t>(rows / group / tokens, shape.num_kv_heads));
    for (std::int64_t t = begin; t < end; t += tokens) {
      for (std::int64_t head = 0; head < shape.num_kv_heads; head += heads) {
        plan->spans.push_back({head, std::min(heads, shape.num_kv_heads - head), t, std::min(tokens, end - t),
                               seq_len - (end - 1 - t), table_row});
      }
    }
  }
  return plan;
}

void SimdBackend::attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                            const AttentionBatch& batch, const AttentionScores& scores) {
  const std::int64_t dim = cache.keys.dim(3);
  const simd::AttentionJob job = {
      .q = rows_of(q),
      .out = rows_of(out),
      .cache = view_of(cache, q.dtype()),
      .block_tables = ints_of(batch.block_tables),
      .table_stride = batch.block_tables.stride(0),
      .group = q.dim(1) / dim / cache.keys.dim(1),
      .head_dim = dim,
      .scale = scores.scale,
      .cap = scores.cap,
      .window = scores.window == 0 ? std::numeric_limits<std::int32_t>::max() : scores.window,
      .slopes = floats_or_null(scores.alibi_slopes),
      .sinks = floats_or_null(scores.sinks)};
  const std::vector<simd::AttentionSpan>& spans = dynamic_cast<const SpanPlan&>(*batch.plan).spans;
  // The last spans of a prompt see the longest context, and the pool begins with them.
  pool_.run(static_cast<int>(spans.size()),
            [&](int part, int thread) { kernels_.attention(job, spans[part], scratch(thread)); });
}

}  // namespace quire
