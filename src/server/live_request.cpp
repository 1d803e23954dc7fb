#include "server/live_request.h"

#include <algorithm>

#include "base/log.h"

namespace quire::server {
namespace {

constexpr const char* kCutShort = "the request has timed out or was aborted before there was any output";

}  // namespace

void LiveRequest::submit(std::vector<EngineRequest> requests) {
  const std::shared_ptr<LiveRequest> self = shared_from_this();
  {
    const std::lock_guard lock(mutex_);
    num_unfinished_ = requests.size();
    outputs_.resize(requests.size());
    for (std::size_t prompt = 0; prompt < requests.size(); ++prompt) {
      metrics_.emplace_back(service_->metrics(), requests[prompt].params);
      requests[prompt].on_update = [self, prompt](const RequestUpdate& update) {
        self->update(prompt, update);
      };
    }
    ids_ = service_->submit(requests);
  }
  exchange_->on_disconnect([weak = weak_from_this()] {
    if (const std::shared_ptr<LiveRequest> request = weak.lock()) request->abort();
  });
}

void LiveRequest::abort() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  abort_all();
}

void LiveRequest::update(std::size_t prompt, const RequestUpdate& update) {
  const std::lock_guard lock(mutex_);
  try {
    metrics_[prompt].update(update);
    if (update.finished) record(update.request);
    if (!done_) answer(prompt, update);
  } catch (const std::exception& e) {
    log_error("request {}: its answer failed: {}", exchange_->id(), e.what());
    fail(to_api_error(e));
  }
}

void LiveRequest::record(const RequestOutput& request) {
  AccessRecord& record = exchange_->record();
  const auto add = [](std::optional<std::size_t>& sum, std::size_t count) { sum = sum.value_or(0) + count; };
  add(record.prompt_tokens, request.prompt_token_ids.size());
  add(record.cached_tokens, static_cast<std::size_t>(request.num_cached_tokens));
  if (record.cache_end <= CacheEnd::Reason::kWhole) record.cache_end = request.cache_end.reason;
  for (const CompletionOutput& output : request.outputs) {
    add(record.output_tokens, output.token_ids.size());
    record.finish_reason = to_string(output.finish_reason);
    if (!output.times.first_token) continue;
    const auto first_token = *output.times.first_token - request.arrival;
    record.first_token =
        std::min<std::chrono::nanoseconds>(record.first_token.value_or(first_token), first_token);
  }
}

void LiveRequest::answer(std::size_t prompt, const RequestUpdate& update) {
  if (const std::optional<ApiError> error = failure_of(update.output)) {
    if (error->status == 500) log_error("request {}: {}", exchange_->id(), update.output.error);
    return fail(*error);
  }
  has_output_ = has_output_ || !update.output.token_ids.empty();
  const FinishReason reason = update.output.finish_reason;
  if (!has_output_ && (reason == FinishReason::kAbort || reason == FinishReason::kTimeout))
    return fail(ApiError(503, kCutShort));
  if (response_->form().stream) {
    std::string events = response_->events(prompt, update);
    if (!events.empty()) exchange_->send_events(std::move(events));
  } else {
    response_->take(update);
  }
  if (!update.finished) return;
  if (!response_->form().stream || response_->form().timings) outputs_[prompt] = update.request;
  if (--num_unfinished_ == 0) finish();
}

void LiveRequest::finish() {
  done_ = true;
  std::optional<Timings> timings;
  if (response_->form().timings) timings = timings_of(outputs_);
  if (!response_->form().stream) return exchange_->send_json(200, response_->body(outputs_, timings));
  exchange_->end_events(response_->last_events(timings));
}

void LiveRequest::fail(const ApiError& error) {
  done_ = true;
  abort_all();
  if (!exchange_->is_streaming()) return exchange_->fail(error);
  exchange_->end_events(response_->failure_events(error));
}

}  // namespace quire::server
