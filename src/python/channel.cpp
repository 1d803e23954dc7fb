#include "python/channel.h"

#include <algorithm>
#include <deque>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"
#include "python/json_input.h"

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

// How much of an output has been told.
struct Told {
  std::size_t tokens = 0, logprobs = 0;
};

CompletionOutput new_part(const RequestUpdate& update, Told& told) {
  const auto tail = [](const auto& all, std::size_t& told_of_it) {
    const std::size_t begin = std::min(std::exchange(told_of_it, all.size()), all.size());
    return std::remove_cvref_t<decltype(all)>(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end());
  };
  const CompletionOutput& from = update.output;
  CompletionOutput part;
  part.index = from.index;
  part.text = update.new_text;
  part.token_ids = tail(from.token_ids, told.tokens);
  part.logprobs = tail(from.logprobs, told.logprobs);
  part.cumulative_logprob = from.cumulative_logprob;
  part.finish_reason = from.finish_reason;
  part.stop_reason = from.stop_reason;
  part.error = from.error;
  part.times = from.times;
  return part;
}

}  // namespace

// What happened to one request: its end, or some new text of one output.
struct Channel::Event {
  std::int64_t tag = 0;
  bool finished = false;
  RequestOutput output;  // before it has finished: what is new of one of its outputs, and nothing else

  // {"tag", "finished", "outputs": [...]}; of a finished request also "prompt_token_ids",
  // "num_cached_tokens", "arrival", "prompt_logprobs" and "embedding". Times are seconds of the steady clock.
  // A logprob that is minus infinity is null.
  OrderedJson to_json() const {
    OrderedJson json = {{"tag", tag}, {"finished", finished}};
    if (finished) {
      json["prompt_token_ids"] = output.prompt_token_ids;
      json["num_cached_tokens"] = output.num_cached_tokens;
      json["arrival"] = seconds(output.arrival);
    }
    if (!output.prompt_logprobs.empty()) json["prompt_logprobs"] = logprobs_json(output.prompt_logprobs);
    if (!output.embedding.empty()) json["embedding"] = output.embedding;
    OrderedJson& outputs = json["outputs"] = OrderedJson::array();
    for (const CompletionOutput& one : output.outputs) outputs.push_back(completion_json(one));
    return json;
  }
};

// Shared with the engine's output thread.
struct Channel::Queue {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> events;  // guarded by mutex

  void push(Event event) {
    change_and_wake(mutex, arrived, [&] { events.push_back(std::move(event)); });
  }
};

Channel::Channel(const std::shared_ptr<Engine>& engine)
    : engine_(engine), queue_(std::make_shared<Queue>()) {}

Channel::~Channel() { abort(-1); }

Channel::Form Channel::read_form(std::string_view request) {
  const std::lock_guard lock(form_mutex_);
  if (form_source_ != request || request.empty()) {
    const OrderedJson json = parse_ordered_json(request, "the arguments");
    form_source_.clear();
    form_ = {};
    form_.request.params = read_sampling_params(json.at("params"));
    read_request_options(json.at("options"), form_.request);
    form_.streams = json.at("stream").get<bool>();
    form_source_ = request;
  }
  return form_;
}

void Channel::add(std::int64_t tag, std::string_view text, std::span<const std::int32_t> prompt) {
  auto [request, streams] = read_form(text);
  request.prompt.assign(prompt.begin(), prompt.end());
  request.on_update = [queue = queue_, tag, streams = streams,
                       told = std::map<int, Told>()](const RequestUpdate& update) mutable {
    if (update.finished) return queue->push({tag, true, update.request});
    if (!streams) return;
    Event event{.tag = tag, .finished = false, .output = {}};
    event.output.outputs.push_back(new_part(update, told[update.output.index]));
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
  if (!engine) return;
  const auto [begin, end] = tag < 0 ? std::pair(running_.begin(), running_.end()) : running_.equal_range(tag);
  for (auto running = begin; running != end; ++running) engine->abort(running->second);
}

}  // namespace quire::python
