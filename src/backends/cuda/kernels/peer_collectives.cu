// All-reduce, and all-gather, whole or of a share of the rows, over peer memory: each rank writes all it has
// to all others, in one trip. Between two GPUs that moves no more than any other way; among N, N / 2 times as
// much, for the latency of one trip.
#include "backends/cuda/kernels/peer_collectives.h"
#include "backends/cuda/kernels/peer_exchange.cuh"

namespace quire::cuda {
namespace {

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
    store_vec(to, reinterpret_cast<const Vec<unsigned, kWidth>&>(words));
  };
  const auto read = [&](unsigned row, unsigned index) {
    uint4 words{};
    reinterpret_cast<Vec<unsigned, kWidth>&>(words) =
        load_vec<kWidth>(args.in + row * args.in_stride + (index % args.vectors) * kWidth);
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
    for (int rank = 0; rank < kRanks; ++rank)
      if (exchange.is_other(rank)) keep(index, rank, words[rank]);
  };
  exchange_all(exchange, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x,
               args.rows * args.vectors, send, receive);
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
      launch(context, "all_gather", copy_kernel<kWidth, kRanks>, grid, kFlatThreads, 0, peers, args);
    });
    args.in += args.rows * args.in_stride;
    args.last_row -= args.rows;
    args.out += args.rows * args.out_stride;
  }
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
        launch(context, "all_reduce", reduce_kernel<T, kRanks>, grid, kFlatThreads, 0, peers,
               tensor.data_as<T>() + begin, static_cast<unsigned>(count));
      }
    });
  });
}

void peer_gather(const LaunchContext& context, const Peers& peers, const Tensor& out, const Tensor& in) {
  const std::int64_t words = words_of(in, in.dim(1));
  CopyArgs args{.in = in.data_as<const unsigned>(),
                .out = out.data_as<unsigned>(),
                .rows = 0,
                .vectors = static_cast<unsigned>(words),
                .share = static_cast<unsigned>(out.dim(0) == in.dim(0) ? 0 : out.dim(0)),
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

}  // namespace quire::cuda
