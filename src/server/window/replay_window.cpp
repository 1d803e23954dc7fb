#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <charconv>

#include "base/json.h"
#include "base/log.h"
#include "record/replayer.h"
#include "server/api_error.h"
#include "server/window.h"
#include "server/window/window_book.h"

namespace quire::server {
namespace {

struct PlanCounter final : SchedulerObserver {
  std::size_t count = 0;
  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    if (plan != nullptr) ++count;
  }
};

// A recording that is done again up to some step.
struct Playback {
  explicit Playback(const Recording& recording)
      : reader(recording),
        book([this] { return reader.seconds(); }),
        replayer(observed(recording.info().scheduler)) {
    book.attach(replayer.scheduler());
  }
  Playback(const Playback&) = delete;
  Playback& operator=(const Playback&) = delete;

  SchedulerConfig observed(SchedulerConfig config) {
    config.observers = {&book};
    return config;
  }

  RecordingReader reader;
  WindowBook book;
  Replayer replayer;
};

// A number of the query, which the page makes; 0: it has none.
template <typename T>
T query_number(std::string_view target, std::string_view name) {
  const std::size_t at = target.find(name);
  T number{};
  if (at != std::string_view::npos)
    std::from_chars(target.data() + at + name.size(), target.data() + target.size(), number);
  return number;
}

class ReplayWindow final : public Window {
 public:
  explicit ReplayWindow(Recording recording) : recording_(std::move(recording)) {
    if (!recording_.info().from_start)
      fail("the recording has only the last part of what was, and cannot be done again");
    PlanCounter plans;
    RecordingReader reader(recording_);
    while (reader.next(plans)) step_seconds_.resize(plans.count, reader.seconds());
    const RecordingInfo& info = recording_.info();
    about_ = about_patch(info.scheduler, {.model = info.model, .device = info.device, .dtype = info.dtype},
                         step_seconds_.size() + 1, reader.seconds());
  }
  ~ReplayWindow() override { close(); }

  void answer(const std::shared_ptr<Exchange>& exchange) override {
    boost::asio::post(worker_, [this, exchange] {
      try {
        exchange->send(200, {{"Content-Type", "application/json"}}, state(exchange->request().target));
      } catch (const std::exception& e) {
        log_error("the window cannot show a step: {}", e.what());
        exchange->fail(to_api_error(e));
      }
    });
  }
  void close() override { worker_.join(); }

 private:
  // "?step=N": behind the plan of that step; of one more than there are, at the end. "?time=SECONDS": of the
  // last one planned by then.
  std::string state(std::string_view target) {
    std::uint64_t step = query_number<std::uint64_t>(target, "?step=");
    if (target.find("?time=") != std::string_view::npos) {
      const auto by = std::ranges::upper_bound(step_seconds_, query_number<double>(target, "?time="));
      step = static_cast<std::uint64_t>(by - step_seconds_.begin());
    }
    step = std::clamp<std::uint64_t>(step, 1, step_seconds_.size() + 1);
    if (!playback_ || shown_ > step) playback_ = std::make_unique<Playback>(recording_);
    shown_ = step;
    auto& [reader, book, replayer] = *playback_;
    while (replayer.step() < step && !replayer.difference() && reader.next(replayer)) {
    }
    OrderedJson difference = "";
    if (const auto& found = replayer.difference())
      difference = format_text("behind step {} the replay differs: {}", found->step, found->what);
    return format_text("{},\"difference\":{},{}", std::string_view(about_).substr(0, about_.size() - 1),
                       difference.dump(), frame_patch(nullptr, book.frame()).substr(1));
  }

  const Recording recording_;
  std::vector<double> step_seconds_;  // when each was planned
  std::string about_;
  std::unique_ptr<Playback> playback_;  // of the worker, like what follows
  std::uint64_t shown_ = 0;             // the step it was last asked for
  boost::asio::thread_pool worker_{1};
};

}  // namespace

std::unique_ptr<Window> make_window(Recording recording) {
  return std::make_unique<ReplayWindow>(std::move(recording));
}

}  // namespace quire::server
