// What becomes of requests that ApiService has checked.
#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "server/api_service.h"

namespace quire::server {
namespace {

constexpr const char* kCutShort = "the request has timed out or was aborted before there was any output";

// A request that the engine works on: what it tells of each prompt becomes an answer, whole or streamed. A
// client that goes takes its sequences with it. It lives until the engine has told of all ends. Thread
// contract: submit once; updates come on the engine's output thread, disconnects on any.
class LiveRequest final : public std::enable_shared_from_this<LiveRequest> {
 public:
  LiveRequest(std::shared_ptr<ApiService> service, std::shared_ptr<Exchange> exchange,
              std::unique_ptr<Response> response)
      : service_(std::move(service)), exchange_(std::move(exchange)), response_(std::move(response)) {
    ++service_->num_live();
  }
  ~LiveRequest() { --service_->num_live(); }
  LiveRequest(const LiveRequest&) = delete;
  LiveRequest& operator=(const LiveRequest&) = delete;

  // One for each prompt, all of them or none. Error when the engine refuses: then answering is the caller's.
  void submit(std::vector<EngineRequest> requests) {
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

 private:
  void update(std::size_t prompt, const RequestUpdate& update) {
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

  // The client has gone.
  void abort() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    abort_all();
  }

  // Under mutex_, as is all that follows.
  void answer(std::size_t prompt, const RequestUpdate& update) {
    if (const std::optional<ApiError> error = failure_of(update.output)) {
      if (error->status == 500) log_error("request {}: {}", exchange_->id(), update.output.error);
      return fail(*error);
    }
    has_output_ = has_output_ || !update.output.token_ids.empty();
    const FinishReason reason = update.output.finish_reason;
    if (!has_output_ && (reason == FinishReason::kAbort || reason == FinishReason::kTimeout))
      return fail(ApiError(503, kCutShort));
    std::string events = response_->events(prompt, update);
    if (!events.empty()) exchange_->send_events(std::move(events));
    if (!update.finished) return;
    if (!response_->streams() || response_->has_timings()) outputs_[prompt] = update.request;
    if (--num_unfinished_ == 0) finish();
  }

  void finish() {
    done_ = true;
    if (!response_->streams()) return exchange_->send_json(200, response_->body(outputs_));
    exchange_->end_events(response_->last_events(outputs_));
  }

  void fail(const ApiError& error) {
    done_ = true;
    abort_all();
    if (!exchange_->is_streaming()) return exchange_->fail(error);
    exchange_->end_events(response_->failure_events(error));
  }

  void abort_all() {
    for (const RequestId id : ids_) service_->abort(id);
  }

  void record(const RequestOutput& request) {
    AccessRecord& record = exchange_->record();
    const auto add = [](std::optional<std::size_t>& sum, std::size_t count) {
      sum = sum.value_or(0) + count;
    };
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

  const std::shared_ptr<ApiService> service_;
  const std::shared_ptr<Exchange> exchange_;
  std::mutex mutex_;  // of all below, and of the exchange
  const std::unique_ptr<Response> response_;
  std::vector<RequestId> ids_;
  std::vector<RequestMetrics> metrics_;
  std::vector<RequestOutput> outputs_;  // by prompt, once it has ended, where the answer needs them
  std::size_t num_unfinished_ = 0;
  bool has_output_ = false;  // a token, of any prompt
  bool done_ = false;        // nothing more is to be said to the client
};

}  // namespace

void ApiService::generate(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<Response> response,
                          std::vector<EngineRequest> prompts) {
  // While it waits what the body has beside its prompts counts, too, however little of it the answer keeps.
  std::size_t prompt_bytes = 0;
  for (EngineRequest& prompt : prompts) {
    prompt_bytes += prompt.prompt.size() * SequenceRequest::kBytesPerQueuedToken;
    // No two keys and salts make one text.
    if (options_.separate_keys)
      prompt.cache_salt = format_text("key-{} {}", exchange->key(), prompt.cache_salt);
  }
  prompts.front().held_bytes = exchange->body_bytes() - std::min(exchange->body_bytes(), prompt_bytes);
  std::make_shared<LiveRequest>(shared_from_this(), exchange, std::move(response))
      ->submit(std::move(prompts));
}

}  // namespace quire::server
