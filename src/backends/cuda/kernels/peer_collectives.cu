// All-reduce, all-reduce with residual add and norm, and all-gather over peer memory, in one shot: each rank
// writes all it has to all others. Between two GPUs that moves no more than any other way; between N, N / 2
// times what a ring does, for the latency of one trip.
//
// An inbox word that has not come is kEmpty, which is never sent: it is a NaN (or two), and another takes its
// place. So data need no flags and no fences; the reader polls the data themselves, and empties them again.
// An inbox has two slots, used by turns: a rank that sends into a slot again has seen everybody's data of the
// turn between, which they sent when they had emptied it. The number of the turn lies on the device, since a
// recorded graph passes the same arguments each time.
//
// A thread that waits for a part has sent its own, and all blocks of a launch are on the device at once
// (Peers::max_blocks), so ranks cannot wait for each other for ever.
//
// Bytes a rank of N sends for n bytes: (N - 1) n over the link; reads N n, writes n and as much to empty the
// inbox.
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

  // This rank's vector `index` to all others.
  __device__ void send(std::int64_t index, uint4 words) const {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_other(rank)) put(place(rank, peers_.rank) + index, words);
    }
  }

  // Vector `index` of all others, to words[rank].
  __device__ void receive(std::int64_t index, uint4 (&words)[kRanks]) const {
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (is_other(rank)) words[rank] = peek(place(peers_.rank, rank) + index);
    }
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!is_other(rank)) continue;
      uint4* const from = place(peers_.rank, rank) + index;
      for (unsigned reads = 1; !is_complete(words[rank]); ++reads) {
        if (reads % kPatience == 0 && !waits_on(rank)) break;
        words[rank] = peek(from);
      }
      put(from, {kEmpty, kEmpty, kEmpty, kEmpty});
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

  __device__ bool waits_on(int rank) const {
    volatile PeerSigns* const signs = peers_.signs;
    signs->waiting = std::uint64_t{turn_} << 8 | static_cast<unsigned>(rank + 1);
    return signs->abandoned == 0;
  }

  const Peers& peers_;
  unsigned turn_;
  unsigned blocks_before_ = 0;
};

// Calls send(i), and later receive(i), for this thread's i < count of all threads'. Sends run ahead, so that
// the link has work meanwhile, by as much on every rank.
template <int kRanks, typename Send, typename Receive>
__device__ void send_ahead(Exchange<kRanks>& exchange, unsigned first, unsigned step, unsigned count,
                           Send&& send, Receive&& receive) {
  constexpr unsigned kAhead = 4;
  unsigned sent = first;
  const auto send_until = [&](unsigned end) {
    for (; sent < min(end, count); sent += step) send(sent);
  };
  send_until(first + kAhead * step);
  exchange.begin_ending();
  for (unsigned i = first; i < count; i += step) {
    send_until(i + (kAhead + 1) * step);
    receive(i);
  }
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
  send_ahead(
      exchange, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x, (count + kWidth - 1) / kWidth,
      [&](unsigned index) { exchange.send(index, sendable(as_words<T>(own(index)))); }, receive);
}

// A block takes whole rows; a thread holds kHeld vectors of one. kCentered: LayerNorm.
template <typename T, int kRanks, int kHeld, bool kCentered>
__global__ void __launch_bounds__(kPeerThreads)
    reduce_norm_kernel(const __grid_constant__ Peers peers, const __grid_constant__ NormArgs<T, T> args,
                       unsigned rows) {
  constexpr int kWidth = 16 / sizeof(T);
  admit_next_kernel();
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  const auto columns = static_cast<float>(args.columns);
  const auto for_held = [&](auto&& f) {
#pragma unroll
    for (int v = 0; v < kHeld; ++v) {
      if (first + v * step < args.columns) f(v, first + v * step);
    }
  };
  Vec<float, kWidth> weight[kHeld];
  for_held([&](int v, int c) { weight[v] = load_vec<kWidth>(args.weight + c); });  // there before any kernel
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const auto vector_of = [&](unsigned row, int c) { return (row * args.columns + c) / kWidth; };
  const auto send = [&](unsigned row) {
    const T* x = args.x + row * args.x_stride;
    for_held([&](int, int c) {
      exchange.send(vector_of(row, c), sendable(as_words<T>(load_vec<kWidth>(x + c))));
    });
  };
  const auto receive = [&](unsigned row) {
    const T* x = args.x + row * args.x_stride;
    float* residual = args.residual + row * args.residual_stride;
    Vec<float, kWidth> held[kHeld];
    for_held([&](int v, int c) {
      const auto mine = load_vec<kWidth>(x + c);
      held[v] = load_vec<kWidth>(residual + c);
      uint4 words[kRanks];
      exchange.receive(vector_of(row, c), words);
      const auto sum = sum_of_ranks<T>(peers, mine, words);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) held[v].values[i] += args.scale * widen(sum.values[i]);
      store_vec(residual + c, held[v]);
    });
    Normed<kCentered> normed{};
    float sum = 0;
    if constexpr (kCentered) {
      for_held([&](int v, int) { sum += sum_of(held[v]); });
      normed.center = block_sum(sum) / columns;
      __syncthreads();
      sum = 0;
    }
    for_held([&](int v, int) { sum += squares(held[v], kCentered ? normed.center : 0); });
    normed.inverse = rsqrtf(block_sum(sum) / columns + args.eps);
    T* out = args.out + row * args.out_stride;
    for_held([&](int v, int c) { normed.write(out + c, held[v], weight[v], args.bias + c); });
    __syncthreads();  // before the next row's sums
  };
  send_ahead(exchange, blockIdx.x, gridDim.x, rows, send, receive);
}

// Words of 4 bytes, kWidth of them a vector; a vector takes 16 bytes of a slot.
struct CopyArgs {
  const unsigned* in;
  unsigned* out;
  unsigned rows, vectors;  // vectors of a row
  std::int64_t in_stride, out_stride, sender_stride;
  unsigned kept;  // a bit for each rank whose vectors are wanted
};

template <int kWidth, int kRanks>
__global__ void __launch_bounds__(kPeerThreads)
    copy_kernel(const __grid_constant__ Peers peers, const __grid_constant__ CopyArgs args) {
  admit_next_kernel();
  wait_for_kernels();
  Exchange<kRanks> exchange(peers);
  const auto keep = [&](unsigned index, int rank, uint4 words) {
    if ((args.kept >> rank & 1) == 0) return;
    unsigned* to = args.out + (index / args.vectors) * args.out_stride + rank * args.sender_stride +
                   (index % args.vectors) * kWidth;
    if constexpr (kWidth == 4) {
      *reinterpret_cast<uint4*>(to) = words;
    } else {
      *to = words.x;
    }
  };
  const auto send = [&](unsigned index) {
    const unsigned* from =
        args.in + (index / args.vectors) * args.in_stride + (index % args.vectors) * kWidth;
    uint4 words{};
    if constexpr (kWidth == 4) {
      words = *reinterpret_cast<const uint4*>(from);
    } else {
      words.x = *from;
    }
    words = sendable(words);
    exchange.send(index, words);
    keep(index, peers.rank, words);
  };
  const auto receive = [&](unsigned index) {
    uint4 words[kRanks];
    exchange.receive(index, words);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (exchange.is_other(rank)) keep(index, rank, words[rank]);
    }
  };
  send_ahead(exchange, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x,
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
  const std::int64_t most = std::int64_t{peers.max_blocks} * (kPeerThreads / threads);
  return dim3(static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, most)));
}

constexpr unsigned kFlatThreads = 256;

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
    args.out += args.rows * args.out_stride;
  }
}

std::int64_t words_of(const Tensor& tensor, std::int64_t elements) {
  const std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(tensor.dtype()));
  require(bytes % 4 == 0, "rows to gather are no whole words");
  return bytes / 4;
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
    const auto at_once = static_cast<std::int64_t>(peers.slot_bytes / sizeof(T)) / args.columns;
    require(at_once > 0, "a row to add up is too long");
    dispatch_ranks(peers, [&]<int kRanks>() {
      const bool centered = params.bias.defined();
      const auto kernel =
          held == 1
              ? (centered ? reduce_norm_kernel<T, kRanks, 1, true> : reduce_norm_kernel<T, kRanks, 1, false>)
              : (centered ? reduce_norm_kernel<T, kRanks, 2, true> : reduce_norm_kernel<T, kRanks, 2, false>);
      for (std::int64_t begin = 0; begin < x.dim(0); begin += at_once) {
        const std::int64_t rows = std::min(at_once, x.dim(0) - begin);
        launch(context, "all_reduce_add_norm", kernel, grid_of(peers, rows, threads), dim3(threads), 0, peers,
               args, static_cast<unsigned>(rows));
        args.x += rows * args.x_stride;
        args.out += rows * args.out_stride;
        args.residual += rows * args.residual_stride;
      }
    });
  });
}

void peer_all_gather(const LaunchContext& context, const Peers& peers, const Tensor& out, const Tensor& in) {
  const std::int64_t words = words_of(in, in.dim(1));
  CopyArgs args{.in = in.data_as<const unsigned>(),
                .out = out.data_as<unsigned>(),
                .rows = 0,
                .vectors = static_cast<unsigned>(words),
                .in_stride = words_of(in, in.stride(0)),
                .out_stride = words_of(out, out.stride(0)),
                .sender_stride = words,
                .kept = ~0U};
  const int width = 16 / static_cast<int>(size_of(in.dtype()));
  if (splits_into(in, width) && splits_into(out, width)) {
    args.vectors /= 4;
    copy_rows<4>(context, peers, args, in.dim(0));
  } else {
    copy_rows<1>(context, peers, args, in.dim(0));
  }
}

void peer_broadcast(const LaunchContext& context, const Peers& peers, const Tensor& tensor, int root) {
  require(tensor.contiguous(), "a tensor to broadcast is not contiguous");
  const CopyArgs args{.in = tensor.data_as<const unsigned>(),
                      .out = tensor.data_as<unsigned>(),
                      .rows = 0,
                      .vectors = 1,
                      .in_stride = 1,
                      .out_stride = 1,
                      .sender_stride = 0,
                      .kept = 1U << root};
  copy_rows<1>(context, peers, args, words_of(tensor, tensor.numel()));
}

}  // namespace quire::cuda
