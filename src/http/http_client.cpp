#include "http/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <new>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr long kConnectTimeoutMs = 10'000;
constexpr long kMaxIdleConnections = 4096;
constexpr std::chrono::milliseconds kLongestWait{100};  // until a wish to stop is noticed

// Owns what libcurl made; `free` gives it back.
template <typename T, auto free>
using Owned = std::unique_ptr<T, decltype([](T* it) { free(it); })>;

using Url = Owned<CURLU, curl_url_cleanup>;
using Text = Owned<char, curl_free>;

// libcurl says by its results that there was no memory.
void check_memory(bool was_there) {
  if (!was_there) throw std::bad_alloc();
}

// What libcurl knows of a transfer.
template <typename T>
T info(CURL* easy, CURLINFO what) {
  T value{};
  curl_easy_getinfo(easy, what, &value);
  return value;
}

int status_of(CURL* easy) { return static_cast<int>(info<long>(easy, CURLINFO_RESPONSE_CODE)); }

// Those of the answer itself, not of interim ones before it.
std::map<std::string, std::string> headers_of(CURL* easy) {
  std::map<std::string, std::string> headers;
  curl_header* next = nullptr;
  while ((next = curl_easy_nextheader(easy, CURLH_HEADER, -1, next)) != nullptr) {
    std::string name = next->name;
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    headers[name] = next->value;
  }
  return headers;
}

// A request under way. libcurl has its address.
struct Transfer {
  HttpCall call;
  Owned<CURL, curl_easy_cleanup> easy;
  Owned<curl_slist, curl_slist_free_all> headers;
  std::array<char, CURL_ERROR_SIZE> error{};
  std::exception_ptr thrown;  // by the call's on_bytes, through which libcurl lets nothing pass

  explicit Transfer(HttpCall the_call) : call(std::move(the_call)), easy(curl_easy_init()) {
    check_memory(easy != nullptr);
    // HTTP/1.1 has one connection for each answer, so that streams do not hold up one another.
    set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_URL, call.url.c_str());
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
    set(CURLOPT_ERRORBUFFER, error.data());
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Transfer::take);
    if (call.body) {
      set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body->size()));
      set(CURLOPT_POSTFIELDS, call.body->data());
    }
    if (call.head_only) set(CURLOPT_NOBODY, 1L);
    if (call.stall_timeout.count() > 0) {
      set(CURLOPT_LOW_SPEED_LIMIT, 1L);  // bytes/s
      set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(call.stall_timeout.count()));
    }
    call.headers.emplace_back("Expect:");  // a long prompt is sent without asking first
    for (const std::string& header : call.headers) {
      curl_slist* const longer = curl_slist_append(headers.get(), header.c_str());
      check_memory(longer != nullptr);
      if (!headers) headers.reset(longer);
    }
    set(CURLOPT_HTTPHEADER, headers.get());
  }

  template <typename T>
  void set(CURLoption option, T value) {
    check_memory(curl_easy_setopt(easy.get(), option, value) != CURLE_OUT_OF_MEMORY);
  }

  static std::size_t take(const char* bytes, std::size_t size, std::size_t count, void* self) noexcept {
    Transfer& transfer = *static_cast<Transfer*>(self);
    try {
      if (transfer.call.on_bytes(status_of(transfer.easy.get()), {bytes, size * count})) return size * count;
    } catch (...) {
      transfer.thrown = std::current_exception();
    }
    return CURL_WRITEFUNC_ERROR;
  }
};

Url parse_url(const std::string& text) {
  Url url(curl_url());
  check_memory(url != nullptr);
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0);
  check_memory(code != CURLUE_OUT_OF_MEMORY);
  if (code != CURLUE_OK) fail("{} is no URL: {}", in_quotes(text), curl_url_strerror(code));
  return url;
}

// "" where the URL has none.
std::string part(const Url& url, CURLUPart which, unsigned flags = CURLU_DEFAULT_PORT) {
  char* text = nullptr;
  const CURLUcode code = curl_url_get(url.get(), which, &text, flags);
  check_memory(code != CURLUE_OUT_OF_MEMORY);
  return code == CURLUE_OK ? Text(text).get() : "";
}

}  // namespace

struct HttpClient::Impl {
  Owned<CURLM, curl_multi_cleanup> multi;
  std::unordered_map<CURL*, std::unique_ptr<Transfer>> transfers;

  void finish(CURL* easy, CURLcode code) {
    const auto node = transfers.extract(easy);
    Transfer& transfer = *node.mapped();
    curl_multi_remove_handle(multi.get(), easy);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    HttpOutcome outcome{status_of(easy),
                        {},
                        headers_of(easy),
                        std::chrono::seconds(info<curl_off_t>(easy, CURLINFO_RETRY_AFTER))};
    if (code != CURLE_OK)
      outcome.error = transfer.error[0] ? transfer.error.data() : curl_easy_strerror(code);
    transfer.call.on_done(outcome);
  }
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  QUIRE_CHECK(ready == CURLE_OK);
  impl_->multi.reset(curl_multi_init());
  check_memory(impl_->multi != nullptr);
  curl_multi_setopt(impl_->multi.get(), CURLMOPT_MAXCONNECTS, kMaxIdleConnections);
}

HttpClient::~HttpClient() { cancel_all(); }

void HttpClient::start(HttpCall call) {
  auto transfer = std::make_unique<Transfer>(std::move(call));
  CURL* const easy = transfer->easy.get();
  const auto started = impl_->transfers.emplace(easy, std::move(transfer)).first;
  const CURLMcode code = curl_multi_add_handle(impl_->multi.get(), easy);
  if (code != CURLM_OK) impl_->transfers.erase(started);
  check_memory(code != CURLM_OUT_OF_MEMORY);
  QUIRE_CHECK(code == CURLM_OK, "{}", curl_multi_strerror(code));
}

void HttpClient::poll(std::chrono::milliseconds timeout) {
  CURLM* const multi = impl_->multi.get();
  int running = 0;
  CURLMcode code = curl_multi_perform(multi, &running);
  // What has just ended is not waited for.
  if (code == CURLM_OK && static_cast<std::size_t>(running) == impl_->transfers.size()) {
    code = curl_multi_poll(multi, nullptr, 0, static_cast<int>(timeout.count()), nullptr);
    if (code == CURLM_OK) code = curl_multi_perform(multi, &running);
  }
  check_memory(code != CURLM_OUT_OF_MEMORY);
  QUIRE_CHECK(code == CURLM_OK, "{}", curl_multi_strerror(code));
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
    // The message is gone once its handle is removed.
    if (message->msg == CURLMSG_DONE) impl_->finish(message->easy_handle, message->data.result);
  }
}

void HttpClient::cancel_all() {
  for (const auto& [easy, transfer] : impl_->transfers) curl_multi_remove_handle(impl_->multi.get(), easy);
  impl_->transfers.clear();
}

std::optional<HttpOutcome> HttpClient::run(HttpCall call, const std::function<bool()>& stopped) {
  std::optional<HttpOutcome> outcome;
  // Whatever happens, nothing stays that refers to what is here.
  const std::shared_ptr<void> at_end(nullptr, [this](void*) { cancel_all(); });
  call.on_done = [&](const HttpOutcome& the_outcome) { outcome = the_outcome; };
  start(std::move(call));
  while (!outcome && !(stopped && stopped())) poll(kLongestWait);
  return outcome;
}

std::string fetch(HttpCall call) {
  std::string body;
  const std::string url = call.url;
  call.on_bytes = [&](int, std::string_view bytes) {
    body += bytes;
    return true;
  };
  const HttpOutcome outcome = *HttpClient().run(std::move(call));
  if (!outcome.error.empty()) fail("{}: {}", url, outcome.error);
  if (outcome.status != 200) fail("{}: HTTP {}: {}", url, outcome.status, error_text(body));
  return body;
}

std::string error_text(std::string_view body) {
  try {
    const Json object = parse_json(body, "the answer");
    const auto error = object.find("error");
    const Json& holder = error != object.end() && error->is_object() ? *error : object;
    const auto text = holder.find("message");
    if (text != holder.end() && text->is_string()) return in_quotes(text->get<std::string>());
  } catch (const Error&) {  // it is no JSON
  }
  return in_quotes(body);
}

std::string join_url(const std::string& base, const std::string& location) {
  const Url url = parse_url(base);
  const CURLUcode code = curl_url_set(url.get(), CURLUPART_URL, location.c_str(), 0);
  check_memory(code != CURLUE_OUT_OF_MEMORY);
  const std::string scheme = part(url, CURLUPART_SCHEME);
  if (code != CURLUE_OK || (scheme != "http" && scheme != "https"))
    fail("{} leads to {}, which is no http or https URL", base, in_quotes(location));
  std::string joined = part(url, CURLUPART_URL, 0);
  QUIRE_CHECK(!joined.empty());
  return joined;
}

bool same_origin(const std::string& a, const std::string& b) {
  const Url first = parse_url(a);
  const Url second = parse_url(b);
  for (const CURLUPart which : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT})
    if (part(first, which) != part(second, which)) return false;
  return true;
}

bool is_https(const std::string& url) { return part(parse_url(url), CURLUPART_SCHEME) == "https"; }

std::string escape_segment(const std::string& text) {
  if (text.empty()) return {};  // a length of 0 would have curl look for a NUL
  const Text escaped(curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())));
  check_memory(escaped != nullptr);
  return escaped.get();
}

}  // namespace quire
