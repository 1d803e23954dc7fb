#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/json_fwd.h"
#include "server/access_log.h"
#include "server/api_error.h"
#include "server/http_server.h"

namespace quire::server {

// One request of a client and its answer: one JSON body, or a stream of events. Adds what all answers have,
// and tells of itself when it is over. Thread contract: one thread at a time.
class Exchange {
 public:
  using OnEnd = std::function<void(const AccessRecord&)>;

  // headers: of the answer, whatever it will be. on_end: called by the destructor.
  Exchange(HttpRequest request, std::shared_ptr<HttpResponder> responder, HttpHeaders headers, OnEnd on_end);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const HttpRequest& request() const { return request_; }
  // Its body, which it then no longer holds: the answer may take long. ApiError unless it is a JSON object.
  OrderedJson take_body();
  std::size_t body_bytes() const { return body_bytes_; }        // of that
  const std::string& id() const { return record_.request_id; }  // the client's X-Request-Id, or a random one
  AccessRecord& record() { return record_; }
  // The API that the client speaks, if not OpenAI's: its form of errors, and a header for the id, or empty.
  void set_api(ErrorBody error_body, std::string_view id_header) {
    error_body_ = error_body;
    if (!id_header.empty()) headers_.emplace_back(id_header, id());
  }
  // Which of the server's keys opened it, counted from 0; 0 where there are none.
  std::size_t key() const { return key_; }
  void set_key(std::size_t key) { key_ = key; }

  void send(int status, HttpHeaders headers, std::string body);
  void send_json(int status, const OrderedJson& body);
  // As to_event makes them. The first ones begin the answer: until then it may be an error.
  void send_events(std::string events);
  void end_events(std::string last_events);
  bool is_streaming() const { return streaming_; }
  // The answer, before any event.
  void fail(const ApiError& error, HttpHeaders headers = {});
  // As HttpResponder's.
  bool is_gone() const { return responder_->is_gone(); }
  void on_disconnect(std::function<void()> gone) { responder_->on_disconnect(std::move(gone)); }

 private:
  HttpHeaders with_common(HttpHeaders headers) const;
  void end(int status);

  HttpRequest request_;
  std::shared_ptr<HttpResponder> responder_;
  HttpHeaders headers_;
  OnEnd on_end_;
  AccessRecord record_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  ErrorBody error_body_ = openai_error;
  std::size_t key_ = 0;
  std::size_t body_bytes_ = 0;
  bool streaming_ = false;
};

}  // namespace quire::server
