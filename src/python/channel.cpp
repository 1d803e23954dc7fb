#include "python/channel.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/json.h"

namespace quire::python {
namespace {

constexpr std::size_t kMostEvents = 512;

OrderedJson seconds(const std::optional<TimePoint>& time) {
  if (!time) return nullptr;
  return std::chrono::duration<double>(time->time_since_epoch()).count();
}

// [id, logprob, rank]; rank 0: not known.
OrderedJson token_json(const TokenLogprob& token) {
  return OrderedJson::array({token.token_id, token.logprob, token.rank});
}

// Of each position a list: the token that stands there, then the most likely ones.
OrderedJson logprobs_json(const std::vector<PositionLogprobs>& positions) {
  OrderedJson list = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson tokens = OrderedJson::array({token_json(position.token)});
    for (const TokenLogprob& token : position.top) tokens.push_back(token_json(token));
    list.push_back(std::move(tokens));
  }
  return list;
}

OrderedJson stop_reason_json(const CompletionOutput& output) {
  if (const auto* id = std::get_if<std::int32_t>(&output.stop_reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) return *text;
  return nullptr;
}

// One output, or the new part of one: {"index", "token_ids", "text", ...}; what it ended with once it has.
OrderedJson completion_json(const CompletionOutput& output) {
  OrderedJson json = {{"index", output.index}, {"token_ids", output.token_ids}, {"text", output.text}};
  if (!output.logprobs.empty()) json["logprobs"] = logprobs_json(output.logprobs);
  if (output.cumulative_logprob) json["cumulative_logprob"] = *output.cumulative_logprob;
  if (output.score) json["score"] = *output.score;
  if (!output.finished()) return json;
  json["finish_reason"] = to_string(output.finish_reason);
  json["stop_reason"] = stop_reason_json(output);
  if (!output.error.empty()) json["error"] = output.error;
  json["scheduled"] = seconds(output.times.scheduled);
  json["first_token"] = seconds(output.times.first_token);
  json["last_token"] = seconds(output.times.last_token);
  json["ended"] = seconds(output.times.finished);
  return json;
}

// A finished request: {"tag", "finished": true, "prompt_token_ids", "prompt_logprobs", "num_cached_tokens",
// "arrival", "outputs": [...]} or with "embedding". Times are seconds of the steady clock. A logprob that is
// minus infinity is null.
OrderedJson request_json(std::int64_t tag, const RequestOutput& output) {
  OrderedJson json = {{"tag", tag},
                      {"finished", true},
                      {"prompt_token_ids", output.prompt_token_ids},
                      {"num_cached_tokens", output.num_cached_tokens},
                      {"arrival", seconds(output.arrival)}};
  if (!output.prompt_logprobs.empty()) json["prompt_logprobs"] = logprobs_json(output.prompt_logprobs);
  if (!output.embedding.empty()) json["embedding"] = output.embedding;
  OrderedJson& outputs = json["outputs"] = OrderedJson::array();
  for (const CompletionOutput& one : output.outputs) outputs.push_back(completion_json(one));
  return json;
}

}  // namespace

// What happened to one request: its end, or some new text of one output.
struct Channel::Event {
  std::int64_t tag = 0;
  bool finished = false;
  RequestOutput whole;     // once it has finished
  CompletionOutput piece;  // before: what is new of one output

  OrderedJson to_json() const {
    if (finished) return request_json(tag, whole);
    return {{"tag", tag}, {"finished", false}, {"outputs", OrderedJson::array({completion_json(piece)})}};
  }
};

// Shared with the engine's output thread.
struct Channel::Queue {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> events;  // guarded by mutex

  void push(Event event) {
    {
      const std::lock_guard lock(mutex);
      events.push_back(std::move(event));
    }
    arrived.notify_all();
  }
};

Channel::Channel(const std::shared_ptr<Engine>& engine)
    : engine_(engine), queue_(std::make_shared<Queue>()) {}

Channel::~Channel() { abort_all(); }

void Channel::add(std::int64_t tag, EngineRequest request, bool streams) {
  // How much of each output has been told.
  struct Told {
    std::size_t tokens = 0, logprobs = 0;
  };
  request.on_update = [queue = queue_, tag, streams,
                       told = std::map<int, Told>()](const RequestUpdate& update) mutable {
    Event event{.tag = tag, .finished = update.finished, .whole = {}, .piece = {}};
    if (update.finished) {
      event.whole = update.request;
    } else if (streams) {
      const CompletionOutput& from = update.output;
      Told& before = told[from.index];
      const auto tail = [](const auto& all, std::size_t& from_there) {
        const std::size_t begin = std::min(std::exchange(from_there, all.size()), all.size());
        return std::remove_cvref_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                                  all.end());
      };
      CompletionOutput& piece = event.piece;
      piece.index = from.index;
      piece.text = update.new_text;
      piece.token_ids = tail(from.token_ids, before.tokens);
      piece.logprobs = tail(from.logprobs, before.logprobs);
      piece.cumulative_logprob = from.cumulative_logprob;
      piece.finish_reason = from.finish_reason;
      piece.stop_reason = from.stop_reason;
      piece.error = from.error;
      piece.times = from.times;
    } else {
      return;
    }
    queue->push(std::move(event));
  };
  const std::lock_guard lock(mutex_);
  added_tags_.push_back(tag);
  added_.push_back(std::move(request));
}

void Channel::flush() {
  const std::lock_guard lock(mutex_);
  const std::vector<std::int64_t> tags = std::exchange(added_tags_, {});
  std::vector<EngineRequest> requests = std::exchange(added_, {});
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (!engine) fail("the engine is closed");
  const std::vector<RequestId> ids = engine->submit(requests);
  for (std::size_t i = 0; i < ids.size(); ++i) running_[tags[i]] = ids[i];
}

std::string Channel::next(std::chrono::milliseconds time) {
  std::deque<Event> events;
  {
    std::unique_lock lock(queue_->mutex);
    queue_->arrived.wait_for(lock, time, [this] { return !queue_->events.empty(); });
    while (!queue_->events.empty() && events.size() < kMostEvents) {
      events.push_back(std::move(queue_->events.front()));
      queue_->events.pop_front();
    }
  }
  if (events.empty()) return {};
  OrderedJson list = OrderedJson::array();
  for (const Event& event : events) list.push_back(event.to_json());
  const std::lock_guard lock(mutex_);
  for (const Event& event : events)
    if (event.finished) running_.erase(event.tag);
  return list.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void Channel::abort(std::int64_t tag) {
  const std::shared_ptr<Engine> engine = engine_.lock();
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(tag);
  if (engine && found != running_.end()) engine->abort(found->second);
}

void Channel::abort_all() {
  const std::shared_ptr<Engine> engine = engine_.lock();
  const std::lock_guard lock(mutex_);
  if (engine)
    for (const auto& [tag, id] : running_) engine->abort(id);
}

}  // namespace quire::python
