#pragma once

#include <memory>

#include "record/recording.h"
#include "server/exchange.h"

namespace quire {
class Engine;
}

namespace quire::server {

// What the page at /window shows: the cache, the steps and the sequences of an engine that runs, or of a
// recording. Thread contract: any thread may call answer, but not once close has been called.
class Window {
 public:
  virtual ~Window() = default;
  // A request for /window/state: of an engine, events; of a recording, JSON, behind the step of the query.
  virtual void answer(const std::shared_ptr<Exchange>& exchange) = 0;
  // Ends all streams of events. It must come before the engine goes, and the window must go after it.
  virtual void close() = 0;
};

// What a step reads and computes, and what this machine can do at best; 0: not known.
struct WindowLimits {
  double read_gb_per_s = 0, matrix_gflop_per_s = 0;
  double weight_bytes = 0;    // read by every step, routed experts apart
  double expert_bytes = 0;    // of all routed experts
  double routed_share = 0;    // of them, for one token
  double block_bytes = 0;     // of keys and values
  double flop_per_token = 0;  // of the layers' products
};

struct WindowOptions {
  std::string model = {}, device = {}, dtype = {};  // as they are to be shown
  WindowLimits limits = {};
  bool with_text = false;  // the end of what sequences say is shown
};

// Error where this build has no window.
void require_window();
// Answers a request for the page or for one of its files. ApiError where there is no such file.
void answer_page(Exchange& exchange);
// Of an engine, which outlives close(). Nothing is asked of it while nobody watches.
std::unique_ptr<Window> make_window(Engine& engine, WindowOptions options);
// Of a recording that can be done again. Error where it cannot.
std::unique_ptr<Window> make_window(Recording recording);

}  // namespace quire::server
