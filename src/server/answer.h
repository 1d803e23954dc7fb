#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/access_log.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/api_response.h"
#include "server/http_server.h"
#include "server/metrics.h"

namespace quire::server {

// What every answer has to do with.
struct AnswerContext {
  Engine& engine;
  const ServedModel& model;
  Metrics& metrics;
};

// One request on its way: what the engine tells of it becomes an answer, whole or streamed. A client that
// goes takes its sequences with it. Thread contract: submit from one thread, updates from the engine's
// output thread, disconnects from any.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(AnswerContext context, ResponseHead head, std::shared_ptr<HttpResponder> responder,
         HttpHeaders headers, AccessRecord record)
      : context_(context),
        head_(std::move(head)),
        responder_(std::move(responder)),
        headers_(std::move(headers)),
        record_(std::move(record)) {}
  virtual ~Answer() = default;

  // All of them or none. ApiError when the engine refuses one.
  void submit(std::vector<EngineRequest> requests);
  // Of its own thread: called once, when it has been answered or the client has gone.
  std::function<void(const AccessRecord&)> on_end;

 protected:
  virtual const ApiRequest& request() const = 0;
  // The events of a stream that an update adds, as JSON.
  virtual std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) = 0;
  virtual std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) = 0;
  // What is to be kept of an update for the whole answer.
  virtual void take(std::size_t prompt, const RequestUpdate& update) = 0;
  virtual OrderedJson body(std::span<const RequestOutput> outputs,
                           const std::optional<Timings>& timings) = 0;

  AnswerContext context_;
  ResponseHead head_;

 private:
  void update(std::size_t prompt, const RequestUpdate& update);  // everything below: under mutex_
  void stream(std::size_t prompt, const RequestUpdate& update);
  void finish();
  void fail(const ApiError& error);
  void abort_all();
  void end(int status);

  std::shared_ptr<HttpResponder> responder_;
  HttpHeaders headers_;
  AccessRecord record_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::vector<RequestId> ids_;
  std::vector<RequestMetrics> metrics_;
  std::vector<std::optional<RequestOutput>> outputs_;  // by prompt, once it has ended
  std::size_t num_unfinished_ = 0;
  bool begun_ = false;  // the stream
  bool ended_ = false;
};

// One event of a stream of them: "data: {...}" and an empty line.
std::string event(const OrderedJson& json);

}  // namespace quire::server
