// All-reduce with residual add and norm, over peer memory.
//
// What is small goes in one trip: each rank writes all its rows to all others, and norms all. What is large
// goes in two: row t to its owner, rank t % N, which adds up, norms, and sends what has become of it to all;
// residual rows stay with their owners. Who waits for the second trip waits for an owner that waits for first
// trips alone.
//
// Bytes a rank of N sends for n bytes: (N - 1) n in one trip, 2 n (N - 1) / N in two. On H200s, whose links
// carry 450 GB/s a direction, 64 MiB in two trips reach 311 among four and 313 between two
// (bench/cuda/all_reduce_bench).
#include "backends/cuda/kernels/norm.cuh"
#include "backends/cuda/kernels/peer_collectives.h"
#include "backends/cuda/kernels/peer_exchange.cuh"

namespace quire::cuda {
namespace {

// A row that a block of threads adds up and norms; a thread holds kHeld vectors of it.
template <typename T, int kRanks, int kHeld, NormForm kForm>
class SummedRow {
 public:
  static constexpr int kWidth = 16 / sizeof(T);

  // Before wait_for_kernels(): the weights are there before any kernel.
  __device__ explicit SummedRow(const NormArgs<T, T>& args) : args_(args) {
    if constexpr (kForm != NormForm::kCopy)
      for_held([&](int v, int c) { weight_[v] = load_vec<kWidth>(args_.weight + c); });
  }

  // f(held vector, column) for this thread's.
  template <typename F>
  __device__ void for_held(F&& f) const {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      const int column = static_cast<int>(threadIdx.x + v * blockDim.x) * kWidth;
      if (column < args_.columns) f(v, column);
    }
  }
  // Of rows that lie one behind the other in a slot.
  __device__ unsigned vector_of(unsigned row, int column) const {
    return (row * args_.columns + column) / kWidth;
  }
  __device__ uint4 words_of(unsigned row, int column) const {
    return sendable(as_words<T>(load_vec<kWidth>(args_.x[row] + column)));
  }

  // Adds up `row`, of which the others' parts are row `place` of the inbox, and norms it. sent(column, words)
  // is called with what comes out. By all threads.
  template <typename Sent>
  __device__ void finish(Exchange<kRanks>& exchange, const Peers& peers, unsigned row, unsigned place,
                         Sent&& sent) {
    float* residual = args_.residual[row];
    Vec<float, kWidth> held[kHeld];
    for_held([&](int v, int c) {
      const auto own = load_vec<kWidth>(args_.x[row] + c);
      held[v] = load_vec<kWidth>(residual + c);
      uint4 words[kRanks];
      exchange.receive(vector_of(place, c), words);
      const auto sum = sum_of_ranks<T>(peers, own, words);
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        held[v].values[i] = args_.sum_scale * (held[v].values[i] + args_.scale * widen(sum.values[i]));
      store_vec(residual + c, held[v]);
    });
    const auto columns = static_cast<float>(args_.columns);
    Normed<kForm> normed{};
    float sum = 0;
    if constexpr (kForm == NormForm::kLayer) {
      for_held([&](int v, int) { sum += sum_of(held[v]); });
      normed.center = block_sum(sum) / columns;
      __syncthreads();
      sum = 0;
    }
    if constexpr (kForm != NormForm::kCopy) {
      for_held([&](int v, int) { sum += squares(held[v], kForm == NormForm::kLayer ? normed.center : 0); });
      normed.inverse = rsqrtf(block_sum(sum) / columns + args_.eps);
    }
    T* out = args_.out[row];
    for_held([&](int v, int c) {
      const auto values = normed.template of<T>(held[v], weight_[v], args_.bias + c);
      store_vec(out + c, values);
      sent(c, as_words<T>(values));
    });
    __syncthreads();  // before the next row's sums
  }

 private:
  const NormArgs<T, T>& args_;
  Vec<float, kWidth> weight_[kHeld];
};

template <typename T, int kRanks, int kHeld, NormForm kForm>
__device__ void one_trip(Exchange<kRanks>& exchange, SummedRow<T, kRanks, kHeld, kForm>& summed,
                         const Peers& peers, unsigned rows) {
  const auto send = [&](unsigned row) {
    summed.for_held([&](int, int c) { exchange.send(summed.vector_of(row, c), summed.words_of(row, c)); });
  };
  const auto receive = [&](unsigned row) { summed.finish(exchange, peers, row, row, [](int, uint4) {}); };
  exchange_all(exchange, blockIdx.x, gridDim.x, rows, send, receive);
}

// The second trip goes through the upper half of the slots.
template <typename T, int kRanks, int kHeld, NormForm kForm>
__device__ void two_trips(Exchange<kRanks>& exchange, SummedRow<T, kRanks, kHeld, kForm>& summed,
                          const Peers& peers, const NormArgs<T, T>& args, unsigned rows) {
  const unsigned size = peers.size;
  const std::int64_t upper = static_cast<std::int64_t>(peers.slot_bytes / 2 / 16);
  // Row place * size + owner is that owner's row number `place`.
  const auto for_others = [&](unsigned place, auto&& f) {
#pragma unroll
    for (int owner = 0; owner < kRanks; ++owner)
      if (exchange.is_other(owner) && place * size + owner < rows) f(owner, place * size + owner);
  };
  for (unsigned place = blockIdx.x; place * size < rows; place += gridDim.x) {
    for_others(place, [&](int owner, unsigned row) {
      summed.for_held(
          [&](int, int c) { exchange.send_to(owner, summed.vector_of(place, c), summed.words_of(row, c)); });
    });
  }
  exchange.begin_ending();
  for (unsigned place = blockIdx.x; place * size + peers.rank < rows; place += gridDim.x) {
    summed.finish(exchange, peers, place * size + peers.rank, place, [&](int c, uint4 normed) {
      exchange.send(upper + summed.vector_of(place, c), sendable(normed));
    });
  }
  for (unsigned place = blockIdx.x; place * size < rows; place += gridDim.x) {
    summed.for_held([&](int, int c) {
      uint4 words[kRanks];
      exchange.receive(upper + summed.vector_of(place, c), words, static_cast<int>(rows - place * size));
      for_others(place,
                 [&](int owner, unsigned row) { store_vec(args.out[row] + c, as_values<T>(words[owner])); });
    });
  }
  exchange.end();
}

template <typename T, int kRanks, int kHeld, NormForm kForm, int kTrips>
__global__ void __launch_bounds__(kPeerThreads)
    norm_kernel(const __grid_constant__ Peers peers, const __grid_constant__ NormArgs<T, T> args,
                unsigned rows) {
  admit_next_kernel();
  SummedRow<T, kRanks, kHeld, kForm> summed(args);
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  if constexpr (kTrips == 1) {
    one_trip(exchange, summed, peers, rows);
  } else {
    two_trips(exchange, summed, peers, args, rows);
  }
}

// Up to so many bytes one trip takes less time than two. Between two ranks it never sends more; there two
// trips gain because each row is normed once.
std::size_t one_trip_bytes(const Peers& peers) {
  return peers.size > 2 ? std::size_t{512} << 10 : std::size_t{6} << 20;
}

std::int64_t rows_of_slot(const Peers& peers, const Tensor& x) {
  return static_cast<std::int64_t>(peers.slot_bytes / size_of(x.dtype())) / x.dim(1);
}

}  // namespace

bool peer_all_reduce_add_norm_supports(const Tensor& out, const Tensor& residual, const Tensor& x,
                                       const NormParams& params) {
  const int width = 16 / static_cast<int>(size_of(x.dtype()));
  const bool aligned = splits_into(out, width) && splits_into(residual, width) && splits_into(x, width) &&
                       splits_into(params.weight, width) && splits_into(params.bias, width);
  return x.dtype() == out.dtype() && aligned && x.dim(1) <= 2 * kPeerThreads * width;
}

// In two trips every rank has rows in every launch, and half a slot holds two of a rank's at the least.
int peer_norm_trips(const Peers& peers, const Tensor& x) {
  const bool fits = x.dim(0) >= peers.size && rows_of_slot(peers, x) >= 4;
  return x.bytes() > one_trip_bytes(peers) && fits ? 2 : 1;
}

void peer_all_reduce_add_norm(const LaunchContext& context, const Peers& peers, const Tensor& out,
                              const Tensor& residual, const Tensor& x, float scale,
                              const NormParams& params) {
  dispatch_float(x.dtype(), [&]<typename T>() {
    constexpr int kWidth = 16 / sizeof(T);
    const int held = x.dim(1) <= kPeerThreads * kWidth ? 1 : 2;
    const unsigned threads = ceil_div(ceil_div(x.dim(1), kWidth * held), 32) * 32;
    const std::int64_t of_slot = rows_of_slot(peers, x);
    const int trips = peer_norm_trips(peers, x);
    const std::int64_t at_once = trips == 1 ? of_slot : of_slot / 2 * peers.size;
    require(at_once > 0, "a row to add up is too long");
    const auto run = [&](auto* kernel) {
      for (std::int64_t begin = 0; begin < x.dim(0);) {
        std::int64_t rows = std::min(at_once, x.dim(0) - begin);
        const std::int64_t rest = x.dim(0) - begin - rows;
        if (trips == 2 && rest > 0 && rest < peers.size) rows -= peers.size;  // too few for all ranks
        const auto args = norm_args<T, T>(out.rows(begin, rows), residual.rows(begin, rows),
                                          x.rows(begin, rows), scale, params);
        launch(context, "all_reduce_add_norm", kernel,
               grid_of(peers, ceil_div(rows, trips == 1 ? 1 : peers.size), threads), threads, 0, peers, args,
               rows);
        begin += rows;
      }
    };
    dispatch_ranks(peers, [&]<int kRanks>() {
      dispatch<1, 2>(trips, [&]<int kTrips>() {
        dispatch<1, 2>(held, [&]<int kHeld>() {
          dispatch_form(params, [&]<NormForm kForm>() { run(norm_kernel<T, kRanks, kHeld, kForm, kTrips>); });
        });
      });
    });
  });
}

}  // namespace quire::cuda
