// What chunks of the gated delta rule are to their states: see delta_chunks.cuh.
#include "backends/cuda/kernels/delta_chunks.cuh"
#include "backends/cuda/kernels/scan.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
static_assert(kChunk == 16 * kWarps);
constexpr int kSolverStride = kChunk + 4;  // floats of a row

struct alignas(256) PrepareShared {
  __half keys[kChunk * kKeyDim];
  union {
    __half queries[kChunk * kKeyDim];
    __half scores[2][kChunk * kChunk];  // of two value heads
  };
  float scales[2][kChunk];  // of keys and of queries: what their powers of two leave
  float decays[2][kChunk];  // of two value heads: logarithms, summed from the chunk's start on
  float betas[2][kChunk];
  float solver[2][kChunk * kSolverStride];  // Aᵀ right of the diagonal, (I + A)⁻¹ from it to the left
};

// Normalises rows of keys, by the first half of a warp, and of queries.
template <typename T>
__device__ void load_keys(const ChunkArgs<T>& args, const ChunkRows& rows, int head, PrepareShared& shared,
                          ChunkKeys& out) {
  constexpr int kAtOnce = 8;  // rows on their way
  const int lane = static_cast<int>(threadIdx.x) % 32, column = lane % 16 * 8;
  const bool is_key = lane < 16;
  const int first = (head + (is_key ? args.num_key_heads : 0)) * kKeyDim + column;  // of qkv
  __half* near = is_key ? shared.keys : shared.queries;
  __half* far = is_key ? out.keys : out.queries;
  const int top = static_cast<int>(threadIdx.x) / 32 * 16;
  for (int row = top; row < top + 16; row += kAtOnce) {
    Vec<T, 8> raw[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (row + i < rows.count) raw[i] = load_vec<8>(args.qkv[rows.first + row + i] + first);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(widen(raw[i].values[j]), widen(raw[i].values[j]), squares);
      const float inverse = 1.0F / sqrtf(sum_of_lanes<8, 1>(squares) + 1e-6F);
      const float power = __uint_as_float(__float_as_uint(inverse) & 0x7F800000U);
      Vec<std::uint32_t, 4> halves;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        halves.values[j] =
            pack(power * widen(raw[i].values[2 * j]), power * widen(raw[i].values[2 * j + 1]), __half());
      const int at = place<kKeyDim>(row + i, column);
      store_vec(reinterpret_cast<std::uint32_t*>(near + at), halves);
      store_vec(reinterpret_cast<std::uint32_t*>(far + at), halves);
      if (lane % 16 == 0)
        shared.scales[lane / 16][row + i] =
            inverse / power / (is_key ? 1.0F : sqrtf(static_cast<float>(kKeyDim)));
    }
  }
}

// Of the value head of this warp, two tokens a lane.
template <typename T>
__device__ void load_rates(const ChunkArgs<T>& args, const ChunkRows& rows, int head, float* decays,
                           float* betas) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float rate = -expf(args.a_log[head]), bias = args.dt_bias[head];
  float logs[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = 2 * lane + i;
    betas[token] = 0;
    if (token >= rows.count) continue;
    const T* rates = args.rates[rows.first + token] + head;
    const float a = widen(rates[args.num_value_heads]) + bias;
    logs[i] = rate * (a > 20 ? a : log1pf(expf(a)));
    betas[token] = 1.0F / (1.0F + expf(-widen(*rates)));
  }
  const float sum = inclusive_sum_of_warp(logs[0] + logs[1]);
  const float before = __shfl_up_sync(~0U, sum, 1);
  decays[2 * lane] = (lane > 0 ? before : 0) + logs[0];
  decays[2 * lane + 1] = sum;
}

// This warp's 16 rows of K Kᵀ and Q Kᵀ up to the diagonal.
__device__ void multiply_keys(const PrepareShared& shared, float (&keys)[8][4], float (&queries)[8][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const std::uint32_t own_keys = corner_at<kKeyDim>(left_corner<kKeyDim>(shared.keys), 16 * warp, 0);
  const std::uint32_t own_queries = corner_at<kKeyDim>(left_corner<kKeyDim>(shared.queries), 16 * warp, 0);
  const std::uint32_t all = right_corner<kKeyDim>(shared.keys);
#pragma unroll
  for (int step = 0; step < kKeyDim; step += 16) {
    std::uint32_t key[4], query[4], right[4];
    load_matrices(key, corner_at<kKeyDim>(own_keys, 0, step));
    load_matrices(query, corner_at<kKeyDim>(own_queries, 0, step));
#pragma unroll
    for (int block = 0; block < kWarps; ++block) {
      if (block > warp) continue;
      load_matrices(right, corner_at<kKeyDim>(all, 16 * block, step));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_add<__half>(keys[2 * block + i], key, right[2 * i], right[2 * i + 1]);
        multiply_add<__half>(queries[2 * block + i], query, right[2 * i], right[2 * i + 1]);
      }
    }
  }
}

// Of one value head, from this warp's rows of the products: Aᵀ and G * Q Kᵀ.
__device__ void store_products(PrepareShared& shared, int of, const float (&keys)[8][4],
                               const float (&queries)[8][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n > 2 * warp + 1) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 16 * warp + lane / 4 + 8 * half, first = 8 * n + lane % 4 * 2;
      float scores[2];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int j = first + side;
        const float fade = j <= i ? expf(shared.decays[of][i] - shared.decays[of][j]) : 0;
        const float scale = fade * shared.scales[0][j];
        scores[side] = scale * shared.scales[1][i] * queries[n][2 * half + side];
        if (j < i)
          shared.solver[of][j * kSolverStride + i] =
              scale * shared.scales[0][i] * shared.betas[of][i] * keys[n][2 * half + side];
      }
      *reinterpret_cast<std::uint32_t*>(shared.scores[of] + place<kChunk>(i, first)) =
          pack(scores[0], scores[1], __half());
    }
  }
}

// Column `column` of (I + A)⁻¹, by a thread: forward substitution, 16 rows at a time. Others' columns are
// not looked at.
__device__ void solve_column(float* solver, int column) {
  const int first = column / 32 * 32;  // of this warp
  for (int top = first; top < kChunk; top += 16) {
    float rows[16] = {};
    const auto subtract = [&](int from, float value) {
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const auto a = load_vec<4>(solver + from * kSolverStride + top + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) rows[i + j] = fmaf(-a.values[j], value, rows[i + j]);
      }
    };
    for (int from = first; from < top; ++from)
      subtract(from, from >= column ? solver[from * kSolverStride + column] : 0);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float value = rows[i] + (top + i == column ? 1.0F : 0.0F);
      subtract(top + i, value);  // of the rows below; what the others get, nobody reads
      if (column <= top + i) solver[(top + i) * kSolverStride + column] = value;
    }
  }
}

__device__ void store_rule(const PrepareShared& shared, int of, ChunkRule& out) {
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kChunk * kChunk / 8; i += kThreads) {
    const int row = i / (kChunk / 8), column = i % (kChunk / 8) * 8;
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      values[j] = column + j <= row
                      ? shared.solver[of][row * kSolverStride + column + j] * shared.betas[of][column + j]
                      : 0;
    Vec<std::uint32_t, 4> halves;
#pragma unroll
    for (int j = 0; j < 4; ++j) halves.values[j] = pack(values[2 * j], values[2 * j + 1], __half());
    store_vec(reinterpret_cast<std::uint32_t*>(out.solution + place<kChunk>(row, column)), halves);
    store_vec(out.scores + 8 * i, load_vec<8>(shared.scores[of] + 8 * i));
  }
  const float* decays = shared.decays[of];
  if (thread < kChunk) {
    const float decay = expf(decays[thread]), last = decays[kChunk - 1];
    out.factors.seen[thread] = decay * shared.scales[0][thread];
    out.factors.read[thread] = decay * shared.scales[1][thread];
    out.factors.kept[thread] = expf(last - decays[thread]) * shared.scales[0][thread];
    if (thread == 0) out.factors.decay = expf(last);
  }
}

// A block a key head of a chunk, with the value heads that share it two at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads, 3) prepare_chunks_kernel(const ChunkArgs<T> args) {
  extern __shared__ __align__(1024) unsigned char chunk_memory[];
  auto& shared = *reinterpret_cast<PrepareShared*>(chunk_memory);
  const int key_head = static_cast<int>(blockIdx.x), group = args.num_value_heads / args.num_key_heads;
  const auto chunk = static_cast<std::int64_t>(blockIdx.y);
  const auto thread = static_cast<int>(threadIdx.x);
  admit_next_kernel();
  wait_for_kernels();
  const int number = args.begin + static_cast<int>(chunk);
  const LongSpan span = args.spans[span_of(args, number)];
  const ChunkRows rows = rows_of(span, rows_of(args, span), number);
  load_keys(args, rows, key_head, shared, args.keys[chunk * args.num_key_heads + key_head]);
  __syncthreads();
  float keys[8][4] = {}, queries[8][4] = {};
  multiply_keys(shared, keys, queries);
  for (int first = 0; first < group; first += 2) {
    const int count = min(2, group - first), head = key_head * group + first;
    const int own = thread / (kThreads / 2);  // which of the two
    if (thread / 32 < count)
      load_rates(args, rows, head + thread / 32, shared.decays[thread / 32], shared.betas[thread / 32]);
    __syncthreads();
    for (int of = 0; of < count; ++of) store_products(shared, of, keys, queries);
    __syncthreads();
    if (own < count) solve_column(shared.solver[own], thread % kChunk);
    __syncthreads();
    for (int of = 0; of < count; ++of)
      store_rule(shared, of, args.rules[chunk * args.num_value_heads + head + of]);
    __syncthreads();
  }
}

}  // namespace

template <typename T>
void prepare_chunks(const LaunchContext& context, const ChunkArgs<T>& args) {
  allow_shared_bytes<prepare_chunks_kernel<T>>(sizeof(PrepareShared));
  launch(context, "delta_prepare", prepare_chunks_kernel<T>, dim3(args.num_key_heads, args.end - args.begin),
         kThreads, sizeof(PrepareShared), args);
}
template void prepare_chunks(const LaunchContext&, const ChunkArgs<BFloat16>&);
template void prepare_chunks(const LaunchContext&, const ChunkArgs<Float16>&);

}  // namespace quire::cuda
