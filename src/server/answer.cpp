#include "server/answer.h"

#include <algorithm>

namespace quire::server {
namespace {

HttpHeaders with(HttpHeaders headers, HttpHeaders more) {
  headers.insert(headers.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return headers;
}

Timings timings_of(std::span<const std::optional<RequestOutput>> outputs) {
  Timings longest;
  for (const std::optional<RequestOutput>& output : outputs) {
    const Timings timings = request_timings(*output);
    longest.queue_seconds = std::max(longest.queue_seconds, timings.queue_seconds);
    longest.prefill_seconds = std::max(longest.prefill_seconds, timings.prefill_seconds);
    longest.decode_seconds = std::max(longest.decode_seconds, timings.decode_seconds);
  }
  return longest;
}

}  // namespace

std::string event(const OrderedJson& json) { return "data: " + to_line(json) + "\n\n"; }

void Answer::submit(std::vector<EngineRequest> requests) {
  const std::shared_ptr<Answer> self = shared_from_this();
  const std::lock_guard lock(mutex_);
  num_unfinished_ = requests.size();
  outputs_.resize(requests.size());
  for (const EngineRequest& engine_request : requests)
    metrics_.emplace_back(context_.metrics, engine_request.params);
  try {
    for (std::size_t prompt = 0; prompt < requests.size(); ++prompt) {
      requests[prompt].on_update = [self, prompt](const RequestUpdate& update) {
        const std::lock_guard guard(self->mutex_);
        self->update(prompt, update);
      };
      ids_.push_back(context_.engine.submit(std::move(requests[prompt])));
    }
  } catch (const std::exception&) {
    ended_ = true;
    abort_all();
    throw;
  }
  // Not under the lock of a responder that calls at once: that would be this thread again.
  responder_->on_disconnect([weak = weak_from_this()] {
    const std::shared_ptr<Answer> answer = weak.lock();
    if (!answer) return;
    for (const RequestId id : answer->ids_) answer->context_.engine.abort(id);
  });
}

void Answer::update(std::size_t prompt, const RequestUpdate& update) {
  if (ended_) return;
  metrics_[prompt].update(update);
  if (!record_.first_token && !update.output.token_ids.empty())
    record_.first_token = std::chrono::steady_clock::now() - start_;
  if (const std::optional<ApiError> error = failure_of(update.output)) return fail(*error);
  if (request().stream)
    stream(prompt, update);
  else
    take(prompt, update);
  if (!update.finished) return;
  outputs_[prompt] = update.request;
  if (--num_unfinished_ == 0) finish();
}

// The status is sent with the first token, so that what fails before it is an HTTP error.
void Answer::stream(std::size_t prompt, const RequestUpdate& update) {
  std::string events;
  for (const OrderedJson& chunk : chunks(prompt, update)) events += event(chunk);
  if (events.empty()) return;
  if (!std::exchange(begun_, true)) {
    responder_->begin(200, with(headers_, {{"Content-Type", "text/event-stream; charset=utf-8"},
                                           {"Cache-Control", "no-cache"},
                                           {"X-Accel-Buffering", "no"}}));
  }
  responder_->write(std::move(events));
}

void Answer::finish() {
  std::optional<Timings> timings;
  if (request().timings) timings = timings_of(outputs_);
  if (request().stream) {
    std::string events;
    if (const auto last = last_chunk(timings)) events = event(*last);
    responder_->write(events + "data: [DONE]\n\n");
    responder_->end();
  } else {
    std::vector<RequestOutput> outputs;
    for (std::optional<RequestOutput>& output : outputs_) outputs.push_back(std::move(*output));
    responder_->send(200, with(headers_, {{"Content-Type", "application/json"}}), to_line(body(outputs, timings)));
  }
  end(200);
}

void Answer::fail(const ApiError& error) {
  abort_all();
  if (begun_) {
    responder_->write(event(error_body(error)) + "data: [DONE]\n\n");
    responder_->end();
  } else {
    responder_->send(error.status, with(headers_, {{"Content-Type", "application/json"}}),
                     to_line(error_body(error)));
  }
  end(error.status);
}

void Answer::abort_all() {
  for (const RequestId id : ids_) context_.engine.abort(id);
}

void Answer::end(int status) {
  ended_ = true;
  record_.status = status;
  record_.total = std::chrono::steady_clock::now() - start_;
  if (on_end) on_end(record_);
}

}  // namespace quire::server
