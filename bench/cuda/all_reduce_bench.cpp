// Microseconds of an all-reduce in a CUDA graph among all GPUs here, of a row of bfloat16 and of many: ours,
// ours with the residual's addition and the norm, NCCL's, and NCCL's with the addition and the norm after it.
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/peer_collectives.h"
#include "backends/cuda/nccl.h"
#include "backends/cuda/rank_watch.h"
#include "bench/cuda/timing.h"
#include "ops/ops.h"

namespace quire::cuda::bench {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{24} << 20;  // as the ranks of an engine have

// What the ranks' threads share.
struct Meeting {
  explicit Meeting(int size) : barrier(size) {}
  std::barrier<> barrier;
  Peers peers;
  ncclUniqueId id{};
};

std::byte* device_bytes(std::size_t bytes, int value) {
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), "memory");
  check(cudaMemset(data, value, bytes), "memory");
  check(cudaDeviceSynchronize(), "memory");
  return static_cast<std::byte*>(data);
}

// A rank's memory that the others write to; theirs, once all have come.
Peers meet(Meeting& meeting, const LaunchContext& context, int rank, int size, PeerSigns* signs) {
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) check(cudaDeviceEnablePeerAccess(peer, 0), "a peer");
  }
  meeting.peers.inboxes[rank] = device_bytes(inbox_bytes(size, kSlotBytes), 0xFF);
  meeting.barrier.arrive_and_wait();
  Peers peers = meeting.peers;
  peers.rank = rank;
  peers.size = size;
  peers.max_blocks = context.num_sms;
  peers.slot_bytes = kSlotBytes;
  peers.turn = reinterpret_cast<std::uint32_t*>(device_bytes(8, 0));
  peers.signs = signs;
  return peers;
}

void run(Meeting& meeting, int rank, int size) {
  check(cudaSetDevice(rank), "a device");
  LaunchContext context = cuda::make_context(rank);
  check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "a stream");
  const Nccl* nccl = Nccl::find();
  if (rank == 0 && nccl != nullptr) nccl->check(nccl->get_unique_id(&meeting.id), "beginning");
  const auto signs = make_signs();
  const Peers peers = meet(meeting, context, rank, size, signs.get());
  std::unique_ptr<NcclRanks> library;
  if (nccl != nullptr) library = std::make_unique<NcclRanks>(*nccl, meeting.id, rank, size, context.stream);

  constexpr std::int64_t kColumns = 8192, kMostRows = 4096;
  const auto tensor = [](DType dtype, std::int64_t rows) {
    const std::size_t bytes = static_cast<std::size_t>(rows * kColumns) * size_of(dtype);
    return Tensor(device_bytes(bytes, 0), dtype, {rows, kColumns}, DeviceKind::kCuda);
  };
  const Tensor all_x = tensor(DType::kBF16, kMostRows), all_out = tensor(DType::kBF16, kMostRows);
  const Tensor all_residual = tensor(DType::kF32, kMostRows);
  const NormParams params{
      Tensor(tensor(DType::kF32, 1).data(), DType::kF32, {kColumns}, DeviceKind::kCuda), {}, 1e-6F};
  if (rank == 0)
    std::printf("%d GPUs, us%16s%16s%16s%16s\n", size, "ours", "ours + norm", "NCCL", "NCCL + norm");
  for (std::int64_t rows = 1; rows <= kMostRows; rows *= 2) {
    const Tensor x = all_x.rows(0, rows), out = all_out.rows(0, rows), residual = all_residual.rows(0, rows);
    const int calls = rows > 256 ? 10 : 100;
    const auto time = [&](auto&& op) {
      op();  // NCCL connects at the first call
      check(cudaStreamSynchronize(context.stream), "ops");
      meeting.barrier.arrive_and_wait();
      const double us = graph_time_us(
          context, calls, [&](int) { op(); }, 50);  // as many on every rank
      meeting.barrier.arrive_and_wait();
      return us;
    };
    const double ours = time([&] { peer_all_reduce(context, peers, x); });
    const double normed =
        time([&] { peer_all_reduce_add_norm(context, peers, out, residual, x, 1, params); });
    double theirs = 0, theirs_normed = 0;
    if (library) {
      theirs = time([&] { library->all_reduce(x); });
      theirs_normed = time([&] {
        library->all_reduce(x);
        add_norm(context, out, residual, x, 1, params);
      });
    }
    if (rank == 0)
      std::printf("%7lld KiB%16.2f%16.2f%16.2f%16.2f\n", static_cast<long long>(rows * kColumns * 2 / 1024),
                  ours, normed, theirs, theirs_normed);
  }
}

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  int size = 0;
  quire::cuda::check(cudaGetDeviceCount(&size), "devices");
  if (size < 2) {
    std::printf("all_reduce_bench: %d GPU here; two at least are needed\n", size);
    return 0;
  }
  quire::cuda::bench::Meeting meeting(size);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&meeting, rank, size] {
      try {
        quire::cuda::bench::run(meeting, rank, size);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "all_reduce_bench: rank %d: %s\n", rank, e.what());
        std::_Exit(1);
      }
    });
  for (std::thread& thread : ranks) thread.join();
}
