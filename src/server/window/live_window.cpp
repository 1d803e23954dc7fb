#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "server/api_error.h"
#include "server/window.h"
#include "server/window/window_book.h"

namespace quire::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterval{200};  // between two frames
constexpr int kIdleShare = 150;  // of the time that a frame takes passes at least between two
constexpr std::size_t kMostWatchers = 32;
constexpr std::size_t kTailTokens = 48;  // of a sequence, that are shown as text

std::string event_of(const std::string& json) { return "data: " + json + "\n\n"; }

// Whoever has the page open.
struct Watcher {
  std::shared_ptr<Exchange> exchange;
  bool has_frame = false;  // and gets differences
};

// While somebody watches, the engine's thread books what happens and makes a frame when one is asked for;
// this thread asks, compares it with the one before, and sends what differs.
class LiveWindow final : public Window {
 public:
  LiveWindow(Engine& engine, WindowOptions options) : engine_(engine), options_(std::move(options)) {
    thread_ = std::thread([this] { run(); });
  }
  ~LiveWindow() override { close(); }

  void answer(const std::shared_ptr<Exchange>& exchange) override {
    const std::lock_guard lock(*mutex_);
    if (closing_) throw ApiError(503, "the server stops");
    if (watchers_.size() >= kMostWatchers)
      throw ApiError(503, format_text("{} watch already; that is the most", kMostWatchers));
    exchange->send_events(":\n\n");  // so that the page knows that it may watch
    if (exchange->request().method == "HEAD") return exchange->end_events(":\n\n");
    watchers_.push_back({exchange});
    changed_->notify_all();
  }

  void close() override {
    change_and_wake(*mutex_, *changed_, [this] { closing_ = true; });
    if (thread_.joinable()) thread_.join();
  }

 private:
  // Of one time that somebody watches. The engine's thread has it as long as the scheduler tells the book.
  struct Watch {
    WindowBook book{
        [start = Clock::now()] { return std::chrono::duration<double>(Clock::now() - start).count(); }};
    bool is_attached = false;          // touched on the engine's thread alone
    std::string about;                 // there with the first frame
    bool is_answered = false;          // guarded by the window's mutex, as is what follows
    std::optional<WindowFrame> frame;  // not yet sent; none: it could not be made
  };

  void run() {
    name_thread("quire-window");
    std::shared_ptr<Watch> watch;
    std::optional<WindowFrame> before;
    while (true) {
      auto next = Clock::now() + kInterval;
      try {
        if (!wait_for_watchers(watch, before)) break;
        const auto asked_at = Clock::now();
        next = asked_at + kInterval;
        if (!watch) watch = last_ = std::make_shared<Watch>();
        WindowFrame frame;
        if (!take_frame(watch, frame)) break;
        const auto got_at = Clock::now();
        const std::chrono::duration<double> making(frame.cost);
        const auto pause_for = [&](std::chrono::duration<double> cost) {
          next = std::max(next, asked_at + std::chrono::duration_cast<Clock::duration>(kIdleShare * cost));
        };
        pause_for(making);  // also where it cannot be sent
        if (options_.with_text) add_texts(frame);
        send(*watch, before, frame);
        before = std::move(frame);
        pause_for(making + (Clock::now() - got_at));
      } catch (const std::exception& e) {  // no memory, say
        log_error("the window misses a frame: {}", e.what());
      }
      std::unique_lock lock(*mutex_);
      changed_->wait_until(lock, next, [this] { return closing_; });
    }
    const std::lock_guard lock(*mutex_);
    for (Watcher& watcher : watchers_) watcher.exchange->end_events("event: end\ndata:\n\n");
    watchers_.clear();
  }

  // Ends the watching once nobody watches. False: the window closes.
  bool wait_for_watchers(std::shared_ptr<Watch>& watch, std::optional<WindowFrame>& before) {
    std::unique_lock lock(*mutex_);
    std::erase_if(watchers_, [](const Watcher& watcher) { return watcher.exchange->is_gone(); });
    if (watchers_.empty() && watch) {
      engine_.look([watch](Scheduler& scheduler) { scheduler.remove_observer(&watch->book); });
      watch.reset();
      before.reset();
    }
    changed_->wait(lock, [this] { return closing_ || !watchers_.empty(); });
    return !closing_;
  }

  // Asks the engine for a frame, and waits for it. False: the window closes.
  bool take_frame(const std::shared_ptr<Watch>& watch, WindowFrame& frame) {
    const std::size_t num_tail = options_.with_text ? kTailTokens : 0;
    engine_.look(
        [watch, num_tail, options = options_, mutex = mutex_, changed = changed_](Scheduler& scheduler) {
          const auto answer = [&](std::optional<WindowFrame> made) {
            const std::lock_guard lock(*mutex);
            watch->frame = std::move(made);
            watch->is_answered = true;
            changed->notify_all();
          };
          try {
            if (watch->about.empty()) watch->about = about_patch(scheduler.config(), options, 0, 0);
            if (!watch->is_attached) {
              watch->book.attach(scheduler);
              scheduler.add_observer(&watch->book);
              watch->is_attached = true;
            }
            answer(watch->book.frame(num_tail));
          } catch (...) {  // no memory, say
            answer({});
            throw;
          }
        });
    std::unique_lock lock(*mutex_);
    changed_->wait(lock, [&] { return closing_ || watch->is_answered; });
    if (closing_) return false;
    watch->is_answered = false;
    if (!watch->frame) fail("the engine could not make it");
    frame = std::move(*std::exchange(watch->frame, {}));
    return true;
  }

  // The difference from the frame before; to those who do not have that, all. Who cannot be sent it, for want
  // of memory, is watching no more: its page asks again. Nobody has it where this throws.
  void send(const Watch& watch, const std::optional<WindowFrame>& before, const WindowFrame& frame) {
    const std::string difference = before ? event_of(frame_patch(&*before, frame)) : std::string();
    std::string whole;
    const std::lock_guard lock(*mutex_);
    if (!std::ranges::all_of(watchers_, &Watcher::has_frame))  // about and frame are objects
      whole = event_of(watch.about.substr(0, watch.about.size() - 1) + "," +
                       frame_patch(nullptr, frame).substr(1));
    std::erase_if(watchers_, [&](Watcher& watcher) {
      try {
        watcher.exchange->send_events(std::exchange(watcher.has_frame, true) ? difference : whole);
        return false;
      } catch (const std::exception&) {
        return true;
      }
    });
  }

  void add_texts(WindowFrame& frame) const {
    if (!engine_.has_tokenizer()) return;
    for (auto& [id, sequence] : frame.sequences)
      sequence.text = engine_.tokenizer().decode(sequence.tail, false);
  }

  Engine& engine_;
  const WindowOptions options_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  std::shared_ptr<std::condition_variable> changed_ = std::make_shared<std::condition_variable>();
  std::vector<Watcher> watchers_;  // guarded by *mutex_
  bool closing_ = false;           // guarded by *mutex_
  std::shared_ptr<Watch> last_;    // outlives the scheduler, which may still know its book
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Window> make_window(Engine& engine, WindowOptions options) {
  return std::make_unique<LiveWindow>(engine, std::move(options));
}

}  // namespace quire::server
