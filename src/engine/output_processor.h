#pragma once

#include <compare>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/hooks.h"
#include "engine/request.h"
#include "engine/search_rounds.h"
#include "scheduler/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// Where a stop string stands in a text.
struct StopPlace {
  std::size_t begin, end;
  auto operator<=>(const StopPlace&) const = default;
};
// In a text that grows: the one that begins first, of those that begin there the shortest; looking only at
// those that can have ended since the text had `old_size` bytes.
std::optional<StopPlace> find_stop(const std::vector<std::string>& stops, const std::string& text,
                                   std::size_t old_size);
// How many bytes at the text's end could be the beginning of a stop string.
std::size_t num_held_back(const std::vector<std::string>& stops, const std::string& text);

// Turns tokens into text, finds stop strings and calls back, on a thread of its own, so that none of it
// delays a step. Thread contract: add, push and finish may be called from any thread; what concerns one
// request, in order.
class OutputProcessor {
 public:
  // tokenizer: may be null, then outputs have no text. stop: told of a sequence that is to end, for a stop
  // string or a failure, on the output thread.
  OutputProcessor(const Tokenizer* tokenizer, EngineHooks::Fault fault, std::function<void(SequenceId)> stop);
  ~OutputProcessor();  // delivers what is queued, then aborts what has not ended
  OutputProcessor(const OutputProcessor&) = delete;
  OutputProcessor& operator=(const OutputProcessor&) = delete;

  struct Addition {
    RequestId id;
    EngineRequest request;                               // without its prompt
    std::shared_ptr<const std::vector<TokenId>> prompt;  // the scheduler's
  };
  // bad_alloc: none is.
  void add(std::vector<Addition> additions);
  struct Start {
    SequenceId id;
  };
  // Steps of these sequences were planned `at` then that are their first ones, or the first ones after a
  // preemption.
  void start(std::vector<Start> sequences, TimePoint at);
  // What a step brought that ended `at` then.
  void push(std::vector<SequenceUpdate> updates, TimePoint at);
  // A request's beam search has ended.
  void finish(SearchResult result);
  // Ends a sequence from outside, unless it has ended: abort, or an error and what it was.
  void finish(SequenceId id, FinishReason reason, std::string error = {});
  // Ends with this error all that has been added and has not ended.
  void fail_all(std::string error);

 private:
  using Clock = TimePoint::clock;
  struct Ending {
    SequenceId id;
    FinishReason reason;
    std::string error;
  };
  struct Failure {  // of all
    std::string error;
    static constexpr SequenceId id = 0;
  };
  using Item = std::variant<Addition, Start, SequenceUpdate, SearchResult, Ending, Failure>;
  struct Event {
    TimePoint at;
    Item item;
  };

  // How the text of one output comes about.
  struct Text {
    std::optional<IncrementalDetokenizer> detokenizer;
    std::size_t delivered = 0;  // bytes that were handed out
  };
  struct State {
    RequestId id = 0;
    EngineRequest request;
    std::shared_ptr<const std::vector<TokenId>> prompt;  // until its first event, when the output gets it
    RequestOutput output;
    std::vector<Text> texts;  // by output
    int num_unfinished = 0;
  };
  using States = std::map<RequestId, State>;

  void run();
  template <typename Each>  // Item, or an alternative of it
  void queue(std::span<Each> items, TimePoint at);
  template <typename Each>
  void push_all(std::span<Each> items, TimePoint at);
  void queue_now(Item item);
  void take(Event& event);
  void add(Addition& addition, TimePoint at);
  void handle(SequenceId id, Event event);
  // Ends the request that an event is of, where that cannot be handled.
  void give_up(Event& event, SequenceId id, const std::string& why);
  void end_all(FinishReason reason, const std::string& error);
  States::iterator find(SequenceId id);
  static void begin(State& state, std::size_t index, TimePoint at);
  template <typename News>  // what one of the following takes
  void apply_or_fail(State& state, std::size_t index, News& news, TimePoint at);
  static void apply(State& state, std::size_t index, SequenceUpdate& update, TimePoint at);
  static void apply(State& state, std::size_t index, const SearchResult& result, TimePoint at);
  static void apply(State& state, std::size_t index, Ending& ending, TimePoint at);
  // The text that is left when no token follows; true, as below.
  static bool end_text(State& state, std::size_t index);
  // True: a stop string was found and cut.
  static bool extend_text(State& state, std::size_t index, const std::string& new_text);
  static void choose_best(State& state);
  // Hand out one output as it stands, or all at once. False: the callback threw.
  bool deliver(State& state, std::size_t index, bool finished, std::vector<float> logits);
  bool deliver_all(State& state);
  void stop_unfinished(const State& state);

  const Tokenizer* tokenizer_;
  EngineHooks::Fault fault_;  // may be empty
  std::function<void(SequenceId)> stop_;
  States states_;  // of the output thread alone
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Event> queue_;  // guarded by mutex_
  bool closing_ = false;      // guarded by mutex_
  bool is_lost_ = false;      // guarded by mutex_: there was no memory to queue an event
  std::thread thread_;
};

}  // namespace quire
