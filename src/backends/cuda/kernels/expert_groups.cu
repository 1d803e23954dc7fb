// Routed experts for many tokens: the (token, expert) pairs are sorted by expert, their rows of x gathered in
// that order, multiplied group by group (grouped_matmul.cu), and each token's results summed. Five launches,
// whatever the routing. Beside the products it moves 8 bytes a pair and hidden column: x and the results are
// each written and read once.
#include <algorithm>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / 32;
constexpr int kSumThreads = 256;

// Calls f(pair, is_own) for a warp's part of the pairs, in order, for whole warps at a time.
template <typename F>
__device__ void for_part(const RoutingArgs& routing, int expert, F&& f) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int part = (routing.pairs + kSortThreads - 1) / kSortThreads * 32;
  const int end = min((warp + 1) * part, routing.pairs);
#pragma unroll 4
  for (int first = warp * part; first < end; first += 32) {
    const int pair = first + lane;
    f(pair, pair < end ? routing.expert(pair) - expert : 1);
  }
}

// A stable counting sort: each block counts the pairs of its own expert and of those before, and then knows
// where its own go.
__global__ void __launch_bounds__(kSortThreads)
    sort_kernel(const RoutingArgs routing, int* offsets, int* tokens, int* places) {
  __shared__ int own_of_warps[kSortWarps], before_of_warps[kSortWarps];
  admit_next_kernel();
  wait_for_kernels();
  const int expert = static_cast<int>(blockIdx.x);
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int own = 0, before = 0;
  for_part(routing, expert, [&](int, int difference) {
    own += difference == 0 ? 1 : 0;
    before += difference < 0 ? 1 : 0;
  });
  own = __reduce_add_sync(~0U, own);
  before = __reduce_add_sync(~0U, before);
  if (lane == 0) {
    own_of_warps[warp] = own;
    before_of_warps[warp] = before;
  }
  __syncthreads();
  static_assert(kSortWarps == 32);
  const int begin = __reduce_add_sync(~0U, before_of_warps[lane]);
  if (threadIdx.x == 0) {
    offsets[expert] = begin;
    if (blockIdx.x + 1 == gridDim.x) offsets[gridDim.x] = routing.pairs;
  }
  int place = begin + __reduce_add_sync(~0U, lane < warp ? own_of_warps[lane] : 0);
  for_part(routing, expert, [&](int pair, int difference) {
    const unsigned found = __ballot_sync(~0U, difference == 0);
    if (difference == 0) {
      const int mine = place + __popc(found & ((1U << lane) - 1));
      tokens[mine] = pair / routing.top_k;
      places[pair] = mine;
    }
    place += __popc(found);
  });
}

// One block a token.
template <int kWidth, typename T>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const RoutingArgs routing, T* out, const T* results, const int* places, int columns,
               std::int64_t out_stride, const float* bias) {
  __shared__ int rows[kMaxTopK], experts[kMaxTopK];
  __shared__ float weights[kMaxTopK];
  admit_next_kernel();
  wait_for_kernels();
  const auto token = static_cast<int>(blockIdx.x);
  if (threadIdx.x < 32) {
    const Choice choice = sorted_choice(routing, token);
    if (static_cast<int>(threadIdx.x) < routing.top_k) {
      rows[threadIdx.x] = places[choice.pair];
      experts[threadIdx.x] = choice.expert;
      weights[threadIdx.x] = choice.weight;
    }
  }
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x) * kWidth; column < columns;
       column += static_cast<int>(blockDim.x) * kWidth) {
    float sums[kWidth] = {};
#pragma unroll 4
    for (int i = 0; i < routing.top_k; ++i) {
      const auto values = load_vec<kWidth>(results + std::int64_t{rows[i]} * columns + column);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float value = widen(values.values[j]);
        if (bias != nullptr) value += bias[std::int64_t{experts[i]} * columns + column + j];
        sums[j] = fmaf(weights[i], value, sums[j]);
      }
    }
    Vec<T, kWidth> total;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) total.values[j] = narrow<T>(sums[j]);
    store_vec(out + token * out_stride + column, total);
  }
}

// grouped_matmul of a matrix of codes: as many experts, or columns of one, at a time as the workspace takes
// in 16 bits.
void dequantized_grouped_matmul(const LaunchContext& context, const Tensor& out, const Tensor& x,
                                const QuantizedMatrix& matrix, const PairGroups& groups,
                                const Tensor& workspace) {
  const std::int64_t num_experts = groups.offsets.dim(0) - 1, n = out.dim(1), cols = matrix.layout.cols;
  const std::int64_t rows = matrix.layout.rows / num_experts, parts = rows / n;  // the gate and up, or down
  const std::int64_t room = static_cast<std::int64_t>(workspace.bytes()) / (2 * cols * parts);
  const std::int64_t step = std::max<std::int64_t>(room / n, 1);
  const std::int64_t width = room < n ? room / QuantizedLayout::kTileRows * QuantizedLayout::kTileRows : n;
  for (std::int64_t first = 0; first < num_experts; first += step) {
    const std::int64_t count = std::min(step, num_experts - first);
    for (std::int64_t column = 0; column < n; column += width) {
      const std::int64_t taken = std::min(width, n - column);
      const Tensor weight(workspace.data(), x.dtype(), {count * parts * taken, cols}, DeviceKind::kCuda);
      if (taken == n) {
        dequantize_rows(context, weight, matrix, first * rows);
      } else {
        for (std::int64_t part = 0; part < parts; ++part)
          dequantize_rows(context, weight.rows(part * taken, taken), matrix,
                          first * rows + part * n + column);
      }
      PairGroups some = groups;
      some.offsets = groups.offsets.rows(first, count + 1);
      if (some.gate.bias != nullptr) some.gate.bias += first * some.gate.expert_stride + column;
      grouped_matmul(context, out.columns(column, taken), x, weight, some);
    }
  }
}

// scratch.rows = the results of the pairs, sorted by expert.
void multiply_pairs(const LaunchContext& context, const ExpertCall& call, const ExpertScratch& scratch,
                    const PairGroups& groups) {
  if (groups.tile_tokens == 0) {
    PairGroups by_token = groups;
    by_token.tokens = scratch.tokens;
    quantized_grouped_matmul(context, scratch.inner, call.x, call.codes->gate_up, by_token);
    quantized_grouped_matmul(context, scratch.rows, scratch.inner, call.codes->down, groups);
    return;
  }
  gather_rows(context, scratch.rows, call.x, scratch.tokens);
  if (call.codes != nullptr) {
    const ExpertCodes& codes = *call.codes;
    dequantized_grouped_matmul(context, scratch.inner, scratch.rows, codes.gate_up, groups, codes.workspace);
    dequantized_grouped_matmul(context, scratch.rows, scratch.inner, codes.down, groups, codes.workspace);
  } else {
    grouped_matmul(context, scratch.inner, scratch.rows, call.gate_up, groups);
    grouped_matmul(context, scratch.rows, scratch.inner, call.down, groups);
  }
}

}  // namespace

bool has_grouped_experts(const ExpertShape& shape, DType dtype) {
  return is_hopper() && dtype != DType::kF32 && shape.num_experts <= kMaxExperts &&
         shape.hidden_size % 8 == 0 && shape.intermediate_size % 8 == 0;
}

void experts_by_group(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                      const ExpertScratch& scratch, int tile_tokens) {
  const RoutingArgs routing(call.routing);
  launch(context, "sorting by expert", sort_kernel, shape.num_experts, kSortThreads, 0, routing,
         scratch.offsets.data_as<int>(), scratch.tokens.data_as<int>(), scratch.places.data_as<int>());
  multiply_pairs(context, call, scratch, {scratch.offsets, gate_of(call, shape), tile_tokens});
  const auto columns = static_cast<int>(shape.hidden_size);
  dispatch_float(call.x.dtype(), [&]<typename T>() {
    dispatch_width<16 / sizeof(T)>({call.out, scratch.rows}, [&]<int kWidth>() {
      const int threads = ceil_div(ceil_div(columns, kWidth), 32) * 32;
      launch(context, "summing experts", sum_kernel<kWidth, T>, call.x.dim(0), std::min(threads, kSumThreads),
             0, routing, call.out.data_as<T>(), scratch.rows.data_as<const T>(),
             scratch.places.data_as<const int>(), columns, call.out.stride(0),
             call.biases.down.data_as<const float>());
    });
  });
}

}  // namespace quire::cuda
