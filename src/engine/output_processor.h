#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "engine/stop_strings.h"
#include "scheduler/scheduler.h"
#include "tokenizer/incremental_detokenizer.h"

namespace quire {

// Turns tokens into text, finds stop strings and calls back, on a thread of its own, so that none of it
// delays a step. Thread contract: add, push and finish may be called from any thread; what concerns one
// request, in order.
class OutputProcessor {
 public:
  // tokenizer: may be null, then outputs have no text. stop: told of a request that a stop string ended, on
  // the output thread.
  OutputProcessor(const Tokenizer* tokenizer, std::function<void(RequestId)> stop);
  ~OutputProcessor();  // delivers what is queued, then aborts what has not ended
  OutputProcessor(const OutputProcessor&) = delete;
  OutputProcessor& operator=(const OutputProcessor&) = delete;

  void add(RequestId id, EngineRequest request);
  void push(std::vector<SequenceUpdate> updates);
  // Ends a request from outside, unless it has ended: abort, or an error and what it was.
  void finish(RequestId id, FinishReason reason, std::string error = {});

 private:
  struct Addition {
    RequestId id;
    EngineRequest request;
  };
  struct Ending {
    RequestId id;
    FinishReason reason;
    std::string error;
  };
  using Item = std::variant<Addition, SequenceUpdate, Ending>;

  struct State {
    EngineRequest request;
    RequestOutput output;
    std::optional<IncrementalDetokenizer> detokenizer;
    StopStrings stops;
    std::size_t delivered = 0;  // bytes of the text that were handed out
  };

  void run();
  void handle(Item item);
  void apply(RequestId id, State& state, SequenceUpdate& update);
  static std::string unfinished_text(State& state);
  static bool extend_text(State& state,
                          const std::string& new_text);  // true: a stop string was found and cut
  void deliver(RequestId id, State& state, std::vector<float> logits);

  const Tokenizer* tokenizer_;
  std::function<void(RequestId)> stop_;
  std::unordered_map<RequestId, State> states_;  // of the output thread alone
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Item> queue_;  // guarded by mutex_
  bool closing_ = false;     // guarded by mutex_
  std::thread thread_;
};

}  // namespace quire
