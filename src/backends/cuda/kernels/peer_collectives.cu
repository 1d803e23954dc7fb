// All-reduce, all-reduce with residual add and norm, and all-gather, whole or of a share of the rows, over
// peer memory.
//
// In one trip each rank writes all it has to all others. Between two GPUs that moves no more than any other
// way; among N, N / 2 times as much, for the latency of one trip. What is large and to be normed goes in two:
// row t to its owner, rank t % N, which adds up, norms, and sends what has become of it to all; residual rows
// stay with their owners.
//
// An inbox word that has not come is kEmpty, which is never sent: it is a NaN (or two), and another takes its
// place. So data need no flags and no fences; the reader polls the data themselves, and empties them again.
// An inbox has two slots, used by turns. Who has finished a turn has had something from every rank that the
// rank sent in this turn, thus after it had emptied all of the turn before; so two turns on, the slot is
// free. The number of the turn lies on the device, since a recorded graph passes the same arguments each
// time.
//
// A thread that waits for a first trip has sent its own, one that waits for a second waits for an owner that
// waits for first trips alone, and all blocks of a launch are on the device at once (Peers::max_blocks):
// ranks cannot wait for each other for ever.
//
// Bytes a rank of N sends for n bytes: (N - 1) n in one trip, 2 n (N - 1) / N in two. The links of four H200s
// (NVLink, 450 GB/s a direction) take 348 GB/s of stores from each to all others at once, of any kind, and
// 354 by the driver's copies; sums with norm of 64 MiB reach
// 311 (bench/cuda/all_reduce_bench).
#include <algorithm>

#include "backends/cuda/kernels/norm.cuh"
#include "backends/cuda/kernels/peer_collectives.h"

namespace quire::cuda {
namespace {

constexpr unsigned kEmpty = 0xFFFFFFFF;
constexpr unsigned kOtherNan = 0x7FFF7FFF;  // in every float type, too
constexpr unsigned kPatience = 1 << 12;     // reads until the host is told, some milliseconds

__device__ uint4 sendable(uint4 words) {
  const auto mend = [](unsigned word) { return word == kEmpty ? kOtherNan : word; };
  return {mend(words.x), mend(words.y), mend(words.z), mend(words.w)};
}

__device__ bool is_complete(uint4 words) {
  return words.x != kEmpty && words.y != kEmpty && words.z != kEmpty && words.w != kEmpty;
}

__device__ void put(uint4* to, uint4 words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ uint4 peek(const uint4* from) {
  uint4 words;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}

template <typename T>
__device__ uint4 as_words(const Vec<T, 16 / sizeof(T)>& values) {
  return *reinterpret_cast<const uint4*>(&values);
}
template <typename T>
__device__ Vec<T, 16 / sizeof(T)> as_values(const uint4& words) {
  return *reinterpret_cast<const Vec<T, 16 / sizeof(T)>*>(&words);
}

// One collective, as a thread sees it. kRanks: the most there are.
template <int kRanks>
class Exchange {
 public:
  // After wait_for_kernels().
  __device__ explicit Exchange(const Peers& peers) : peers_(peers), turn_(*peers.turn) {}

  __device__ bool is_other(int rank) const { return rank < peers_.size && rank != peers_.rank; }

  // This rank's vector `index` to another, or to all others.
  __device__ void send_to(int rank, std::int64_t index, uint4 words) const {
    put(place(rank, peers_.rank) + index, words);
  }
  __device__ void send(std::int64_t index, uint4 words) const {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_other(rank)) send_to(rank, index, words);
    }
  }

  // Vector `index` of all others below `ranks`, to words[rank].
  __device__ void receive(std::int64_t index, uint4 (&words)[kRanks], int ranks = kRanks) {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_other(rank) && rank < ranks) words[rank] = peek(place(peers_.rank, rank) + index);
    }
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_other(rank) && rank < ranks) wait(place(peers_.rank, rank) + index, rank, words[rank]);
    }
  }

  // By every thread of every block: counts the blocks that know the turn, whose number may then change. What
  // comes between hides how long that takes.
  __device__ void begin_ending() {
    __syncthreads();
    if (threadIdx.x == 0) blocks_before_ = atomicAdd(&peers_.turn[1], 1U);
  }
  __device__ void end() const {
    if (threadIdx.x != 0 || blocks_before_ + 1 != gridDim.x) return;
    peers_.turn[1] = 0;
    peers_.turn[0] = turn_ + 1;
  }

 private:
  __device__ uint4* place(int owner, int sender) const {
    const std::size_t slot = (turn_ & 1) * static_cast<std::size_t>(peers_.size) + sender;
    return reinterpret_cast<uint4*>(peers_.inboxes[owner] + slot * peers_.slot_bytes);
  }

  // Until the words, read once already, are there. Empties their place.
  __device__ void wait(uint4* from, int rank, uint4& words) {
    for (unsigned reads = 1; !is_complete(words) && !abandoned_; ++reads) {
      if (reads % kPatience == 0) tell_whom(rank);
      words = peek(from);
    }
    put(from, {kEmpty, kEmpty, kEmpty, kEmpty});
  }

  __device__ void tell_whom(int rank) {
    volatile PeerSigns* const signs = peers_.signs;
    signs->waiting = std::uint64_t{turn_} << 8 | static_cast<unsigned>(rank + 1);
    abandoned_ = signs->abandoned != 0;
  }

  const Peers& peers_;
  unsigned turn_;
  unsigned blocks_before_ = 0;
  bool abandoned_ = false;
};

// In one trip: send(i) for this thread's i < count of all threads', then receive(i).
template <int kRanks, typename Send, typename Receive>
__device__ void exchange_all(Exchange<kRanks>& exchange, unsigned first, unsigned step, unsigned count,
                             Send&& send, Receive&& receive) {
  for (unsigned i = first; i < count; i += step) send(i);
  exchange.begin_ending();
  for (unsigned i = first; i < count; i += step) receive(i);
  exchange.end();
}

// The sum over the ranks in their order, of which this one's is `own`.
template <typename T, int kRanks>
__device__ Vec<T, 16 / sizeof(T)> sum_of_ranks(const Peers& peers, const Vec<T, 16 / sizeof(T)>& own,
                                               const uint4 (&words)[kRanks]) {
  constexpr int kWidth = 16 / sizeof(T);
  float sums[kWidth];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank >= peers.size) break;
    const auto part = rank == peers.rank ? own : as_values<T>(words[rank]);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      sums[i] = rank == 0 ? widen(part.values[i]) : sums[i] + widen(part.values[i]);
  }
  Vec<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.values[i] = narrow<T>(sums[i]);
  return result;
}

template <typename T, int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    reduce_kernel(const __grid_constant__ Peers peers, T* data, unsigned count) {
  constexpr int kWidth = 16 / sizeof(T);
  admit_next_kernel();
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const auto own = [&](unsigned index) {
    if ((index + 1) * kWidth <= count) return load_vec<kWidth>(data + index * kWidth);
    Vec<T, kWidth> values{};
    for (unsigned i = index * kWidth; i < count; ++i) values.values[i - index * kWidth] = data[i];
    return values;
  };
  const auto receive = [&](unsigned index) {
    const auto mine = own(index);
    uint4 words[kRanks];
    exchange.receive(index, words);
    const auto sum = sum_of_ranks<T>(peers, mine, words);
    if ((index + 1) * kWidth <= count) {
      store_vec(data + index * kWidth, sum);
    } else {
      for (unsigned i = index * kWidth; i < count; ++i) data[i] = sum.values[i - index * kWidth];
    }
  };
  exchange_all(
      exchange, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x, (count + kWidth - 1) / kWidth,
      [&](unsigned index) { exchange.send(index, sendable(as_words<T>(own(index)))); }, receive);
}

// A row that a block of threads adds up and norms; a thread holds kHeld vectors of it. kCentered: LayerNorm.
template <typename T, int kRanks, int kHeld, bool kCentered>
class SummedRow {
 public:
  static constexpr int kWidth = 16 / sizeof(T);

  // Before wait_for_kernels(): the weights are there before any kernel.
  __device__ explicit SummedRow(const NormArgs<T, T>& args) : args_(args) {
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
    return sendable(as_words<T>(load_vec<kWidth>(args_.x + row * args_.x_stride + column)));
  }

  // Adds up `row`, of which the others' parts are row `place` of the inbox, and norms it. sent(column, words)
  // is called with what comes out. By all threads.
  template <typename Sent>
  __device__ void finish(Exchange<kRanks>& exchange, const Peers& peers, unsigned row, unsigned place,
                         Sent&& sent) {
    float* residual = args_.residual + row * args_.residual_stride;
    Vec<float, kWidth> held[kHeld];
    for_held([&](int v, int c) {
      const auto own = load_vec<kWidth>(args_.x + row * args_.x_stride + c);
      held[v] = load_vec<kWidth>(residual + c);
      uint4 words[kRanks];
      exchange.receive(vector_of(place, c), words);
      const auto sum = sum_of_ranks<T>(peers, own, words);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) held[v].values[i] += args_.scale * widen(sum.values[i]);
      store_vec(residual + c, held[v]);
    });
    const auto columns = static_cast<float>(args_.columns);
    Normed<kCentered> normed{};
    float sum = 0;
    if constexpr (kCentered) {
      for_held([&](int v, int) { sum += sum_of(held[v]); });
      normed.center = block_sum(sum) / columns;
      __syncthreads();
      sum = 0;
    }
    for_held([&](int v, int) { sum += squares(held[v], kCentered ? normed.center : 0); });
    normed.inverse = rsqrtf(block_sum(sum) / columns + args_.eps);
    T* out = args_.out + row * args_.out_stride;
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

template <typename T, int kRanks, int kHeld, bool kCentered>
__global__ void __launch_bounds__(kPeerThreads)
    reduce_norm_kernel(const __grid_constant__ Peers peers, const __grid_constant__ NormArgs<T, T> args,
                       unsigned rows) {
  admit_next_kernel();
  SummedRow<T, kRanks, kHeld, kCentered> summed(args);
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const auto send = [&](unsigned row) {
    summed.for_held([&](int, int c) { exchange.send(summed.vector_of(row, c), summed.words_of(row, c)); });
  };
  const auto receive = [&](unsigned row) { summed.finish(exchange, peers, row, row, [](int, uint4) {}); };
  exchange_all(exchange, blockIdx.x, gridDim.x, rows, send, receive);
}

// In two trips. The second goes through the upper half of the slots.
template <typename T, int kRanks, int kHeld, bool kCentered>
__global__ void __launch_bounds__(kPeerThreads)
    scatter_norm_kernel(const __grid_constant__ Peers peers, const __grid_constant__ NormArgs<T, T> args,
                        unsigned rows) {
  admit_next_kernel();
  SummedRow<T, kRanks, kHeld, kCentered> summed(args);
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const unsigned size = peers.size;
  const std::int64_t upper = static_cast<std::int64_t>(peers.slot_bytes / 2 / 16);
  // Row place * size + owner is that owner's row number `place`.
  const auto for_others = [&](unsigned place, auto&& f) {
#pragma unroll
    for (int owner = 0; owner < kRanks; ++owner) {
      if (exchange.is_other(owner) && place * size + owner < rows) f(owner, place * size + owner);
    }
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
      for_others(place, [&](int owner, unsigned row) {
        store_vec(args.out + row * args.out_stride + c, as_values<T>(words[owner]));
      });
    });
  }
  exchange.end();
}

// Words of 4 bytes, kWidth of them a vector; a vector takes 16 bytes of a slot. Rank r gets rows from
// r * share on, and where there are no more of them the last one again: every rank gets something, always.
struct CopyArgs {
  const unsigned* in;
  unsigned* out;
  unsigned rows, vectors;  // that a rank gets; vectors of a row
  unsigned share, last_row;
  std::int64_t in_stride, out_stride, sender_stride;
};

template <int kWidth, int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    copy_kernel(const __grid_constant__ Peers peers, const __grid_constant__ CopyArgs args) {
  admit_next_kernel();
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const auto keep = [&](unsigned index, int rank, uint4 words) {
    unsigned* to = args.out + (index / args.vectors) * args.out_stride + rank * args.sender_stride +
                   (index % args.vectors) * kWidth;
    if constexpr (kWidth == 4) {
      *reinterpret_cast<uint4*>(to) = words;
    } else {
      *to = words.x;
    }
  };
  const auto read = [&](unsigned row, unsigned index) {
    const unsigned* from = args.in + row * args.in_stride + (index % args.vectors) * kWidth;
    uint4 words{};
    if constexpr (kWidth == 4) {
      words = *reinterpret_cast<const uint4*>(from);
    } else {
      words.x = *from;
    }
    return sendable(words);
  };
  const auto send = [&](unsigned index) {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= peers.size) break;
      const uint4 words = read(min(rank * args.share + index / args.vectors, args.last_row), index);
      if (rank == peers.rank) {
        keep(index, rank, words);
      } else {
        exchange.send_to(rank, index, words);
      }
    }
  };
  const auto receive = [&](unsigned index) {
    uint4 words[kRanks];
    exchange.receive(index, words);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (exchange.is_other(rank)) keep(index, rank, words[rank]);
    }
  };
  exchange_all(exchange, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x,
               args.rows * args.vectors, send, receive);
}

void require(bool holds, const char* what) { check(holds ? cudaSuccess : cudaErrorInvalidValue, what); }

// Calls f.template operator()<kRanks>() with room for all ranks.
template <typename F>
void dispatch_ranks(const Peers& peers, F&& f) {
  require(peers.size >= 2 && peers.size <= kMaxPeers, "number of ranks");
  if (peers.size == 2) {
    f.template operator()<2>();
  } else if (peers.size <= 4) {
    f.template operator()<4>();
  } else {
    f.template operator()<kMaxPeers>();
  }
}

// Blocks of `threads` for so many pieces of work, all on the device at once.
dim3 grid_of(const Peers& peers, std::int64_t pieces, unsigned threads) {
  // No multiprocessor takes fewer than 16 blocks, if they have the threads.
  const std::int64_t most = std::int64_t{peers.max_blocks} * std::min(kPeerThreads / threads, 16U);
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, most)));
}

constexpr unsigned kFlatThreads = 256;

std::int64_t words_of(const Tensor& tensor, std::int64_t elements) {
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(tensor.dtype()));
  require(bytes % 4 == 0 && reinterpret_cast<std::uintptr_t>(tensor.data()) % 4 == 0,
          "rows to gather are no whole words");
  return bytes / 4;
}

// rows: that a rank gets.
template <int kWidth>
void copy_rows(const LaunchContext& context, const Peers& peers, CopyArgs args, std::int64_t rows) {
  const auto at_once = static_cast<std::int64_t>(peers.slot_bytes / 16 / args.vectors);
  require(at_once > 0, "a row to gather is too long");
  for (std::int64_t begin = 0; begin < rows; begin += at_once) {
    args.rows = static_cast<unsigned>(std::min(at_once, rows - begin));
    const dim3 grid =
        grid_of(peers, ceil_div(std::int64_t{args.rows} * args.vectors, kFlatThreads), kFlatThreads);
    dispatch_ranks(peers, [&]<int kRanks>() {
      launch(context, "all_gather", copy_kernel<kWidth, kRanks>, grid, dim3(kFlatThreads), 0, peers, args);
    });
    args.in += args.rows * args.in_stride;
    args.last_row -= args.rows;
    args.out += args.rows * args.out_stride;
  }
}

// Of `in` to each rank the rows from rank * share on, as many as `out` has.
void copy_side_by_side(const LaunchContext& context, const Peers& peers, const Tensor& out, const Tensor& in,
                       std::int64_t share) {
  const std::int64_t words = words_of(in, in.dim(1));
  CopyArgs args{.in = in.data_as<const unsigned>(),
                .out = out.data_as<unsigned>(),
                .rows = 0,
                .vectors = static_cast<unsigned>(words),
                .share = static_cast<unsigned>(share),
                .last_row = static_cast<unsigned>(in.dim(0) - 1),
                .in_stride = words_of(in, in.stride(0)),
                .out_stride = words_of(out, out.stride(0)),
                .sender_stride = words};
  const int width = 16 / static_cast<int>(size_of(in.dtype()));
  if (splits_into(in, width) && splits_into(out, width)) {
    args.vectors /= 4;
    copy_rows<4>(context, peers, args, out.dim(0));
  } else {
    copy_rows<1>(context, peers, args, out.dim(0));
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

template <typename T, int kRanks>
auto norm_kernel_of(int trips, int held, bool centered) {
  if (trips == 1) {
    if (held == 1)
      return centered ? reduce_norm_kernel<T, kRanks, 1, true> : reduce_norm_kernel<T, kRanks, 1, false>;
    return centered ? reduce_norm_kernel<T, kRanks, 2, true> : reduce_norm_kernel<T, kRanks, 2, false>;
  }
  if (held == 1)
    return centered ? scatter_norm_kernel<T, kRanks, 1, true> : scatter_norm_kernel<T, kRanks, 1, false>;
  return centered ? scatter_norm_kernel<T, kRanks, 2, true> : scatter_norm_kernel<T, kRanks, 2, false>;
}

}  // namespace

void clear_inbox(const LaunchContext& context, std::byte* inbox, std::size_t bytes) {
  check(cudaMemsetAsync(inbox, kEmpty & 0xFF, bytes, context.stream), "clearing an inbox");
}

void peer_all_reduce(const LaunchContext& context, const Peers& peers, const Tensor& tensor) {
  require(tensor.contiguous() && reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0,
          "a tensor to add up is not contiguous or not aligned");
  dispatch_float(tensor.dtype(), [&]<typename T>() {
    dispatch_ranks(peers, [&]<int kRanks>() {
      const auto at_once = static_cast<std::int64_t>(peers.slot_bytes / sizeof(T));
      for (std::int64_t begin = 0; begin < tensor.numel(); begin += at_once) {
        const std::int64_t count = std::min(at_once, tensor.numel() - begin);
        const dim3 grid =
            grid_of(peers, ceil_div(ceil_div(count, 16 / sizeof(T)), kFlatThreads), kFlatThreads);
        launch(context, "all_reduce", reduce_kernel<T, kRanks>, grid, dim3(kFlatThreads), 0, peers,
               tensor.data_as<T>() + begin, static_cast<unsigned>(count));
      }
    });
  });
}

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
    NormArgs<T, T> args{.out = out.data_as<T>(),
                        .residual = residual.data_as<float>(),
                        .x = x.data_as<const T>(),
                        .weight = params.weight.data_as<const float>(),
                        .bias = params.bias.data_as<const float>(),
                        .out_stride = out.stride(0),
                        .residual_stride = residual.stride(0),
                        .x_stride = x.stride(0),
                        .columns = static_cast<int>(x.dim(1)),
                        .scale = scale,
                        .eps = params.eps};
    const int held = args.columns <= kPeerThreads * kWidth ? 1 : 2;
    const unsigned threads = ceil_div(ceil_div(args.columns, kWidth * held), 32) * 32;
    const bool centered = params.bias.defined();
    const std::int64_t of_slot = rows_of_slot(peers, x);
    const int trips = peer_norm_trips(peers, x);
    const std::int64_t at_once = trips == 1 ? of_slot : of_slot / 2 * peers.size;
    require(at_once > 0, "a row to add up is too long");
    dispatch_ranks(peers, [&]<int kRanks>() {
      const auto kernel = norm_kernel_of<T, kRanks>(trips, held, centered);
      for (std::int64_t begin = 0; begin < x.dim(0);) {
        std::int64_t rows = std::min(at_once, x.dim(0) - begin);
        const std::int64_t rest = x.dim(0) - begin - rows;
        if (trips == 2 && rest > 0 && rest < peers.size) rows -= peers.size;  // too few for all ranks
        launch(context, "all_reduce_add_norm", kernel,
               grid_of(peers, ceil_div(rows, trips == 1 ? 1 : peers.size), threads), dim3(threads), 0, peers,
               args, static_cast<unsigned>(rows));
        args.x += rows * args.x_stride;
        args.out += rows * args.out_stride;
        args.residual += rows * args.residual_stride;
        begin += rows;
      }
    });
  });
}

void peer_all_gather(const LaunchContext& context, const Peers& peers, const Tensor& out, const Tensor& in) {
  copy_side_by_side(context, peers, out, in, 0);
}

void peer_gather_share(const LaunchContext& context, const Peers& peers, const Tensor& out,
                       const Tensor& in) {
  copy_side_by_side(context, peers, out, in, out.dim(0));
}

}  // namespace quire::cuda
