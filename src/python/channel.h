#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace quire::python {

// Requests of one caller, and one queue of what comes of them. Texts that are told apart by `tag`, which the
// caller chooses. Thread contract: any thread may call anything; the queue belongs to nobody's engine, so it
// outlives one that is closed.
class Channel {
 public:
  explicit Channel(const std::shared_ptr<Engine>& engine);
  ~Channel();  // aborts what is unfinished
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Holds a request until `flush`. text: {"params", "options", "stream"} (json_input.h); where it streams
  // each piece of new text is told, not only the end.
  void add(std::int64_t tag, std::string_view text, std::span<const std::int32_t> prompt);
  // Submits all that was added, or none of it: Error as Engine::submit's, and then it is forgotten.
  void flush();
  // What has come since, as a JSON array of at most some hundred events (Event::to_json); empty: nothing
  // in that time.
  std::string next(std::chrono::milliseconds time);
  void abort(std::int64_t tag);  // whose last event follows; below 0: all

 private:
  struct Event;
  struct Queue;
  // What a request's text says.
  struct Form {
    EngineRequest request;
    bool streams = false;
  };
  Form read_form(std::string_view text);

  std::weak_ptr<Engine> engine_;
  std::shared_ptr<Queue> queue_;
  std::mutex form_mutex_;
  std::string form_source_;  // guarded by form_mutex_: the last text, which the next request mostly has, too
  Form form_;                // guarded by form_mutex_: what was made of it
  std::mutex mutex_;
  std::vector<std::int64_t> added_tags_;       // guarded by mutex_
  std::vector<EngineRequest> added_;           // guarded by mutex_
  std::map<std::int64_t, RequestId> running_;  // guarded by mutex_
};

}  // namespace quire::python
