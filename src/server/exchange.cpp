#include "server/exchange.h"

#include <random>

#include "base/json.h"
#include "base/log.h"
#include "server/api_request.h"
#include "server/api_response.h"

namespace quire::server {
namespace {

constexpr int kClientGone = 499;  // in log and metrics, as nginx has it

std::string random_id() {
  thread_local std::mt19937_64 random(std::random_device{}());
  return format_text("{:016x}{:016x}", random(), random());
}

}  // namespace

Exchange::Exchange(HttpRequest request, std::shared_ptr<HttpResponder> responder, HttpHeaders headers,
                   OnEnd on_end)
    : request_(std::move(request)),
      responder_(std::move(responder)),
      headers_(std::move(headers)),
      on_end_(std::move(on_end)) {
  const std::string_view id = request_.header("X-Request-Id").value_or("");
  record_.time = std::chrono::system_clock::now();
  record_.method = request_.method;
  record_.path = request_.path();
  record_.request_id = is_request_id(id) ? std::string(id) : random_id();
  headers_.emplace_back("X-Request-Id", record_.request_id);
}

Exchange::~Exchange() {
  if (record_.status == 0) {  // it has no answer, or the responder's for want of one
    record_.client_gone = is_gone();
    end(record_.client_gone ? kClientGone : 500);
  }
  try {
    on_end_(record_);
  } catch (const std::exception& e) {
    log_error("request {}: {}", id(), e.what());
  }
}

OrderedJson Exchange::take_body() {
  body_bytes_ = request_.body.size();
  return parse_body(std::exchange(request_.body, {}));
}

void Exchange::send(int status, HttpHeaders headers, std::string body) {
  end(status);
  responder_->send(status, with_common(std::move(headers)), std::move(body));
}

void Exchange::send_json(int status, const OrderedJson& body) {
  send(status, {{"Content-Type", "application/json"}}, to_line(body));
}

void Exchange::send_events(std::string events) {
  if (!std::exchange(streaming_, true)) {
    responder_->begin(200, with_common({{"Content-Type", "text/event-stream; charset=utf-8"},
                                        {"Cache-Control", "no-cache"},
                                        {"X-Accel-Buffering", "no"}}));
  }
  responder_->write(std::move(events));
}

void Exchange::end_events(std::string last_events) {
  send_events(std::move(last_events));
  end(200);
  responder_->end();
}

void Exchange::fail(const ApiError& error, HttpHeaders headers) {
  record_.status = 0;  // of what could not be sent
  headers.emplace_back("Content-Type", "application/json");
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.retry_after() > 0) headers.emplace_back("Retry-After", format_text("{}", error.retry_after()));
  send(error.status, std::move(headers), to_line(error_body_(error, id())));
}

HttpHeaders Exchange::with_common(HttpHeaders headers) const {
  headers.insert(headers.end(), headers_.begin(), headers_.end());
  return headers;
}

void Exchange::end(int status) {
  record_.status = status;
  record_.total = std::chrono::steady_clock::now() - start_;
}

}  // namespace quire::server
