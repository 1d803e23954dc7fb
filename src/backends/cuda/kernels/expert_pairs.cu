// Routed experts for few tokens: every (token, expert) pair reads its expert's matrices for itself. Must move
// 3 * hidden * intermediate weights a pair; x, the inner values and out are small.
//
// First kernel: a warp takes one inner value of a pair, reads a row of gate and the same of up, and leaves
// what the gate makes of gate · x and up · x. Second: a warp takes one column of a token's output and goes
// through that row of the token's experts' down matrices, in order of their number, so that one launch sums
// them as well. Both start many 16-byte reads a lane before they use the first, and no sum's order depends on
// the other tokens. In float32 weights may be codes, whose values are computed as they are read.
#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/experts.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/quantized_values.cuh"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kReads = 8;  // of weights, that a lane has under way

template <typename Matrix>
struct PairArgs {
  const void* x;
  Matrix gate_up;
  Matrix down;
  void* inner;
  void* out;
  std::int64_t x_stride, out_stride;
  RoutingArgs routing;
  int hidden, intermediate;
  ExpertGate gate;
  const float* down_bias;
};

// Neighbours of a row of a matrix of weights with so many columns.
template <int kWidth, typename T>
__device__ Raw<kWidth, T> load_weights(const T* matrix, std::int64_t row, int columns, int column) {
  const T* from = matrix + row * columns + column;
  if constexpr (sizeof(T) * kWidth == 16) {
    return load_once(from);
  } else {
    return load_raw<kWidth>(from);
  }
}
template <int kWidth>
__device__ uint4 load_weights(const QuantizedMatrix& matrix, std::int64_t row, int /*columns*/, int column) {
  static_assert(kWidth == 4);
  const float4 values = four_values(matrix, row, column);
  return reinterpret_cast<const uint4&>(values);
}

// The warp's row of the launch, of `rows` for each item.
struct WarpRow {
  int item, row;

  __device__ explicit WarpRow(int rows) {
    const int blocks = (rows + kWarps - 1) / kWarps;
    item = static_cast<int>(blockIdx.x) / blocks;
    row = static_cast<int>(blockIdx.x) % blocks * kWarps + static_cast<int>(threadIdx.x) / 32;
  }
};

template <int kWidth, typename T, typename Matrix>
__global__ void __launch_bounds__(kWarps * 32, 3)
    gate_up_kernel(const __grid_constant__ PairArgs<Matrix> args) {
  constexpr int kStep = 32 * kWidth;
  constexpr int kSteps = kReads / 2;
  const WarpRow at(args.intermediate);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (at.row >= args.intermediate) return;
  wait_for_kernels();
  admit_next_kernel();  // only now: down_kernel reads the routing ahead of its wait
  const int pair = at.item;
  const std::int64_t gate_row = std::int64_t{args.routing.expert(pair)} * 2 * args.intermediate + at.row;
  const std::int64_t up_row = gate_row + args.intermediate;
  const T* x = static_cast<const T*>(args.x) + pair / args.routing.top_k * args.x_stride;
  float gate_sum = 0, up_sum = 0;
  for (int first = lane * kWidth; first < args.hidden; first += kSteps * kStep) {
    Raw<kWidth, T> gates[kSteps]{}, ups[kSteps]{}, values[kSteps]{};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int column = first + i * kStep;
      if (column >= args.hidden) break;
      gates[i] = load_weights<kWidth>(args.gate_up, gate_row, args.hidden, column);
      ups[i] = load_weights<kWidth>(args.gate_up, up_row, args.hidden, column);
      values[i] = load_raw<kWidth>(x + column);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      gate_sum = dot<T>(gates[i], values[i], gate_sum);
      up_sum = dot<T>(ups[i], values[i], up_sum);
    }
  }
  gate_sum = sum_of_lanes<16, 1>(gate_sum);
  up_sum = sum_of_lanes<16, 1>(up_sum);
  if (lane != 0) return;
  static_cast<T*>(args.inner)[std::int64_t{pair} * args.intermediate + at.row] =
      narrow<T>(gated(args.gate, gate_sum, up_sum, args.routing.expert(pair), at.row));
}

template <int kWidth, typename T, typename Matrix>
__global__ void __launch_bounds__(kWarps * 32, 2) down_kernel(const __grid_constant__ PairArgs<Matrix> args) {
  constexpr int kStep = 32 * kWidth;
  admit_next_kernel();
  const WarpRow at(args.hidden);
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (at.row >= args.hidden) return;
  const Choice choice = sorted_choice(args.routing, at.item);
  wait_for_kernels();
  const T* inner = static_cast<const T*>(args.inner);
  float sum = 0;
  int index = 0, begin = 0;  // the next choice to be read, and the column its warp's vectors begin at
  while (index < args.routing.top_k) {
    Raw<kWidth, T> weights[kReads]{}, values[kReads]{};
    float factors[kReads]{};
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      if (index == args.routing.top_k) break;
      const int expert = __shfl_sync(~0U, choice.expert, index);
      const int pair = __shfl_sync(~0U, choice.pair, index);
      factors[i] = __shfl_sync(~0U, choice.weight, index);
      const int column = begin + lane * kWidth;
      if (column < args.intermediate) {
        const std::int64_t row = std::int64_t{expert} * args.hidden + at.row;
        weights[i] = load_weights<kWidth>(args.down, row, args.intermediate, column);
        values[i] = load_raw<kWidth>(inner + std::int64_t{pair} * args.intermediate + column);
      }
      begin += kStep;
      if (begin >= args.intermediate) begin = 0, ++index;
    }
#pragma unroll
    for (int i = 0; i < kReads; ++i) sum = fmaf(factors[i], dot<T>(weights[i], values[i], 0), sum);
  }
  sum = sum_of_lanes<16, 1>(sum);
  if (lane != 0) return;
  sum += bias_sum(args.routing, at.item, args.down_bias, args.hidden, at.row);
  static_cast<T*>(args.out)[at.item * args.out_stride + at.row] = narrow<T>(sum);
}

template <int kWidth, typename T, typename Matrix>
void launch_pairs(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                  const Tensor& inner, const Matrix& gate_up, const Matrix& down) {
  const PairArgs<Matrix> args{.x = call.x.data(),
                              .gate_up = gate_up,
                              .down = down,
                              .inner = inner.data(),
                              .out = call.out.data(),
                              .x_stride = call.x.stride(0),
                              .out_stride = call.out.stride(0),
                              .routing = RoutingArgs(call.routing),
                              .hidden = static_cast<int>(shape.hidden_size),
                              .intermediate = static_cast<int>(shape.intermediate_size),
                              .gate = gate_of(call, shape),
                              .down_bias = call.biases.down.data_as<const float>()};
  launch(context, "experts' gate and up", gate_up_kernel<kWidth, T, Matrix>,
         ceil_div(args.intermediate, kWarps) * args.routing.pairs, kWarps * 32, 0, args);
  launch(context, "experts' down", down_kernel<kWidth, T, Matrix>,
         ceil_div(args.hidden, kWarps) * call.x.dim(0), kWarps * 32, 0, args);
}

}  // namespace

ExpertGate gate_of(const ExpertCall& call, const ExpertShape& shape) {
  const ActivationTerms terms = terms_of(shape.activation);
  ExpertGate gate = {.bias = call.biases.gate_up.data_as<const float>(),
                     .expert_stride = 2 * shape.intermediate_size,
                     .up_stride = shape.intermediate_size,
                     .linear = terms.linear,
                     .cubic = terms.cubic};
  if (shape.activation == Activation::kSwigluOai) gate.limit = kSwigluLimit, gate.up_offset = 1;
  return gate;
}

void experts_by_pair(const LaunchContext& context, const ExpertCall& call, const ExpertShape& shape,
                     const Tensor& inner) {
  if (call.codes != nullptr)
    return launch_pairs<4, float>(context, call, shape, inner, call.codes->gate_up, call.codes->down);
  dispatch_float(call.x.dtype(), [&]<typename T>() {
    dispatch_width<16 / sizeof(T)>({call.x, call.gate_up, call.down, inner}, [&]<int kWidth>() {
      launch_pairs<kWidth, T>(context, call, shape, inner, call.gate_up.data_as<const T>(),
                              call.down.data_as<const T>());
    });
  });
}

}  // namespace quire::cuda
