#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "server/http_client.h"
#include "server/http_server.h"

namespace quire::server {

using namespace std::chrono_literals;

// A request that the test answers, and what it heard of its client.
struct HeldRequest {
  HttpRequest request;
  std::shared_ptr<HttpResponder> responder;
  std::shared_ptr<std::atomic<int>> disconnects;
};

template <typename Condition>
bool becomes_true(const Condition& condition, std::chrono::milliseconds limit = 60s) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

inline std::string get(std::string_view target, std::string_view more = {}) {
  return "GET " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more) + "\r\n";
}
inline std::string post(std::string_view target, std::string_view body) {
  return "POST " + std::string(target) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

// A server whose paths do: /echo answers at once with method, target and body; /hold leaves the answer to the
// test; /throw throws; /drop lets the responder go.
class HttpServerTest : public ::testing::Test {
 protected:
  void TearDown() override { server_.reset(); }

  HttpServerConfig config() const {
    HttpServerConfig config;
    config.port = 0;
    return config;
  }

  void start(HttpServerConfig config) {
    server_.emplace(std::move(config), [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      handle(std::move(request), std::move(responder));
    });
    server_->start();
  }
  void start() { start(config()); }

  HttpClient connect(int receive_buffer = 0) const { return HttpClient(server_->port(), receive_buffer); }

  HeldRequest wait_held() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 60s, [&] { return !held_.empty(); })) throw std::runtime_error("no request");
    HeldRequest held = std::move(held_.front());
    held_.pop_front();
    return held;
  }
  // Makes the client ask, and begins its answer.
  HeldRequest begin_held(HttpClient& client) {
    client.send(get("/hold"));
    HeldRequest held = wait_held();
    held.responder->begin(200, {});
    return held;
  }
  bool nothing_held() {
    const std::lock_guard lock(mutex_);
    return held_.empty();
  }

  // Many times over: while a client closes, `act` goes on with the answer that it has begun to get, each time
  // a little later.
  template <typename Act, typename Check>
  void race_with_a_close(const Act& act, const Check& check) {
    start();
    for (int i = 0; i < 200; ++i) {
      HttpClient client = connect();
      const HeldRequest held = begin_held(client);
      std::thread leaver([&] { client.close(); });
      std::this_thread::sleep_for(std::chrono::microseconds(i));
      act(*held.responder);
      leaver.join();
      SCOPED_TRACE(i);
      check(held);
    }
  }

  std::optional<HttpServer> server_;

 private:
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    const std::string_view path = request.path();
    if (path == "/throw") throw std::runtime_error("a secret 0x7fff1234");
    if (path == "/drop") return;
    if (path != "/hold") {
      const std::string body = request.method + " " + request.target + "\n" + request.body;
      return responder->send(200, {{"Content-Type", "text/plain"}}, body);
    }
    auto disconnects = std::make_shared<std::atomic<int>>(0);
    responder->on_disconnect([disconnects] { ++*disconnects; });
    const std::lock_guard lock(mutex_);
    held_.push_back({std::move(request), std::move(responder), std::move(disconnects)});
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HeldRequest> held_;
};

}  // namespace quire::server
