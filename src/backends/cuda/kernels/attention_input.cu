// Between the q/k/v projection and attention: RMS norm of q and k, rotary embedding of both, and the new keys
// and values written to their slots of the paged cache. One warp a (token, head), in float32, rounded once.
// Bytes a token: the row of qkv read, as many written (Qwen3-8B, bf16: 12 KiB each way).
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/backend.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;

template <typename T>
struct PrepareArgs {
  T* qkv;
  const float* q_norm;   // null: no norm
  const float* k_norm;   // null: no norm
  const float* cos_sin;  // null: no rotary, and rotary_half is 0
  T* keys;
  T* values;
  const int* positions;
  const int* slots;
  std::int64_t qkv_stride, cos_sin_stride;
  std::int64_t key_block, key_head, key_offset;  // strides
  std::int64_t value_block, value_head, value_offset;
  int num_heads, num_kv_heads, head_dim, rotary_half, block_size;
  float norm_eps;
};

template <int kWidth>
__device__ Vec<float, kWidth> load_or(const float* from, float otherwise) {
  if (from != nullptr) return load_vec<kWidth>(from);
  Vec<float, kWidth> values;
  for (float& value : values.values) value = otherwise;
  return values;
}

template <int kWidth, typename T>
__device__ Vec<float, kWidth> load_wide(const T* from) {
  const auto raw = load_vec<kWidth>(from);
  Vec<float, kWidth> values;
  for (int i = 0; i < kWidth; ++i) values.values[i] = widen(raw.values[i]);
  return values;
}

// kWidth elements of a head, and those half a rotation away: what a lane needs, and nothing from others.
template <int kWidth>
struct Piece {
  Vec<float, kWidth> own, own_weight, partner, partner_weight, cosine, sine;

  __device__ float squares() const {
    float sum = 0;
    for (const float value : own.values) sum += value * value;
    return sum;
  }

  __device__ float result(int i, float inverse, bool rotates, bool first_half) const {
    const float a = own.values[i] * inverse * own_weight.values[i];
    if (!rotates) return a;
    const float b = partner.values[i] * inverse * partner_weight.values[i];
    return first_half ? a * cosine.values[i] - b * sine.values[i] : a * cosine.values[i] + b * sine.values[i];
  }
};

// One query or key head, from `from` to `to`, which may be the same: every lane has read before one writes.
template <int kWidth, typename T>
class HeadTransform {
 public:
  __device__ HeadTransform(const PrepareArgs<T>& args, bool is_key)
      : args_(args), weight_(is_key ? args.k_norm : args.q_norm) {}

  // The norm's weights, which no kernel writes.
  __device__ void load_weights() {
    each([&](Piece<kWidth>& piece, int column) {
      piece.own_weight = load_or<kWidth>(weight_ == nullptr ? nullptr : weight_ + column, 1.0F);
      piece.partner_weight =
          load_or<kWidth>(weight_ == nullptr ? nullptr : weight_ + partner_of(column), 1.0F);
    });
  }

  __device__ void run(const T* from, T* to, int position) {
    const float* cosines = args_.cos_sin + position * args_.cos_sin_stride;
    each([&](Piece<kWidth>& piece, int column) {
      piece.own = load_wide<kWidth>(from + column);
      if (!rotates(column)) return;
      piece.partner = load_wide<kWidth>(from + partner_of(column));
      const int pair = min(column, partner_of(column));
      piece.cosine = load_vec<kWidth>(cosines + pair);
      piece.sine = load_vec<kWidth>(cosines + args_.rotary_half + pair);
    });
    const float inverse = weight_ == nullptr ? 1.0F : inverse_rms();
    __syncwarp();
    each([&](Piece<kWidth>& piece, int column) {
      Vec<T, kWidth> values;
      for (int i = 0; i < kWidth; ++i) {
        values.values[i] = narrow<T>(piece.result(i, inverse, rotates(column), column < args_.rotary_half));
      }
      store_vec(to + column, values);
    });
  }

 private:
  static constexpr int kPieces = kMaxHeadDim / (32 * kWidth);

  template <typename F>
  __device__ void each(F&& f) {
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const int column = (p * 32 + static_cast<int>(threadIdx.x) % 32) * kWidth;
      if (column < args_.head_dim) f(pieces_[p], column);
    }
  }

  __device__ bool rotates(int column) const { return column < 2 * args_.rotary_half; }
  __device__ int partner_of(int column) const {
    if (!rotates(column)) return column;
    return column < args_.rotary_half ? column + args_.rotary_half : column - args_.rotary_half;
  }

  __device__ float inverse_rms() {
    float squares = 0;
    each([&](Piece<kWidth>& piece, int) { squares += piece.squares(); });
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    return rsqrtf(squares / static_cast<float>(args_.head_dim) + args_.norm_eps);
  }

  const PrepareArgs<T>& args_;
  const float* weight_;
  Piece<kWidth> pieces_[kPieces];
};

template <int kWidth, typename T>
__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const __grid_constant__ PrepareArgs<T> args) {
  cudaTriggerProgrammaticLaunchCompletion();
  const std::int64_t token = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  const int first_value = args.num_heads + args.num_kv_heads;
  if (h >= first_value + args.num_kv_heads) return;
  const bool is_key = h >= args.num_heads;
  HeadTransform<kWidth, T> transform(args, is_key);
  if (h < first_value) transform.load_weights();
  cudaGridDependencySynchronize();

  T* from = args.qkv + token * args.qkv_stride + h * args.head_dim;
  const int slot = args.slots[token];
  const int position = args.positions[token];
  if (!is_key) {
    transform.run(from, from, position);
    return;
  }
  if (slot < 0) return;
  const std::int64_t block = slot / args.block_size;
  const std::int64_t offset = slot % args.block_size;
  if (h < first_value) {
    const int head = h - args.num_heads;
    transform.run(from, args.keys + block * args.key_block + head * args.key_head + offset * args.key_offset,
                  position);
    return;
  }
  const int head = h - first_value;
  T* to = args.values + block * args.value_block + head * args.value_head + offset * args.value_offset;
  for (int c = static_cast<int>(threadIdx.x) % 32 * kWidth; c < args.head_dim; c += 32 * kWidth)
    store_vec(to + c, load_vec<kWidth>(from + c));
}

}  // namespace

void prepare_attention(const LaunchContext& context, const AttentionInput& input, const KvCacheLayer& cache,
                       const AttentionBatch& batch) {
  if (batch.num_tokens == 0) return;
  if (input.head_dim > kMaxHeadDim) check(cudaErrorInvalidValue, "heads of more than 256 dimensions");
  const Tensor& table = input.cos_sin;
  const int half = table.defined() ? static_cast<int>(table.dim(1) / 2) : 0;
  const dim3 grid(static_cast<unsigned>(batch.num_tokens),
                  ceil_div(input.num_heads + 2 * input.num_kv_heads, kWarps));
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    const PrepareArgs<T> args{.qkv = input.qkv.data_as<T>(),
                              .q_norm = input.q_norm.data_as<const float>(),
                              .k_norm = input.k_norm.data_as<const float>(),
                              .cos_sin = table.data_as<const float>(),
                              .keys = cache.keys.data_as<T>(),
                              .values = cache.values.data_as<T>(),
                              .positions = batch.positions.data_as<const int>(),
                              .slots = batch.slot_mapping.data_as<const int>(),
                              .qkv_stride = input.qkv.stride(0),
                              .cos_sin_stride = table.defined() ? table.stride(0) : 0,
                              .key_block = cache.keys.stride(0),
                              .key_head = cache.keys.stride(1),
                              .key_offset = cache.keys.stride(2),
                              .value_block = cache.values.stride(0),
                              .value_head = cache.values.stride(1),
                              .value_offset = cache.values.stride(2),
                              .num_heads = input.num_heads,
                              .num_kv_heads = input.num_kv_heads,
                              .head_dim = input.head_dim,
                              .rotary_half = half,
                              .block_size = static_cast<int>(cache.keys.dim(2)),
                              .norm_eps = input.norm_eps};
    // Vectors must not straddle two heads, nor the middle of a rotation.
    const Tensor head = input.qkv.columns(0, input.head_dim);
    const Tensor cosines = half > 0 ? table.columns(0, half) : table;
    dispatch_width<4>(
        {head, cosines, input.q_norm, input.k_norm, cache.keys, cache.values}, [&]<int kWidth>() {
          launch(context, "prepare_attention", prepare_kernel<kWidth, T>, grid, dim3(kWarps * 32), 0, args);
        });
  });
}

}  // namespace quire::cuda
