#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/request.h"
#include "server/api_service.h"
#include "server/exchange.h"

namespace quire::server {

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

  // A request for each prompt, all of them or none. Error when the engine refuses them: then answering is the
  // caller's.
  void submit(std::vector<EngineRequest> requests);

 private:
  void update(std::size_t prompt, const RequestUpdate& update);
  void abort();  // the client has gone
  // Under mutex_.
  void answer(std::size_t prompt, const RequestUpdate& update);
  void finish();
  void fail(const ApiError& error);
  void abort_all() {
    for (const RequestId id : ids_) service_->abort(id);
  }
  void record(const RequestOutput& request);

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

}  // namespace quire::server
