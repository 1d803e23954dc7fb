#include "server/http_server.h"

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/beast/core/string.hpp>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "server/http_connection.h"

namespace quire::server {

namespace {

using ErrorCode = boost::system::error_code;

constexpr std::size_t kMaxReserved = 2 * HttpService::kReserve;  // those in the reserve, and on their way
constexpr std::chrono::milliseconds kAcceptPause{100};           // when the system has no descriptor left
constexpr std::chrono::minutes kAcceptWarningInterval{1};        // at least
constexpr std::size_t kOtherDescriptors = 128;  // of the process, beside those of connections

tcp::acceptor listen(asio::io_context& io, const HttpServerConfig& config) {
  try {
    const auto endpoints =
        tcp::resolver(io).resolve(config.host, std::to_string(config.port), tcp::resolver::passive);
    return tcp::acceptor(io, *endpoints.begin());  // its address may be one that was used a moment ago
  } catch (const boost::system::system_error& error) {
    fail("cannot listen on {}:{}: {}", config.host, config.port, error.code().message());
  }
}

// Raises the process's limit of open files where it must. Returns how many connections then have room.
std::size_t make_room(std::size_t max_connections) {
  rlimit limit{};
  const rlim_t needed = max_connections + kMaxReserved + kOtherDescriptors;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return max_connections;
  const rlimit raised{.rlim_cur = std::min(needed, limit.rlim_max), .rlim_max = limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= needed) return max_connections;
  const rlim_t left = limit.rlim_cur - std::min(limit.rlim_cur, needed - max_connections);
  const std::size_t connections = std::max<std::size_t>(1, left);
  log_warning(
      "{} connections at most, not {}: they need {} open files, and the hard limit (ulimit -Hn) is {}",
      connections, max_connections, needed, limit.rlim_max);
  return connections;
}

// What a client beyond the limit may do: as little as an urgent request needs, since it may keep others out.
HttpLimits reserve_limits(HttpLimits limits) {
  limits.max_header_bytes = std::min<std::size_t>(limits.max_header_bytes, 8 << 10);
  limits.max_body_bytes = 0;
  limits.header_timeout = std::min(limits.header_timeout, std::chrono::milliseconds(2'000));
  limits.write_timeout = std::min(limits.write_timeout, std::chrono::milliseconds(2'000));
  limits.linger_timeout = std::min(limits.linger_timeout, std::chrono::milliseconds(500));
  return limits;
}

asio::ssl::context tls_context(const HttpServerConfig& config) {
  asio::ssl::context context(asio::ssl::context::tls_server);
  context.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  // Where a key is encrypted OpenSSL would ask the terminal.
  context.set_password_callback(
      [](std::size_t, asio::ssl::context::password_purpose) { return std::string(); });
  ErrorCode error;
  context.use_certificate_chain_file(config.tls_certificate, error);
  if (error) fail("cannot use the TLS certificate {}: {}", config.tls_certificate, error.message());
  const std::string& key = config.tls_key.empty() ? config.tls_certificate : config.tls_key;
  context.use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) fail("cannot use the TLS key {}: {}", key, error.message());
  return context;
}

void run(IoThread& thread) {
  name_thread("quire-http");
  for (;;) {
    try {
      thread.io.run();
      return;
    } catch (const std::exception& error) {  // from a responder's on_disconnect, or where there is no memory
      log_error("HTTP thread: {}", error.what());
    }
  }
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (boost::beast::iequals(key, name)) return value;
  return std::nullopt;
}

struct HttpServer::Impl {
  // It belongs to the first I/O thread. Connections go to the threads in turn.
  asio::awaitable<void> accept_loop() {
    asio::steady_timer pause(io_threads[0]->io);
    ErrorCode error, ignored;
    std::optional<std::chrono::steady_clock::time_point> told;
    for (std::size_t turn = 0; !service->draining; turn = (turn + 1) % io_threads.size()) {
      try {
        if (error && error != asio::error::connection_aborted) {
          if (const auto now = std::chrono::steady_clock::now();
              !told || now - *told > kAcceptWarningInterval) {
            log_warning("cannot accept connections: {}", error.message());
            told = now;
          }
          pause.expires_after(kAcceptPause);
          co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
        }
        tcp::socket socket(io_threads[turn]->io);
        co_await acceptor->async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
        if (error || service->draining) continue;
        take(std::move(socket), io_threads[turn]);
      } catch (const std::exception&) {
        error = asio::error::no_memory;
      }
    }
  }

  void take(tcp::socket socket, std::shared_ptr<IoThread> thread) {
    bool reserved;
    {
      const std::lock_guard lock(service->mutex);
      reserved = service->open.ordinary >= service->config.limits.max_connections;
      if (reserved && service->open.beyond_limit >= kMaxReserved) return;
      ++(reserved ? service->open.beyond_limit : service->open.ordinary);
    }
    OpenConnection open(nullptr, [service = service, reserved](void*) {
      const std::lock_guard lock(service->mutex);
      --(reserved ? service->open.beyond_limit : service->open.ordinary);
      service->closed_one.notify_all();
    });
    ErrorCode ignored;
    if (reserved) {  // It stays on this thread, so that none piles up that is yet to make another give way.
      thread = io_threads[0];
      const auto protocol = acceptor->local_endpoint(ignored).protocol();
      socket = tcp::socket(thread->io, protocol, socket.release(ignored));
    }
    asio::post(thread->io, [service = service, thread, socket = std::move(socket), open = std::move(open),
                            reserved]() mutable {
      const auto connection =
          std::make_shared<HttpConnection>(service, thread, std::move(socket), std::move(open), reserved);
      try {
        thread->connections.insert(connection);
        connection->start();
      } catch (const std::exception&) {
        connection->cut();
        throw;
      }
    });
  }

  // Runs action on every I/O thread, for each of its connections.
  template <typename Action>
  void for_connections(const Action& action) {
    for (const std::shared_ptr<IoThread>& thread : io_threads) {
      asio::post(thread->io, [thread, action] {
        const auto connections = thread->connections;  // an action may close one
        for (const std::shared_ptr<HttpConnection>& connection : connections) action(*connection);
      });
    }
  }

  std::shared_ptr<HttpService> service = std::make_shared<HttpService>();
  std::vector<std::shared_ptr<IoThread>> io_threads;
  std::vector<std::thread> threads;
  std::optional<tcp::acceptor> acceptor;  // on the first thread
  tcp::endpoint endpoint;
};

HttpServer::HttpServer(HttpServerConfig config, HttpHandler handler) : impl_(std::make_unique<Impl>()) {
  QUIRE_CHECK(config.num_threads >= 1);
  HttpService& service = *impl_->service;
  service.config = std::move(config);
  service.reserve_limits = reserve_limits(service.config.limits);
  service.handler = std::move(handler);
  if (!service.config.tls_certificate.empty()) service.tls.emplace(tls_context(service.config));
  for (int i = 0; i < service.config.num_threads; ++i)
    impl_->io_threads.push_back(std::make_shared<IoThread>());
  impl_->acceptor.emplace(listen(impl_->io_threads[0]->io, service.config));
  impl_->endpoint = impl_->acceptor->local_endpoint();
}

HttpServer::~HttpServer() { stop({}); }

std::uint16_t HttpServer::port() const { return impl_->endpoint.port(); }

bool HttpServer::on_loopback() const { return impl_->endpoint.address().is_loopback(); }

std::size_t HttpServer::connections() const {
  const std::lock_guard lock(impl_->service->mutex);
  return impl_->service->open.all();
}

void HttpServer::start() {
  HttpLimits& limits = impl_->service->config.limits;
  limits.max_connections = make_room(limits.max_connections);
  asio::co_spawn(impl_->io_threads[0]->io, impl_->accept_loop(), asio::detached);
  for (const std::shared_ptr<IoThread>& thread : impl_->io_threads)
    impl_->threads.emplace_back([thread] { run(*thread); });
}

bool HttpServer::drain(std::chrono::milliseconds limit) {
  if (impl_->threads.empty()) return true;
  if (!impl_->service->draining.exchange(true)) {
    // After this no connection is under way to a thread.
    asio::post(impl_->io_threads[0]->io, asio::use_future([this] { impl_->acceptor->close(); })).get();
    impl_->for_connections([](HttpConnection& connection) { connection.drain(); });
  }
  HttpService& service = *impl_->service;
  std::unique_lock lock(service.mutex);
  return service.closed_one.wait_for(lock, limit, [&] { return service.open.all() == 0; });
}

void HttpServer::stop(std::chrono::milliseconds limit) {
  if (impl_->threads.empty()) return;  // never started, or stopped
  drain(limit);
  impl_->for_connections([](HttpConnection& connection) { connection.cut(); });
  for (const std::shared_ptr<IoThread>& thread : impl_->io_threads) thread->guard.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  impl_->service->handler = nullptr;  // what it owns need not live as long as the last responder
}

}  // namespace quire::server
