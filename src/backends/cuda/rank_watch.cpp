#include "backends/cuda/rank_watch.h"

#include <atomic>

#include "base/error.h"

namespace quire::cuda {
namespace {

using namespace std::chrono_literals;

constexpr auto kCheckPeriod = 1ms;
// Between two looks at a kernel's signs: it gives them several times as often.
constexpr auto kLookPeriod = 100ms;
// NCCL's kernels give no signs. A step that takes so many times the watchdog's time is lost.
constexpr int kLongestStep = 12;

}  // namespace

std::shared_ptr<PeerSigns> make_signs() {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, sizeof(PeerSigns), cudaHostAllocPortable | cudaHostAllocMapped),
        "memory for signs");
  return {new (memory) PeerSigns, [](PeerSigns* signs) { cudaFreeHost(signs); }};
}

RankWatch::RankWatch(std::unique_ptr<Communicator> host, std::vector<std::shared_ptr<PeerSigns>> signs,
                     double watchdog)
    : host_(std::move(host)), signs_(std::move(signs)), watchdog_(watchdog) {}

void RankWatch::wait(cudaEvent_t event) {
  const auto begin = Clock::now();
  auto next_check = begin + kCheckPeriod;
  while (true) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check(status, "running a step");
    const auto now = Clock::now();
    if (now < next_check) continue;
    next_check = now + kCheckPeriod;
    try {
      host_->check_ranks();
      if (signs_.empty() && now - begin > kLongestStep * watchdog_)
        throw LostRank(format_text("a rank is lost: a step has taken more than {:g} s",
                                   kLongestStep * watchdog_.count()));
      if (!signs_.empty() && now - last_look_ >= kLookPeriod) look(now);
    } catch (const Error&) {
      abandon();
      throw;
    }
  }
}

// A rank is lost that a kernel has waited for in the same collective for too long, while this process ran.
void RankWatch::look(Clock::time_point now) {
  const bool slept = now - last_look_ > 5 * kLookPeriod;
  last_look_ = now;
  const std::uint64_t waiting =
      std::atomic_ref(signs_.front()->waiting).exchange(0, std::memory_order_relaxed);
  if (slept || waiting == 0 || waiting >> 8 != waiting_ >> 8) {  // another collective
    waiting_ = waiting;
    waiting_since_ = now;
  } else if (now - waiting_since_ >= watchdog_) {
    throw LostRank(format_text("rank {} of {} is lost: a GPU has waited for it for {:g} s", waiting % 256 - 1,
                               host_->size(), watchdog_.count()));
  }
}

void RankWatch::abandon() const {
  for (const auto& signs : signs_) std::atomic_ref(signs->abandoned).store(1, std::memory_order_relaxed);
}

}  // namespace quire::cuda
