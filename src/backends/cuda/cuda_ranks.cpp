// CudaBackend::connect: ranks on GPUs, each with a backend of its own, of one process or several, of one host
// or several. Where all GPUs reach each other's memory, kernels of ours do everything
// (kernels/peer_collectives.h), else NCCL does.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/cuda_backend.h"
#include "backends/cuda/nccl.h"
#include "backends/cuda/rank_watch.h"
#include "base/error.h"

namespace quire::cuda {
namespace {

// That a rank can send to another in one launch.
constexpr std::size_t kSlotBytes = std::size_t{24} << 20;

// A text that fits a message of fixed size, cut off if need be.
template <std::size_t kSize>
void put_text(std::array<char, kSize>& to, const std::string& text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), to.begin());
}

// What ranks tell each other first.
struct Introduction {
  std::array<char, 64> host;
  std::uint64_t process;
  std::array<char, 16> gpu;
  bool deterministic;
  std::byte* inbox;  // null: it is not to be used
  cudaIpcMemHandle_t inbox_handle;
  const std::shared_ptr<PeerSigns>* signs;
};

// Does `work` on every rank, and gives all results to all; where it fails on one, no rank goes on.
template <typename T>
std::vector<T> share(Communicator& host, const std::function<T()>& work) {
  static_assert(std::is_trivially_copyable_v<T>);
  struct Outcome {
    T result{};
    std::array<char, 512> error{};  // empty: none
  };
  Outcome own;
  try {
    own.result = work();
  } catch (const std::exception& e) {
    put_text(own.error, e.what());
  }
  std::vector<Outcome> all(static_cast<std::size_t>(host.size()));
  const auto bytes = static_cast<std::int64_t>(sizeof own);
  host.all_gather(Tensor(all.data(), DType::kU8, {1, host.size() * bytes}),
                  Tensor(&own, DType::kU8, {1, bytes}));
  std::vector<T> results;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].error.front() != '\0') fail("rank {} of {}: {}", rank, all.size(), all[rank].error.data());
    results.push_back(all[rank].result);
  }
  return results;
}

// Differs between machines that run, also where they have the same name.
std::string host_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::uint64_t process_id() {
  static const std::uint64_t id = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return id;
}

// Memory of another process, as this device addresses it.
std::shared_ptr<std::byte> open_memory(const cudaIpcMemHandle_t& handle) {
  void* data = nullptr;
  check(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess), "another process's memory");
  return {static_cast<std::byte*>(data), cudaIpcCloseMemHandle};
}

// One rank's end of peers' memory.
class PeerMemory {
 public:
  PeerMemory(CudaBackend& backend, int rank, int size)
      : rank_(rank),
        inbox_(backend.allocate(backend.connection_bytes(size), MemoryKind::kDevice)),
        turn_(backend.allocate(2 * sizeof(std::uint32_t), MemoryKind::kDevice)),
        signs_(make_signs()) {
    clear_inbox(backend.context(), inbox(), inbox_.bytes());
    check(cudaStreamSynchronize(backend.context().stream), "clearing an inbox");
  }

  std::byte* inbox() const { return static_cast<std::byte*>(inbox_.data()); }
  const std::shared_ptr<PeerSigns>& signs() const { return signs_; }

  // Error where an inbox is out of reach.
  void reach(int device, int num_sms, const std::vector<Introduction>& ranks) {
    const Introduction& own = ranks[static_cast<std::size_t>(rank_)];
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const Introduction& other = ranks[rank];
      if (other.host != own.host) fail("rank {} is on another host", rank);
      peers_.inboxes[rank] = other.process == own.process
                                 ? in_this_process(device, other.inbox)
                                 : ipc_.emplace_back(open_memory(other.inbox_handle)).get();
    }
    peers_.rank = rank_;
    peers_.size = static_cast<int>(ranks.size());
    peers_.max_blocks = num_sms;
    peers_.slot_bytes = kSlotBytes;
    peers_.turn = static_cast<std::uint32_t*>(turn_.data());
    peers_.signs = signs_.get();
  }

  const Peers& peers() const { return peers_; }

 private:
  static std::byte* in_this_process(int device, std::byte* inbox) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, inbox), "an inbox");
    if (attributes.device == device) return inbox;
    int reaches = 0;
    check(cudaDeviceCanAccessPeer(&reaches, device, attributes.device), "asking for peers");
    if (reaches == 0) fail("GPU {} does not reach the memory of GPU {}", device, attributes.device);
    const cudaError_t status = cudaDeviceEnablePeerAccess(attributes.device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      check(status, "reaching a peer's memory");
    }
    return inbox;
  }

  int rank_;
  Buffer inbox_, turn_;
  std::shared_ptr<PeerSigns> signs_;
  std::vector<std::shared_ptr<std::byte>> ipc_;
  Peers peers_;
};

class CudaCommunicator final : public Communicator {
 public:
  // One of peers and nccl is null.
  CudaCommunicator(CudaBackend& backend, int rank, int size, std::unique_ptr<PeerMemory> peers,
                   std::unique_ptr<NcclRanks> nccl, std::shared_ptr<RankWatch> watch)
      : backend_(backend),
        rank_(rank),
        size_(size),
        peers_(std::move(peers)),
        nccl_(std::move(nccl)),
        watch_(std::move(watch)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::size_t held_bytes() const override { return peers_ ? backend_.connection_bytes(size_) : 0; }

  void all_reduce(const Tensor& tensor) override {
    if (tensor.numel() == 0) return;
    const LaunchContext& context = backend_.context();  // for NCCL, too: the device is current then
    if (peers_) return peer_all_reduce(context, peers_->peers(), tensor);
    nccl_->all_reduce(tensor);
  }

  void all_reduce_add_norm(Backend& backend, const Tensor& out, const Tensor& residual, const Tensor& x,
                           float scale, const NormParams& params) override {
    if (x.numel() == 0) return;
    if (!peers_ || !peer_all_reduce_add_norm_supports(out, residual, x, params))
      return Communicator::all_reduce_add_norm(backend, out, residual, x, scale, params);
    peer_all_reduce_add_norm(backend_.context(), peers_->peers(), out, residual, x, scale, params);
  }

  void all_gather(const Tensor& out, const Tensor& in) override {
    check_fit(out, in);
    if (in.numel() == 0) return;
    const LaunchContext& context = backend_.context();
    if (peers_) return peer_gather(context, peers_->peers(), out, in);
    nccl_->all_gather(out, in);
  }

  Tensor gather_share(const Tensor& out, const Tensor& in) override {
    if (!peers_) return Communicator::gather_share(out, in);
    check_fit(out, in);
    if (in.numel() > 0)
      peer_gather(backend_.context(), peers_->peers(), out.rows(0, rows_a_share(in.dim(0))), in);
    return out.rows(0, share_of(in.dim(0)).count);
  }

  void abandon() override { watch_->abandon(); }

 private:
  void check_fit(const Tensor& out, const Tensor& in) const {
    QUIRE_CHECK(in.num_dims() == 2 && out.num_dims() == 2 && out.dtype() == in.dtype() &&
                    out.dim(0) == in.dim(0) && out.dim(1) == size_ * in.dim(1),
                "gathering {} into {}", in.describe(), out.describe());
  }

  CudaBackend& backend_;
  const int rank_, size_;
  std::unique_ptr<PeerMemory> peers_;
  std::unique_ptr<NcclRanks> nccl_;
  std::shared_ptr<RankWatch> watch_;
};

void check_different_gpus(const std::vector<Introduction>& ranks) {
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = a + 1; b < ranks.size(); ++b) {
      if (ranks[a].gpu == ranks[b].gpu)
        fail("ranks {} and {} have the same GPU; each needs one of its own", a, b);
    }
  }
}

Introduction introduce(const CudaBackend& backend, const PeerMemory* memory) {
  Introduction own{};
  put_text(own.host, host_id());
  own.process = process_id();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, backend.device_index()), "reading the device's properties");
  std::memcpy(own.gpu.data(), &properties.uuid, own.gpu.size());
  own.deterministic = backend.deterministic();
  if (memory == nullptr) return own;
  own.inbox = memory->inbox();
  // Where memory cannot be shared among processes, they do without.
  if (cudaIpcGetMemHandle(&own.inbox_handle, own.inbox) != cudaSuccess) static_cast<void>(cudaGetLastError());
  own.signs = &memory->signs();
  return own;
}

// Null where a rank does not reach another's memory, or is not to.
std::unique_ptr<PeerMemory> reach(CudaBackend& backend, Communicator& host,
                                  std::unique_ptr<PeerMemory> memory,
                                  const std::vector<Introduction>& ranks) {
  const auto reached = share<bool>(host, [&] {
    if (std::ranges::find(ranks, nullptr, &Introduction::inbox) != ranks.end()) return false;
    try {
      memory->reach(backend.device_index(), backend.context().num_sms, ranks);
      return true;
    } catch (const Error&) {
      return false;
    }
  });
  return std::ranges::find(reached, false) == reached.end() ? std::move(memory) : nullptr;
}

std::unique_ptr<NcclRanks> connect_nccl(CudaBackend& backend, Communicator& host,
                                        const std::vector<Introduction>& ranks) {
  if (host.size() > 2 && std::ranges::any_of(ranks, &Introduction::deterministic))
    fail("deterministic sums among {} GPUs need GPUs that reach each other's memory", host.size());
  const auto ids = share<ncclUniqueId>(host, [&] {
    const Nccl* nccl = Nccl::find();
    if (nccl == nullptr)
      fail("GPUs that do not reach each other's memory need NCCL, and libnccl.so.2 is not installed");
    ncclUniqueId id{};
    if (host.rank() == 0) nccl->check(nccl->get_unique_id(&id), "beginning");
    return id;
  });
  std::unique_ptr<NcclRanks> connected;
  share<bool>(host, [&] {
    connected = std::make_unique<NcclRanks>(*Nccl::find(), ids.front(), host.rank(), host.size(),
                                            backend.context().stream);
    return true;
  });
  return connected;
}

}  // namespace

std::size_t CudaBackend::connection_bytes(int num_ranks) const {
  return num_ranks > 1 && num_ranks <= kMaxPeers ? inbox_bytes(num_ranks, kSlotBytes) : 0;
}

std::unique_ptr<Communicator> CudaBackend::connect(std::unique_ptr<Communicator> host,
                                                   const RankOptions& options) {
  const int rank = host->rank(), size = host->size();
  if (size == 1) return host;
  std::unique_ptr<PeerMemory> memory;
  const auto ranks = share<Introduction>(*host, [&] {
    if (size <= kMaxPeers && !options.disable_custom_all_reduce)
      memory = std::make_unique<PeerMemory>(*this, rank, size);
    return introduce(*this, memory.get());
  });
  check_different_gpus(ranks);
  // No rank leaves reach() before all are there, so that the others' signs are still where they say.
  std::vector<std::shared_ptr<PeerSigns>> signs;
  if (memory != nullptr) signs.push_back(memory->signs());
  for (const Introduction& other : ranks) {
    if (other.process == process_id() && other.signs != nullptr &&
        other.inbox != ranks[static_cast<std::size_t>(rank)].inbox)
      signs.push_back(*other.signs);
  }
  auto peers = reach(*this, *host, std::move(memory), ranks);
  std::unique_ptr<NcclRanks> nccl;
  if (peers == nullptr) {
    signs.clear();
    nccl = connect_nccl(*this, *host, ranks);
  }
  watch_ = std::make_shared<RankWatch>(std::move(host), std::move(signs), options.watchdog);
  return std::make_unique<CudaCommunicator>(*this, rank, size, std::move(peers), std::move(nccl), watch_);
}

}  // namespace quire::cuda
