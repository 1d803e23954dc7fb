#include "parallel/thread_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/thread_pool.h"
#include "parallel/rank_sum.h"

namespace quire {
namespace {

constexpr std::uint32_t kFailed = 1;
constexpr std::uint32_t kPhase = 2;  // flips when the last rank arrives
constexpr std::uint32_t kArrival = 4;
constexpr int kMaxRanks = 1024;

// About what ranks that compute the same differ by, far below a scheduler's time slice.
constexpr std::chrono::microseconds kSpinTime{20};

// Elements: slices begin at cache lines, and a block of sums is sent to the other ranks from the cache.
constexpr std::int64_t kSliceUnit = 64;
constexpr std::int64_t kSentAtOnce = 4096;

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && std::ranges::equal(a.shape(), b.shape());
}

bool in_memory(const Tensor& tensor) {
  return tensor.device() == DeviceKind::kCpu && (tensor.defined() || tensor.numel() == 0);
}

void copy_elements(const Tensor& to, const Tensor& from) {
  if (to.bytes() > 0 && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.bytes());
}

}  // namespace

// What a rank calls. On a cache line of its own: ranks write theirs at the same time.
struct alignas(64) ThreadRanks::Call {
  std::string_view operation;
  Tensor in;
  Tensor out;  // of all_gather; else `in` again

  std::string describe() const {
    return format_text("{} of {} into {}", operation, in.describe(), out.describe());
  }
};

// One operation, from where every rank has come to where every rank has finished: while a rank has one, the
// tensors in calls() stay. A failure ends the wait for the others to come, never the wait for them to finish,
// which they do.
class ThreadRanks::Meeting {
 public:
  Meeting(ThreadRanks& ranks, int rank, const Call& call) : ranks_(ranks) {
    // No rank reads the calls now: those of the last operation have all finished.
    ranks_.calls_[rank] = call;
    if (!ranks_.pass_barrier(true)) ranks_.throw_failure();
  }
  ~Meeting() { ranks_.pass_barrier(false); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  const std::vector<Call>& calls() const { return ranks_.calls_; }
  const Call& call(int rank) const { return ranks_.calls_[rank]; }

  // Every rank checks every call, so that all of them throw if one is wrong, before any data moves.
  void check_same() const {
    const Call& first = calls().front();
    for (int r = 0; r < ranks_.size_; ++r) {
      const Call& other = call(r);
      QUIRE_CHECK(other.operation == first.operation && same_shape(other.in, first.in) &&
                      same_shape(other.out, first.out),
                  "rank 0 calls {}, rank {} calls {}", first.describe(), r, other.describe());
      QUIRE_CHECK(in_memory(other.in) && in_memory(other.out), "{}", other.describe());
    }
  }

 private:
  ThreadRanks& ranks_;
};

class ThreadRanks::Rank : public Communicator {
 public:
  Rank(ThreadRanks& ranks, int rank) : ranks_(ranks), rank_(rank), parts_(ranks.calls_.size()) {}

  int rank() const override { return rank_; }
  int size() const override { return ranks_.size_; }

  // A rank adds one slice of all tensors and writes the sums to all of them: nobody else touches that slice.
  void all_reduce(const Tensor& tensor) override {
    const Meeting meeting(ranks_, rank_, {"all_reduce", tensor, tensor});
    meeting.check_same();
    for (const Call& call : meeting.calls())
      QUIRE_CHECK(call.in.contiguous() && is_float(call.in.dtype()), "{}", call.describe());
    if (size() == 1) return;
    const std::int64_t n = tensor.numel();
    const std::int64_t units = (n + kSliceUnit - 1) / kSliceUnit;
    const std::int64_t slice = (units + size() - 1) / size() * kSliceUnit;
    const std::int64_t end = std::min(n, (rank_ + 1) * slice);
    std::transform(meeting.calls().begin(), meeting.calls().end(), parts_.begin(),
                   [](const Call& call) { return call.in.data_as<std::byte>(); });
    for (std::int64_t at = rank_ * slice; at < end; at += kSentAtOnce) {
      const std::int64_t count = std::min(kSentAtOnce, end - at);
      add_in_order(tensor, parts_, at, count);
      const std::size_t offset = static_cast<std::size_t>(at) * size_of(tensor.dtype());
      for (int r = 0; r < size(); ++r) {
        if (r == rank_) continue;
        std::memcpy(meeting.call(r).in.data_as<std::byte>() + offset, tensor.data_as<std::byte>() + offset,
                    static_cast<std::size_t>(count) * size_of(tensor.dtype()));
      }
    }
  }

  void all_gather(const Tensor& out, const Tensor& in) override {
    const Meeting meeting(ranks_, rank_, {"all_gather", in, out});
    meeting.check_same();
    QUIRE_CHECK(in.num_dims() == 2 && out.num_dims() == 2 && out.dtype() == in.dtype() &&
                    out.dim(0) == in.dim(0) && out.dim(1) == size() * in.dim(1),
                "all_gather of {} into {}", in.describe(), out.describe());
    for (int r = 0; r < size(); ++r) {
      const Tensor& from = meeting.call(r).in;
      const Tensor to = out.columns(r * in.dim(1), in.dim(1));
      for (std::int64_t row = 0; row < in.dim(0); ++row) copy_elements(to.rows(row, 1), from.rows(row, 1));
    }
  }

  void check_ranks() override {
    if ((ranks_.state_.load(std::memory_order_acquire) & kFailed) != 0) ranks_.throw_failure();
  }

 private:
  ThreadRanks& ranks_;
  int rank_;
  std::vector<const std::byte*> parts_;  // every rank's tensor, in all_reduce
};

ThreadRanks::ThreadRanks(int size) : size_(size), spins_(size <= usable_cores()) {
  QUIRE_CHECK(size >= 1 && size <= kMaxRanks, "{} ranks", size);
  calls_.resize(size);
}

ThreadRanks::~ThreadRanks() = default;

std::unique_ptr<Communicator> ThreadRanks::connect(int rank) {
  QUIRE_CHECK(rank >= 0 && rank < size_, "rank {} of {}", rank, size_);
  return std::make_unique<Rank>(*this, rank);
}

void ThreadRanks::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if ((state_.load(std::memory_order_relaxed) & kFailed) != 0) return;
    failure_ = why;
    state_.fetch_or(kFailed, std::memory_order_acq_rel);
  }
  state_.notify_all();
}

void ThreadRanks::reset() {
  const std::lock_guard lock(mutex_);
  failure_.clear();
  state_.store(0, std::memory_order_release);
}

void ThreadRanks::throw_failure() {
  const std::lock_guard lock(mutex_);
  throw Error(failure_);
}

// Waits until every rank is here. False, for those that are here and those that come later, if the ranks have
// failed before the last one came and the caller minds.
bool ThreadRanks::pass_barrier(bool unless_failed) {
  std::uint32_t state = state_.load(std::memory_order_acquire);
  const std::uint32_t old_phase = state & kPhase;  // cannot change before this rank has come
  std::uint32_t next = 0;
  do {
    if (unless_failed && (state & kFailed) != 0) return false;
    next = state + kArrival;
    if (next / kArrival == static_cast<std::uint32_t>(size_)) next = (state & kFailed) | (old_phase ^ kPhase);
  } while (!state_.compare_exchange_weak(state, next, std::memory_order_acq_rel, std::memory_order_acquire));
  if ((next & kPhase) != old_phase) {
    state_.notify_all();
    return true;
  }
  // Yielding, for other threads may need this core; and not at all where ranks outnumber cores.
  auto spin_end = std::chrono::steady_clock::now();
  if (spins_) spin_end += kSpinTime;
  while (true) {
    state = state_.load(std::memory_order_acquire);
    if ((state & kPhase) != old_phase) return true;
    if (unless_failed && (state & kFailed) != 0) return false;
    if (std::chrono::steady_clock::now() < spin_end) {
      std::this_thread::yield();
    } else {
      state_.wait(state, std::memory_order_acquire);
    }
  }
}

}  // namespace quire
