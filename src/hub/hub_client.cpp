#include "hub/hub_client.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/parse_number.h"
#include "hub/hub_cache.h"

namespace quire {
namespace {

constexpr std::chrono::milliseconds kLongestPause{100};  // until a wish to stop is noticed
constexpr std::chrono::seconds kLongestBackoff{60};
constexpr std::chrono::seconds kLongestRetryAfter{600};
constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;
constexpr int kMaxRedirects = 5;

bool is_redirect(int status) { return status >= 301 && status <= 308 && status != 304; }

// Whether the same request may go well later.
bool may_pass(const HttpOutcome& outcome) {
  return !outcome.error.empty() || outcome.status == 408 || outcome.status == 429 || outcome.status >= 500;
}

std::string header(const HttpOutcome& outcome, const std::string& name) {
  const auto found = outcome.headers.find(name);
  return found == outcome.headers.end() ? "" : found->second;
}

std::string reason(const HttpOutcome& outcome) {
  if (!outcome.error.empty()) return outcome.error;
  const std::string message = header(outcome, "x-error-message");
  return format_text("HTTP {}", outcome.status) + (message.empty() ? "" : ": " + in_quotes(message));
}

// "abc", or W/"abc" where it may be another coding of the same.
std::string without_quotes(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

std::optional<std::uint64_t> to_size(const std::string& text) {
  const auto size = parse_number<std::uint64_t>(text);
  // Sizes are added up and counted down, as signed numbers too.
  return size && *size < (std::uint64_t{1} << 50) ? size : std::nullopt;
}

}  // namespace

std::string HubClient::file_url(const std::string& commit, const std::string& file) const {
  std::string url = format_text("{}/{}/resolve/{}", settings_.endpoint, id_, commit);
  std::istringstream segments(file);
  for (std::string segment; std::getline(segments, segment, '/');) url += "/" + escape_segment(segment);
  return url;
}

bool HubClient::is_home(const std::string& url) const {
  return same_origin(url, settings_.endpoint) || same_origin(url, settings_.mirrored);
}

HttpOutcome HubClient::request(HttpCall call, bool home_only) {
  std::map<std::string, std::string> linked;  // what the hub says of a file that it has elsewhere
  bool at_home = true;
  // Compressed bytes would have another size.
  call.headers.insert(call.headers.end(), {"Accept-Encoding: identity", "User-Agent: quire"});
  for (int hop = 0;; ++hop) {
    HttpCall next = call;
    // Once away from home it is not trusted again, wherever a redirect leads.
    at_home = at_home && is_home(next.url);
    if (at_home && !settings_.token.empty())
      next.headers.push_back("Authorization: Bearer " + settings_.token);
    next.stall_timeout = settings_.stall_timeout;
    std::optional<HttpOutcome> answer = client_.run(std::move(next), stopped_);
    if (!answer) throw Stopped();
    HttpOutcome& outcome = *answer;
    if (at_home) {
      for (const char* name : {"x-linked-etag", "x-linked-size", "x-repo-commit"})
        if (const std::string value = header(outcome, name); !value.empty()) linked[name] = value;
    }
    const std::string location = header(outcome, "location");
    // A link into the storage has a time limit; the hub makes another one.
    if (!at_home && outcome.status == 403) outcome.error = "HTTP 403 from the hub's storage";
    const bool leads_on = is_redirect(outcome.status) && !location.empty();
    const std::string url = leads_on ? join_url(call.url, location) : "";
    if (!leads_on || (home_only && !is_home(url))) {
      for (const auto& [name, value] : linked) outcome.headers[name] = value;
      return outcome;
    }
    if (is_https(call.url) && !is_https(url))
      fail("{}: leads to {}, which is not encrypted", call.url, in_quotes(url));
    if (hop == kMaxRedirects) fail("{}: more than {} redirects", call.url, kMaxRedirects);
    call.url = url;
  }
}

HttpOutcome HubClient::insist(const std::string& url, const std::function<HttpOutcome()>& attempt,
                              const std::function<std::uint64_t()>& progress) {
  std::uint64_t most = progress();
  std::chrono::milliseconds backoff = settings_.first_backoff;
  for (int attempts = 1;; ++attempts) {
    const HttpOutcome outcome = attempt();
    if (!may_pass(outcome)) {
      if (outcome.status >= 400) refuse(url, outcome);
      return outcome;
    }
    if (progress() > most) {
      most = progress();
      attempts = 1;
      backoff = settings_.first_backoff;
    }
    if (attempts >= settings_.max_attempts) fail("{}: {}", url, reason(outcome));
    if (outcome.retry_after > kLongestRetryAfter)
      fail("{}: {}; it asks to come back in {} s", url, reason(outcome), outcome.retry_after.count());
    const auto wait = std::max<std::chrono::milliseconds>(backoff, outcome.retry_after);
    log_warning("{}: {}; again in {:.1f} s", url, reason(outcome), static_cast<double>(wait.count()) / 1e3);
    backoff = std::min<std::chrono::milliseconds>(2 * backoff, kLongestBackoff);
    const auto end = std::chrono::steady_clock::now() + wait;
    for (auto now = std::chrono::steady_clock::now(); now < end; now = std::chrono::steady_clock::now()) {
      if (stopped_()) throw Stopped();
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kLongestPause, end - now));
    }
  }
}

void HubClient::refuse(const std::string& url, const HttpOutcome& outcome) const {
  const std::string& endpoint = settings_.endpoint;
  const std::string code = header(outcome, "x-error-code");
  if (outcome.status == 403 || (outcome.status == 401 && code == "GatedRepo"))
    fail(
        "{}: the hub does not give it out (HTTP {}): accept its licence at {}/{} and set HF_TOKEN to a token "
        "of that account{}",
        id_, outcome.status, endpoint, id_, settings_.token.empty() ? "" : " (it is set, but not enough)");
  if (outcome.status == 401 && settings_.token.empty())
    fail(
        "{}: no such directory, and {} has no such model, or one that is private or gated (HTTP 401): check "
        "the name, or set HF_TOKEN",
        id_, endpoint);
  if (outcome.status == 401)
    fail("{}: {} does not take the token in HF_TOKEN, or has no such model (HTTP 401)", id_, endpoint);
  if (outcome.status == 404 && code == "RevisionNotFound") fail("{}: {} has no such revision", url, endpoint);
  if (outcome.status == 404 && code != "EntryNotFound")
    fail("{}: no such directory, and {} has no such model or revision ({} is not found)", id_, endpoint, url);
  fail("{}: {}", url, reason(outcome));
}

HubRevision HubClient::revision(const std::string& revision) {
  const std::string url =
      format_text("{}/api/models/{}/revision/{}", settings_.endpoint, id_, escape_segment(revision));
  std::string body;
  bool too_long = false;
  insist(url, [&] {
    body.clear();
    const auto take = [&](int status, std::string_view bytes) {
      if (status != 200) return true;  // a redirect says in words where it leads
      too_long = body.size() + bytes.size() > kMaxJsonBytes;
      if (!too_long) body += bytes;
      return !too_long;
    };
    const HttpOutcome outcome = request({.url = url, .on_bytes = take});
    if (too_long) fail("{}: the answer is longer than {} bytes", url, kMaxJsonBytes);
    return outcome;
  });
  const Json object = parse_json(body, url, {.max_values = 1'000'000});
  HubRevision result;
  try {
    object.at("sha").get_to(result.commit);
    for (const Json& file : object.at("siblings").get_ref<const Json::array_t&>())
      result.files.push_back(file.at("rfilename").get<std::string>());
  } catch (const Json::exception&) {
    fail("{}: the answer has no \"sha\" and \"siblings\" with \"rfilename\": is this a hub of models?", url);
  }
  return result;
}

HubFile HubClient::look_up(const std::string& commit, const std::string& file) {
  const std::string url = file_url(commit, file);
  const auto ignore = [](int, std::string_view) { return true; };
  const HttpOutcome outcome =
      insist(url, [&] { return request({.url = url, .on_bytes = ignore, .head_only = true}, true); });
  const auto linked_or = [&](const char* linked, const char* own) {
    const std::string value = header(outcome, linked);
    return value.empty() ? header(outcome, own) : value;
  };
  const std::string etag = without_quotes(linked_or("x-linked-etag", "etag"));
  const auto size = to_size(linked_or("x-linked-size", outcome.status == 200 ? "content-length" : ""));
  const std::string answered = header(outcome, "x-repo-commit");
  if (!answered.empty() && answered != commit)
    fail("{}: the answer is for commit {}", url, in_quotes(answered));
  if (!(is_hash(etag, 40) || is_hash(etag, 64)) || !size)
    fail("{}: the answer has no hash and size, by which the file could be checked (ETag {})", url,
         in_quotes(etag));
  return {etag, *size};
}

void HubClient::fetch(const std::string& commit, const std::string& file, PartialFile& partial) {
  const std::string url = file_url(commit, file);
  const auto go_on = [&] {
    const std::uint64_t begin = partial.size();
    bool first = true;
    HttpCall call{.url = url};
    if (begin > 0) call.headers.push_back(format_text("Range: bytes={}-", begin));
    call.on_bytes = [&](int status, std::string_view bytes) {
      if (status != 200 && status != 206) return true;
      if (first && status == 200 && begin > 0) partial.restart();  // it gives no ranges
      first = false;
      partial.append(bytes);
      return true;
    };
    HttpOutcome outcome = request(std::move(call));
    if (partial.full()) return HttpOutcome{.status = 200};
    if (outcome.status == 416) partial.restart();  // what is there was nothing of this file
    if (outcome.error.empty() && outcome.status < 300)
      outcome.error = format_text("the answer ended after {} bytes", partial.size());
    else if (outcome.status < 400 || outcome.status == 416)
      outcome.error = reason(outcome);
    return outcome;
  };
  if (!partial.full()) insist(url, go_on, [&] { return partial.size(); });
}

}  // namespace quire
