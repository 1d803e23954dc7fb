#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "server/api_service.h"
#include "server/exchange.h"

namespace quire::server {

// A request that the engine works on: what it tells of each prompt becomes an answer, whole or streamed. A
// client that goes takes its sequences with it. It lives until the engine has told of all ends. Thread
// contract: submit once; updates come on the engine's output thread, disconnects on any.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  struct Context {
    std::shared_ptr<ApiService> service;
    std::shared_ptr<Exchange> exchange;
    ResponseHead head;  // of the answer
  };
  struct Form {
    bool stream = false;
    bool timings = false;
  };

  Generation(Context context, Form form)
      : service_(std::move(context.service)),
        exchange_(std::move(context.exchange)),
        head_(std::move(context.head)),
        form_(form) {}
  virtual ~Generation() = default;
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // A request for each prompt, all of them or none. Error when the engine refuses them: then answering is the
  // caller's.
  void submit(std::vector<EngineRequest> requests);

 protected:
  // Of a stream: what an update of a prompt adds, and what stands at the end.
  virtual std::vector<OrderedJson> chunks(std::size_t, const RequestUpdate&) { return {}; }
  virtual std::optional<OrderedJson> last_chunk(const std::optional<Timings>&) { return std::nullopt; }
  // Of a whole answer: what must be kept of an update, and the answer.
  virtual void take(const RequestUpdate&) {}
  virtual OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) = 0;

  const ApiService& service() const { return *service_; }
  const ResponseHead& head() const { return head_; }

 private:
  void update(std::size_t prompt, const RequestUpdate& update);
  void abort();  // the client has gone
  // Under mutex_.
  void answer(std::size_t prompt, const RequestUpdate& update);
  void finish();
  void fail(const ApiError& error);
  void abort_all();
  void record(const RequestOutput& request);

  const std::shared_ptr<ApiService> service_;
  const std::shared_ptr<Exchange> exchange_;
  const ResponseHead head_;
  const Form form_;
  std::mutex mutex_;  // of all below, and of the exchange
  std::vector<RequestId> ids_;
  std::vector<RequestMetrics> metrics_;
  std::vector<RequestOutput> outputs_;  // by prompt, once it has ended, where the answer needs them
  std::size_t num_unfinished_ = 0;
  bool has_output_ = false;  // a token, of any prompt
  bool done_ = false;        // nothing more is to be said to the client
};

}  // namespace quire::server
