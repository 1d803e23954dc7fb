// What is done to rows one element at a time, or by copying: activations and gating, caps, embedding,
// gathering rows, and the small integer bookkeeping of a step. All are bound by the bytes read and written
// once, or by their launch. Measured on an H200, bench/cuda/elementwise_bench, SiLU gating of 3072 / 12288
// columns in bf16 (6 bytes an element): 0.8 / 0.9 us for one row, 1.9 / 3.6 us for 256, 74 / 296 us for 16384
// (4.1 TB/s, 96 % of what a copy reaches).
#include <algorithm>

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {
namespace {

constexpr int kMaxThreads = 256;

// Queues a kernel whose thread (x, y) works on vector x of row y, and y in the grid's first dimension, which
// is the long one.
template <typename Kernel, typename... Args>
void launch_rows(const LaunchContext& context, const char* name, Kernel* kernel, std::int64_t rows,
                 std::int64_t vectors, const Args&... args) {
  const auto threads = static_cast<unsigned>(std::clamp<std::int64_t>(vectors, 1, kMaxThreads));
  const dim3 block((threads + 31) / 32 * 32);
  launch(context, name, kernel, dim3(rows, ceil_div(vectors, block.x)), block, 0, args...);
}

__device__ inline std::int64_t vector_index() { return std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x; }

struct Cap {
  float limit;
};
__device__ inline float activated(float x, Cap cap) { return cap.limit * tanhf(x / cap.limit); }

// kGated: x has a gate's columns, and behind them as many that it gates.
template <int kWidth, bool kGated, typename T, typename Terms>
__global__ void activate_kernel(RowsOf<T> out, RowsOf<const T> x, std::int64_t columns, Terms terms) {
  admit_next_kernel();
  const std::int64_t column = vector_index() * kWidth;
  if (column >= columns) return;
  const T* at = x[blockIdx.x] + column;
  wait_for_kernels();
  const auto values = load_vec<kWidth>(at);
  Vec<T, kWidth> up, result;
  if constexpr (kGated) up = load_vec<kWidth>(at + columns);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float value = widen(values.values[i]);
    if constexpr (kGated) {
      result.values[i] = narrow<T>(gated(value, widen(up.values[i]), terms));
    } else {
      result.values[i] = narrow<T>(activated(value, terms));
    }
  }
  store_vec(out[blockIdx.x] + column, result);
}

// of_rows: the gate has one element a row.
template <int kWidth, typename T>
__global__ void sigmoid_gate_kernel(RowsOf<T> out, RowsOf<const T> x, RowsOf<const T> gate,
                                    std::int64_t columns, bool of_rows, bool add) {
  admit_next_kernel();
  const std::int64_t column = vector_index() * kWidth;
  if (column >= columns) return;
  wait_for_kernels();
  T* out_at = out[blockIdx.x] + column;
  const T* gate_at = gate[blockIdx.x];
  const auto values = load_vec<kWidth>(x[blockIdx.x] + column);
  Vec<T, kWidth> by{}, result{};
  if (!of_rows) by = load_vec<kWidth>(gate_at + column);
  if (add) result = load_vec<kWidth>(out_at);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float sigmoid = __fdividef(1.0F, 1.0F + expf(-widen(of_rows ? *gate_at : by.values[i])));
    const float gated = widen(values.values[i]) * sigmoid;
    result.values[i] = narrow<T>(add ? widen(result.values[i]) + gated : gated);
  }
  store_vec(out_at, result);
}

template <int kWidth, typename T>
__global__ void embedding_kernel(RowsOf<float> out, RowsOf<const T> weight, const int* ids,
                                 std::int64_t first_row, std::int64_t num_rows, std::int64_t columns,
                                 float scale) {
  admit_next_kernel();
  const std::int64_t column = vector_index() * kWidth;
  if (column >= columns) return;
  wait_for_kernels();
  const std::int64_t row = ids[blockIdx.x] - first_row;
  Vec<float, kWidth> values{};
  if (row >= 0 && row < num_rows) {
    values = load_wide<kWidth>(weight[row] + column);
#pragma unroll
    for (float& value : values.values) value *= scale;
  }
  store_vec(out[blockIdx.x] + column, values);
}

// Strides and columns count units. places: rows of x, or its columns.
template <typename Unit, bool kOfRows>
__global__ void gather_kernel(Unit* out, const Unit* x, const int* places, std::int64_t out_stride,
                              std::int64_t x_stride, std::int64_t columns) {
  admit_next_kernel();
  const std::int64_t column = vector_index();
  if (column >= columns) return;
  wait_for_kernels();
  out[blockIdx.x * out_stride + column] =
      kOfRows ? x[places[blockIdx.x] * x_stride + column] : x[blockIdx.x * x_stride + places[column]];
}

__global__ void fill_tokens_kernel(int* ids, const int* places, const int* tokens, int count) {
  wait_for_kernels();
  admit_next_kernel();  // only now: kernels of the step read states and the cache, which may be copied before
                        // it, ahead
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const int place = places[i];
  if (place >= 0) ids[i] = tokens[place];
}

__global__ void update_block_tables_kernel(RowsOf<int> tables, const int* entries, int count) {
  admit_next_kernel();
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  wait_for_kernels();
  tables[entries[3 * i]][entries[3 * i + 1]] = entries[3 * i + 2];
}

template <typename Unit>
std::int64_t in_units(std::int64_t elements, const Tensor& tensor) {
  return elements * static_cast<std::int64_t>(size_of(tensor.dtype())) /
         static_cast<std::int64_t>(sizeof(Unit));
}

template <bool kGated>
void activate_rows(const LaunchContext& context, const char* name, const Tensor& out, const Tensor& x,
                   Activation activation) {
  if (out.numel() == 0) return;
  // Of a gate, too: the second half of a row must start as well aligned as the first.
  const Tensor first = x.columns(0, out.dim(1));
  dispatch_float(out.dtype(), [&]<typename T>() {
    dispatch_width<16 / sizeof(T)>({out, first}, [&]<int kWidth>() {
      dispatch_activation(activation, [&](auto terms) {
        launch_rows(context, name, activate_kernel<kWidth, kGated, T, decltype(terms)>, out.dim(0),
                    ceil_div(out.dim(1), kWidth), out, x, out.dim(1), terms);
      });
    });
  });
}

}  // namespace

void activate_gate(const LaunchContext& context, const Tensor& out, const Tensor& gate_up,
                   Activation activation) {
  activate_rows<true>(context, "activate_gate", out, gate_up, activation);
}

void activate(const LaunchContext& context, const Tensor& out, const Tensor& x, Activation activation) {
  activate_rows<false>(context, "activate", out, x, activation);
}

void sigmoid_gate(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& gate,
                  bool add) {
  if (out.numel() == 0) return;
  const bool of_rows = gate.dim(1) == 1;
  dispatch_float(out.dtype(), [&]<typename T>() {
    dispatch_width<16 / sizeof(T)>({out, x, of_rows ? x : gate}, [&]<int kWidth>() {
      launch_rows(context, "sigmoid_gate", sigmoid_gate_kernel<kWidth, T>, out.dim(0),
                  ceil_div(out.dim(1), kWidth), out, x, gate, out.dim(1), of_rows, add);
    });
  });
}

void cap(const LaunchContext& context, const Tensor& x, float cap) {
  if (x.numel() == 0) return;
  dispatch_width<4>({x}, [&]<int kWidth>() {
    launch_rows(context, "cap", activate_kernel<kWidth, false, float, Cap>, x.dim(0),
                ceil_div(x.dim(1), kWidth), x, x, x.dim(1), Cap{cap});
  });
}

void embedding(const LaunchContext& context, const Tensor& out, const Tensor& weight, const Tensor& ids,
               std::int64_t first_row, float scale) {
  if (out.numel() == 0) return;
  dispatch_float(weight.dtype(), [&]<typename T>() {
    dispatch_width<4>({out, weight}, [&]<int kWidth>() {
      launch_rows(context, "embedding", embedding_kernel<kWidth, T>, out.dim(0), ceil_div(out.dim(1), kWidth),
                  out, weight, ids.data_as<const int>(), first_row, weight.dim(0), out.dim(1), scale);
    });
  });
}

void gather_rows(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& rows) {
  if (out.numel() == 0) return;
  const auto run = [&]<typename Unit>() {
    const std::int64_t units = in_units<Unit>(out.dim(1), out);
    launch_rows(context, "gather_rows", gather_kernel<Unit, true>, out.dim(0), units, out.data_as<Unit>(),
                x.data_as<const Unit>(), rows.data_as<const int>(), in_units<Unit>(out.stride(0), out),
                in_units<Unit>(x.stride(0), x), units);
  };
  const int width = 16 / static_cast<int>(size_of(x.dtype()));  // of a unit of 16 bytes
  splits_into(out, width) && splits_into(x, width) ? run.template operator()<uint4>()
                                                   : run.template operator()<std::uint8_t>();
}

void gather_cols(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& cols) {
  if (out.numel() == 0) return;
  const auto run = [&]<typename Unit>() {
    launch_rows(context, "gather_cols", gather_kernel<Unit, false>, out.dim(0), out.dim(1),
                out.data_as<Unit>(), x.data_as<const Unit>(), cols.data_as<const int>(), out.stride(0),
                x.stride(0), out.dim(1));
  };
  size_of(x.dtype()) == 2 ? run.template operator()<std::uint16_t>()
                          : run.template operator()<std::uint32_t>();
}

void take_sampled_tokens(const LaunchContext& context, const Tensor& ids, const Tensor& places,
                         const Tensor& tokens) {
  const auto count = static_cast<int>(ids.dim(0));
  if (count == 0) return;
  launch(context, "fill_tokens", fill_tokens_kernel, ceil_div(count, kMaxThreads), kMaxThreads, 0,
         ids.data_as<int>(), places.data_as<const int>(), tokens.data_as<const int>(), count);
}

void update_block_tables(const LaunchContext& context, const Tensor& tables, const Tensor& entries) {
  const auto count = static_cast<int>(entries.dim(0));
  if (count == 0) return;
  launch(context, "update_block_tables", update_block_tables_kernel, ceil_div(count, kMaxThreads),
         kMaxThreads, 0, tables, entries.data_as<const int>(), count);
}

}  // namespace quire::cuda
