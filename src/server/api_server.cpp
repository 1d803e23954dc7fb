#include "server/api_server.h"

#include <array>
#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/string.hpp>
#include <mutex>
#include <shared_mutex>

#include "base/host_memory.h"
#include "base/json.h"
#include "base/log.h"
#include "server/access_rules.h"
#include "server/messages.h"
#include "server/responses.h"

namespace quire::server {
namespace {

namespace asio = boost::asio;

// Up to this size a body is read and tokenized on its I/O thread, which costs less than waking another.
constexpr std::size_t kSmallBody = 8 << 10;
constexpr std::size_t kReadBetweenGivingBack = 1 << 20;  // bytes of bodies, which take many times that
constexpr std::chrono::milliseconds kAbortTime{2000};    // in which clients are told of an abort

constexpr std::string_view kHealth = "/health";
constexpr std::string_view kLive = "/live";
constexpr std::string_view kPing = "/ping";  // as /health, with POST too: SageMaker's
constexpr std::string_view kMetrics = "/metrics";
constexpr std::string_view kVersion = "/version";
constexpr std::string_view kWindow = "/window";
constexpr std::string_view kWindowState = "/window/state";
constexpr std::string_view kWindowFiles = "/window/";

struct Route {
  std::string_view path;  // ends with a slash: whatever follows it
  std::string_view method;
  void (ApiService::*handle)(const std::shared_ptr<Exchange>&);  // null: answer_itself does
  ErrorBody error_body = openai_error;
  bool expands = false;             // what it works on may be far longer than its body
  std::string_view id_header = {};  // that has the request's id, too
};
constexpr auto kRoutes = std::to_array<Route>({
    {kHealth, "GET", nullptr},
    {kLive, "GET", nullptr},
    {kPing, "GET", nullptr},
    {kPing, "POST", nullptr},
    {kVersion, "GET", nullptr},
    {"/v1/completions", "POST", &ApiService::complete},
    {"/v1/chat/completions", "POST", &ApiService::chat},
    {"/v1/responses", "POST", &ApiService::create_response, responses_error, true},
    {"/v1/responses/", "GET", &ApiService::get_response, openai_error, true},
    {"/v1/responses/", "DELETE", &ApiService::delete_response, openai_error, true},
    {"/v1/responses/", "POST", &ApiService::cancel_response, openai_error, true},
    {"/v1/embeddings", "POST", &ApiService::embed},
    {"/v1/messages", "POST", &ApiService::create_message, anthropic_error, false, "request-id"},
    {"/v1/messages/count_tokens", "POST", &ApiService::count_tokens, anthropic_error, false, "request-id"},
    {"/pooling", "POST", &ApiService::embed},
    {"/classify", "POST", &ApiService::embed},
    {"/score", "POST", &ApiService::score, openai_error, true},
    {"/v1/score", "POST", &ApiService::score, openai_error, true},
    {"/rerank", "POST", &ApiService::score, openai_error, true},
    {"/v1/rerank", "POST", &ApiService::score, openai_error, true},
    {"/v2/rerank", "POST", &ApiService::score, openai_error, true},
    {"/tokenize", "POST", &ApiService::tokenize},
    {"/detokenize", "POST", &ApiService::detokenize},
    {"/v1/models", "GET", &ApiService::show_models},
    {"/openapi.json", "GET", &ApiService::show_openapi},
    {"/v1/models/", "GET", &ApiService::show_models},
    {kMetrics, "GET", &ApiService::show_metrics},
    {"/load", "GET", &ApiService::show_load},
    {"/tokenizer_info", "GET", &ApiService::show_tokenizer_info},
    {"/completion", "POST", &ApiService::llama_complete},
    {"/completions", "POST", &ApiService::llama_complete},
    {"/apply-template", "POST", &ApiService::apply_template},
    {"/props", "GET", &ApiService::show_props},
    {kWindow, "GET", nullptr},
    {kWindowState, "GET", nullptr},
    {kWindowFiles, "GET", nullptr},
});
constexpr const char* kNotReady = "the server loads its model, or stops";
constexpr const char* kBroken = "the engine is broken; the server's log says more";

bool leads(const Route& route, std::string_view path) {
  return route.path.ends_with('/') ? path.size() > route.path.size() && path.starts_with(route.path)
                                   : path == route.path;
}

bool takes(const Route& route, std::string_view method) {
  return method == route.method || (method == "HEAD" && route.method == "GET");
}

// The path's with that method, or else the path's first; null: it has none.
const Route* find_route(std::string_view path, std::string_view method = {}) {
  const Route* found = nullptr;
  for (const Route& route : kRoutes) {
    if (!leads(route, path)) continue;
    if (found == nullptr || takes(route, method)) found = &route;
    if (takes(route, method)) break;
  }
  return found;
}

// What a client may do with a path, as the header Allow has it.
std::string methods_of(std::string_view path) {
  std::vector<std::string_view> methods;
  for (const Route& route : kRoutes)
    if (leads(route, path)) methods.push_back(route.method);
  return join_text(methods, ", ");
}

// The path behind a proxy's prefix, or all of it where it has none: that may be /v1, as paths of routes are.
std::string_view behind(std::string_view root, std::string_view path) {
  const bool has_root =
      path.starts_with(root) && path.substr(root.size()).starts_with('/') && find_route(path) == nullptr;
  return has_root ? path.substr(root.size()) : path;
}

// The path as routes have it: behind the prefix, and with the /v1 that llama.cpp's clients leave out.
std::string routed(std::string_view root, std::string_view path) {
  path = behind(root, path);
  const bool no_version = find_route(path) == nullptr && find_route(format_text("/v1{}", path)) != nullptr;
  return format_text("{}{}", no_version ? "/v1" : "", path);
}

// What asks how the server does. Metrics do not count it, as vLLM's do not: it would hide the work.
bool is_probe(std::string_view path) {
  return path == kHealth || path == kLive || path == kPing || path == kMetrics || path == kVersion;
}

bool is_window(std::string_view path) { return path == kWindow || path.starts_with(kWindowFiles); }

// What a browser loads before anybody could give it a key, and tells nothing.
bool is_open(std::string_view path) {
  return path == kHealth || path == kLive || path == kPing || (is_window(path) && path != kWindowState);
}

void check_content_type(const HttpRequest& request) {
  const auto coding = request.header("Content-Encoding");
  if (coding && !boost::beast::iequals(*coding, "identity"))
    throw ApiError(415, format_text("Content-Encoding is {}; it must be identity", in_quotes(*coding)));
  constexpr std::string_view kJson = "application/json";
  const auto type = request.header("Content-Type");
  if (!type || boost::beast::iequals(type->substr(0, kJson.size()), kJson)) return;
  throw ApiError(415, format_text("Content-Type is {}; it must be application/json", in_quotes(*type)));
}

// What the work throws becomes the answer.
template <typename Work>
void answering(Exchange& exchange, const Work& work) {
  try {
    work();
  } catch (const std::exception& e) {
    const ApiError error = to_api_error(e);
    if (error.status == 500) log_error("request {}: {}", exchange.id(), e.what());
    if (exchange.is_gone()) return;
    try {
      exchange.fail(error);
    } catch (const std::exception& again) {  // no memory, say; it ends without an answer, which is a 500
      log_error("request {}: {}", exchange.id(), again.what());
    }
  }
}

// route: null where there is none.
void tell(const AccessRecord& record, const Route* route, AccessLog& log, ApiService* service) {
  log.write(record);
  if (service == nullptr || is_probe(record.path) || is_window(record.path)) return;
  const double seconds = std::chrono::duration<double>(record.total).count();
  const std::string name(route == nullptr ? "none" : route->path);
  service->metrics().add_response(name, record.method, record.status, seconds);
}

}  // namespace

struct ApiServer::Impl {
  explicit Impl(ApiServerConfig given)
      : config(std::move(given)),
        keys(config.api_keys),
        cors(config.allowed_origins),
        hosts(config.http.host, config.allowed_hosts),
        log(std::make_shared<AccessLog>(config.access_log)),
        workers(static_cast<std::size_t>(config.num_workers)),
        http(http_config(), [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
          handle(std::move(request), std::move(responder));
        }) {}

  HttpServerConfig http_config() {
    HttpServerConfig made = config.http;
    made.error_body = [this](int status, const std::string& message, const std::string& target) {
      const std::string path = routed(config.root_path, target.substr(0, target.find('?')));
      const Route* route = find_route(path, "POST");
      return to_line((route ? route->error_body : openai_error)(ApiError(status, message), {}));
    };
    made.is_urgent = [this](const HttpRequest& request) {
      return (request.method == "GET" || request.method == "HEAD") &&
             is_probe(behind(config.root_path, request.path()));
    };
    made.on_refused = [this](int status) {
      AccessRecord record;
      record.time = std::chrono::system_clock::now();
      record.method = record.path = record.request_id = "-";  // it was not read so far
      record.status = status;
      const std::shared_lock lock(mutex);
      tell(record, nullptr, *log, service.get());
    };
    return made;
  }

  // On an I/O thread, as are hand_over and has_work.
  void handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    const std::shared_lock lock(mutex);
    const std::string_view sent = request.path();
    request.target.replace(0, sent.size(), routed(config.root_path, sent));
    HttpHeaders headers = cors.headers(request.header("Origin").value_or(""));
    const Route* const route = find_route(request.path(), request.method);
    auto told = [log = log, service = service, route](const AccessRecord& record) {
      tell(record, route, *log, service.get());
    };
    const auto exchange = std::make_shared<Exchange>(std::move(request), std::move(responder),
                                                     std::move(headers), std::move(told));
    answering(*exchange, [&] {
      if (!has_work(route, exchange)) return;
      if (!service) throw ApiError(503, kNotReady);
      if (exchange->request().body.size() <= kSmallBody && !route->expands)
        return ((*service).*(route->handle))(exchange);
      hand_over(*route, exchange);
    });
  }

  // To a worker.
  void hand_over(const Route& route, const std::shared_ptr<Exchange>& exchange) {
    const std::size_t bytes = exchange->request().body.size();
    if (waiting_body_bytes.fetch_add(bytes) + bytes > config.max_waiting_body_bytes) {
      waiting_body_bytes -= bytes;
      throw ApiError(503, "too many large requests wait to be read; try again later");
    }
    try {
      asio::post(workers, [this, exchange, &route, bytes, service = service] {
        waiting_body_bytes -= bytes;
        answering(*exchange, [&] { ((*service).*(route.handle))(exchange); });
        count_read(bytes);
      });
    } catch (...) {  // no memory
      waiting_body_bytes -= bytes;
      throw;
    }
  }

  void count_read(std::size_t body_bytes) {
    const bool enough = read_body_bytes.fetch_add(body_bytes) + body_bytes >= kReadBetweenGivingBack;
    if (!enough || waiting_body_bytes > 0) return;  // what waits will use it
    read_body_bytes = 0;
    give_back_memory();
  }

  // Whether it is a request that the client may make, for the service; false: it has its answer.
  bool has_work(const Route* route, const std::shared_ptr<Exchange>& shared) const {
    Exchange& exchange = *shared;
    const HttpRequest& request = exchange.request();
    const std::string_view path = request.path();
    if (request.method == "OPTIONS") {
      const auto wanted = request.header("Access-Control-Request-Headers").value_or("");
      exchange.send(204, cors.preflight_headers(request.header("Origin").value_or(""), wanted), {});
      return false;
    }
    if (route != nullptr) exchange.set_api(route->error_body, route->id_header);
    if (!is_open(path)) exchange.set_key(check_access(request));
    if (route == nullptr) throw ApiError(404, format_text("there is no {}", in_quotes(path)));
    if (!takes(*route, request.method)) {
      const std::string allowed = methods_of(path);
      exchange.fail(
          ApiError(405, format_text("this path takes {}, not {}", allowed, in_quotes(request.method))),
          {{"Allow", allowed}});
      return false;
    }
    if (route->handle == nullptr) {
      answer_itself(shared);
      return false;
    }
    if (route->method == "POST") check_content_type(request);
    return true;
  }

  void answer_itself(const std::shared_ptr<Exchange>& shared) const {
    Exchange& exchange = *shared;
    const std::string_view path = exchange.request().path();
    if (is_window(path)) {
      if (!window && !service) throw ApiError(503, kNotReady);
      if (!window) throw ApiError(404, "there is no window; `quire serve --window` opens one");
      return path == kWindowState ? window->answer(shared) : answer_page(exchange);
    }
    if (path == kVersion) return exchange.send_json(200, {{"version", QUIRE_VERSION}});
    if (path != kLive && !service) throw ApiError(503, kNotReady);
    if (service && !service->healthy()) throw ApiError(503, kBroken);
    exchange.send_json(200, {{"status", path == kLive ? "live" : "ok"}});
  }

  // A web page's requests carry its origin. Where it is not allowed the browser would only keep the answer
  // from the page; the work would be done. Of a page whose name points here, GETs carry none, but that name
  // as host. The key that the request brings.
  std::size_t check_access(const HttpRequest& request) const {
    const bool needs_key = !(config.public_metrics && request.path() == "/metrics");
    const std::optional<std::size_t> key =
        keys.find(request.header("Authorization").value_or(""), request.header("X-Api-Key").value_or(""));
    if (needs_key && !key)
      throw ApiError(401, "the API key is missing or wrong; it is sent as Authorization: Bearer KEY");
    const bool names_matter =
        !config.allowed_hosts.empty() || (config.api_keys.empty() && http.on_loopback());
    if (names_matter && !hosts.accept(request.host))
      throw ApiError(403,
                     format_text("this server is not called {} (--allowed-hosts)", in_quotes(request.host)));
    const auto origin = request.header("Origin");
    if (origin && !cors.allows(*origin)) {
      throw ApiError(403,
                     format_text("the origin {} is not allowed (--allowed-origins)", in_quotes(*origin)));
    }
    return key.value_or(0);
  }

  const ApiServerConfig config;
  const ApiKeys keys;
  const Cors cors;
  const HostNames hosts;
  const std::shared_ptr<AccessLog> log;
  std::shared_mutex mutex;              // held, shared, while an I/O thread handles a request
  std::shared_ptr<ApiService> service;  // guarded by mutex; null: loading, or stopped
  std::shared_ptr<Window> window;       // guarded by mutex; null: there is none
  std::atomic<std::size_t> waiting_body_bytes{0};
  std::atomic<std::size_t> read_body_bytes{0};  // since memory was given back
  asio::thread_pool workers;
  HttpServer http;
};

std::vector<std::string> served_routes() {
  std::vector<std::string> routes;
  for (const Route& route : kRoutes) routes.push_back(format_text("{} {}", route.method, route.path));
  return routes;
}

ApiServer::ApiServer(ApiServerConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {
  if (impl_->config.api_keys.empty() && !impl_->http.on_loopback())
    log_warning("{} is open to other machines, and without --api-key anyone who reaches it may use it",
                impl_->config.http.host);
  impl_->http.start();
}

ApiServer::~ApiServer() { stop({}); }

std::uint16_t ApiServer::port() const { return impl_->http.port(); }

std::size_t ApiServer::connections() const { return impl_->http.connections(); }

void ApiServer::serve(std::shared_ptr<ApiService> service) {
  const std::lock_guard lock(impl_->mutex);
  impl_->service = std::move(service);
}

void ApiServer::show(std::shared_ptr<Window> window) {
  const std::lock_guard lock(impl_->mutex);
  impl_->window = std::move(window);
}

void ApiServer::stop(std::chrono::milliseconds drain) {
  const auto take = [this](auto& pointer) {
    const std::lock_guard lock(impl_->mutex);
    return std::exchange(pointer, nullptr);
  };
  const std::shared_ptr<Window> window = take(impl_->window);  // goes last
  if (window) window->close();                                 // whoever watches would go on for ever
  const bool all_answered = impl_->http.drain(drain);
  const std::shared_ptr<ApiService> service = take(impl_->service);
  impl_->workers.join();
  if (service) service->close();
  impl_->http.stop(all_answered ? std::chrono::milliseconds(0) : kAbortTime);
}

}  // namespace quire::server
