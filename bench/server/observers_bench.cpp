// What looks on while the standard workload is scheduled, all at once, costs the engine's thread: the ring of
// the last steps, a recording in a file, a window that somebody watches. No model runs; every time is the
// thread's processor time.
#include <time.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <random>

#include "base/format.h"
#include "inspect/workload.h"
#include "record/recorder.h"
#include "scheduler/scheduler.h"
#include "server/window/window_book.h"

namespace quire {
namespace {

constexpr int kStepsPerFrame = 27;  // five frames a second at 7.4 ms a step
constexpr int kTurns = 5;

double thread_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

template <typename Work>
double timed(const Work& work) {
  const double begin = thread_us();
  work();
  return thread_us() - begin;
}

// Tells another one, and how long that takes; without another, how long the taking of times does.
class TimedObserver final : public SchedulerObserver {
 public:
  explicit TimedObserver(SchedulerObserver* observer) : observer_(observer) {}
  double us() const { return us_; }

  void handle(const Event& event) override {
    us_ += timed([&] {
      if (observer_ != nullptr) observer_->handle(event);
    });
  }

 private:
  SchedulerObserver* observer_;
  double us_ = 0;
};

SchedulerConfig config_of(SchedulerObserver* observer) {
  SchedulerConfig config;
  config.max_num_batched_tokens = 8192;
  config.max_model_len = 2048;
  config.num_blocks = 17600;  // nobody is preempted
  if (observer != nullptr) config.observers = {observer};
  return config;
}

void add_requests(Scheduler& scheduler) {
  std::mt19937 random(1);
  SequenceId id = 0;
  for (const RequestSize& size : standard_workload()) {
    auto request = std::make_shared<SequenceRequest>();
    request->id = ++id;
    request->max_tokens = size.output_tokens;
    for (int i = 0; i < size.prompt_tokens; ++i)
      request->prompt.push_back(static_cast<TokenId>(random() % 100'000));
    scheduler.add(std::move(request));
  }
}

struct Frames {
  int count = 0;
  double make_us = 0, compare_us = 0;
  std::size_t bytes = 0;
  std::optional<server::WindowFrame> last;

  void take(server::WindowBook& book) {
    server::WindowFrame frame;
    make_us += timed([&] { frame = book.frame(); });
    compare_us += timed([&] { bytes += server::frame_patch(last ? &*last : nullptr, frame).size(); });
    last = std::move(frame);
    ++count;
  }
};

void run(const char* name, SchedulerObserver* observer, server::WindowBook* book) {
  TimedObserver looks_on(observer);
  Scheduler scheduler(config_of(&looks_on));
  if (book != nullptr) book->attach(scheduler);
  add_requests(scheduler);
  Frames frames;
  int num_steps = 0;
  std::deque<StepResult> in_flight;
  while (scheduler.has_unfinished() || !in_flight.empty()) {
    if (in_flight.size() < 2) {
      if (const std::optional<StepPlan> plan = scheduler.schedule()) {
        StepResult& result = in_flight.emplace_back(StepResult{plan->id, {}});
        for (const SequencePlan& sequence : plan->sequences)
          result.sequences.push_back({sequence.sequence, sequence.sample ? 7 : SequenceResult::kNoToken});
        ++num_steps;
        continue;
      }
    }
    scheduler.apply(std::move(in_flight.front()));
    in_flight.pop_front();
    if (book != nullptr && num_steps % kStepsPerFrame == 0) frames.take(*book);
  }
  print_text(stdout, "{}: {:.2f} us a step, of {} steps", name, looks_on.us() / num_steps, num_steps);
  if (frames.count > 0)
    print_text(stdout, "; a frame is made in {:.0f} us, compared in {:.0f} us, and has {} bytes",
               frames.make_us / frames.count, frames.compare_us / frames.count, frames.bytes / frames.count);
  print_text(stdout, "\n");
}

}  // namespace
}  // namespace quire

int main() {
  using namespace quire;
  const std::string path = std::filesystem::temp_directory_path() / "observers_bench.rec";
  RecordingInfo info;
  info.scheduler = config_of(nullptr);
  for (int turn = 0; turn < kTurns; ++turn) {
    run("nobody (what taking times costs)", nullptr, nullptr);
    Recorder ring(info, ""), file(info, path);
    run("ring", &ring, nullptr);
    run("file", &file, nullptr);
    const auto start = std::chrono::steady_clock::now();
    server::WindowBook book(
        [start] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); });
    run("window", &book, &book);
  }
  std::filesystem::remove(path);
}
