// The experts of each token: the top_k largest of its scores. A warp takes a token: its logits
// lie in registers, and every round finds the largest that is left, the first of equals first.
// Bytes a token: 4 * num_experts read, 8 * top_k written; one token is bound by top_k rounds of two
// reductions. For few tokens the product with the router is part of the kernel: a launch less.
#include <cooperative_groups.h>

#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4;
constexpr unsigned kRouterBlocks = 8;  // of a cluster
constexpr int kRouterWarps = 16;
constexpr int kRouterSteps = 8;      // vectors of a row that a lane reads at a time
constexpr int kMaxRouterTokens = 8;  // more go through a product of matrices

struct RouteArgs {
  int* experts;
  float* weights;
  const float* scales;  // of the experts, or null
  std::int64_t experts_stride, weights_stride;
  int tokens, num_experts, top_k;
  bool sigmoid, normalize;
  float sum_offset, scale;
  const float* bias;  // [num_experts], or null
};

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// A warp chooses the experts of `token` by its logits. kHeld: logits a lane, of experts 32 apart.
template <int kHeld>
__device__ void choose_experts(const RouteArgs& args, int token, const float* logits) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  unsigned left[kHeld];  // ordered; 0: none, or taken
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int expert = i * 32 + lane;
    left[i] = expert >= args.num_experts ? 0
              : args.bias == nullptr     ? ordered(logits[expert])
                                         : ordered(sigmoid(logits[expert]) + args.bias[expert]);
  }
  float top = 0, total = args.normalize ? 0.0F : 1.0F, weight = 0;
  int chosen = 0;
  for (int round = 0; round < args.top_k; ++round) {
    unsigned best = 0;
    int where = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (left[i] > best) best = left[i], where = i * 32 + lane;
    const unsigned largest = __reduce_max_sync(~0U, best);
    const int winner = __reduce_min_sync(~0U, best == largest ? where : kMaxExperts);
    if (round == 0) {
      top = from_ordered(largest);
      if (!args.normalize && !args.sigmoid) {
        total = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) total += left[i] == 0 ? 0.0F : expf(from_ordered(left[i]) - top);
        total = sum_of_lanes<16, 1>(total);
      }
    }
    if (lane == round) {
      chosen = winner;
      weight = args.sigmoid ? sigmoid(logits[winner]) : expf(from_ordered(largest) - top);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i * 32 + lane == winner) left[i] = 0;
  }
  if (args.normalize) total = sum_of_lanes<16, 1>(weight) + args.sum_offset;
  if (lane >= args.top_k) return;
  args.experts[token * args.experts_stride + lane] = chosen;
  const float scale = args.scales == nullptr ? args.scale : args.scale * args.scales[chosen];
  args.weights[token * args.weights_stride + lane] = scale * (weight / total);
}

template <int kHeld>
__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(const RouteArgs args, const float* logits, std::int64_t logits_stride) {
  admit_next_kernel();
  const auto token = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32);
  if (token >= args.tokens) return;
  wait_for_kernels();
  choose_experts<kHeld>(args, token, logits + token * logits_stride);
}

struct RouterArgs {
  const void* x;
  const void* weight;  // [num_experts, hidden]
  std::int64_t x_stride;
  int hidden;
};

// A cluster takes a token, and a warp of it a row of the router at a time, which it reads ahead of x; the
// logits meet in the first block.
template <int kHeld, typename T>
__global__ void __launch_bounds__(kRouterWarps * 32)
    router_kernel(const RouteArgs args, const RouterArgs router) {
  constexpr int kWidth = 16 / sizeof(T);
  constexpr int kStep = kRouterSteps * 32 * kWidth;
  __shared__ float logits[kMaxExperts];
  admit_next_kernel();
  const auto cluster = cooperative_groups::this_cluster();
  const auto rank = static_cast<int>(cluster.block_rank());
  const auto token = static_cast<int>(blockIdx.x / kRouterBlocks);
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  float* meeting_place = cluster.map_shared_rank(logits, 0);
  cluster.sync();  // the first block is there
  const T* x = static_cast<const T*>(router.x) + token * router.x_stride;
  for (int row = warp * kRouterBlocks + rank; row < args.num_experts; row += kRouterWarps * kRouterBlocks) {
    const T* weight = static_cast<const T*>(router.weight) + std::int64_t{row} * router.hidden;
    float sum = 0;
    for (int first = lane * kWidth; first < router.hidden; first += kStep) {
      uint4 weights[kRouterSteps]{}, values[kRouterSteps]{};
#pragma unroll
      for (int i = 0; i < kRouterSteps; ++i) {
        const int column = first + i * 32 * kWidth;
        if (column < router.hidden) weights[i] = load_raw<kWidth>(weight + column);
      }
      wait_for_kernels();
#pragma unroll
      for (int i = 0; i < kRouterSteps; ++i) {
        const int column = first + i * 32 * kWidth;
        if (column < router.hidden) values[i] = load_raw<kWidth>(x + column);
      }
#pragma unroll
      for (int i = 0; i < kRouterSteps; ++i) sum = dot<T>(weights[i], values[i], sum);
    }
    sum = sum_of_lanes<16, 1>(sum);
    if (lane == 0) meeting_place[row] = sum;
  }
  cluster.sync();
  if (rank != 0 || warp != 0) return;
  wait_for_kernels();
  choose_experts<kHeld>(args, token, logits);
}

RouteArgs route_args(const ExpertRouting& out, std::int64_t num_experts, const RouterOptions& options) {
  const RouteArgs args{.experts = out.experts.data_as<int>(),
                       .weights = out.weights.data_as<float>(),
                       .scales = options.expert_scales.data_as<const float>(),
                       .experts_stride = out.experts.stride(0),
                       .weights_stride = out.weights.stride(0),
                       .tokens = static_cast<int>(out.experts.dim(0)),
                       .num_experts = static_cast<int>(num_experts),
                       .top_k = static_cast<int>(out.experts.dim(1)),
                       .sigmoid = options.sigmoid,
                       .normalize = options.normalize,
                       .sum_offset = options.sum_offset,
                       .scale = options.scale,
                       .bias = options.selection_bias.data_as<const float>()};
  const bool supported = args.num_experts <= kMaxExperts && args.top_k <= kMaxTopK;
  require(supported, "route_experts: too many experts");
  return args;
}

}  // namespace

void route_experts(const LaunchContext& context, const ExpertRouting& out, const Tensor& logits,
                   const RouterOptions& options) {
  if (logits.dim(0) == 0) return;
  const RouteArgs args = route_args(out, logits.dim(1), options);
  dispatch_up_to<1, 4, kMaxExperts / 32>(ceil_div(args.num_experts, 32), [&]<int kHeld>() {
    launch(context, "route_experts", route_kernel<kHeld>, ceil_div(args.tokens, kWarps), kWarps * 32, 0, args,
           logits.data_as<const float>(), logits.stride(0));
  });
}

bool routing_linear_supports(const Tensor& x, const Tensor& router) {
  const int width = static_cast<int>(16 / size_of(router.dtype()));
  return is_hopper() && x.dtype() == router.dtype() && x.dim(0) <= kMaxRouterTokens &&
         splits_into(x, width) && splits_into(router, width);
}

void routing_linear(const LaunchContext& context, const ExpertRouting& out, const Tensor& x,
                    const Tensor& router, const RouterOptions& options) {
  if (x.dim(0) == 0) return;
  const RouteArgs args = route_args(out, router.dim(0), options);
  const RouterArgs router_args{
      .x = x.data(), .weight = router.data(), .x_stride = x.stride(0), .hidden = static_cast<int>(x.dim(1))};
  dispatch_float(router.dtype(), [&]<typename T>() {
    dispatch_up_to<1, 4, kMaxExperts / 32>(ceil_div(args.num_experts, 32), [&]<int kHeld>() {
      launch_clusters(context, "routing_linear", router_kernel<kHeld, T>, args.tokens * kRouterBlocks,
                      kRouterBlocks, kRouterWarps * 32, 0, args, router_args);
    });
  });
}

}  // namespace quire::cuda
