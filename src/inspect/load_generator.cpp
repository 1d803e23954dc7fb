#include "inspect/load_generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLongestWait{100};  // until an interruption is noticed

std::vector<std::string> headers_of(const std::string& api_key) {
  std::vector<std::string> headers = {"Content-Type: application/json"};
  if (!api_key.empty()) headers.push_back("Authorization: Bearer " + api_key);
  return headers;
}

class Load {
 public:
  Load(HttpClient& client, const LoadTarget& target, const LoadOptions& options,
       const std::vector<LoadRequest>& requests)
      : client_(client),
        target_(target),
        options_(options),
        headers_(headers_of(target.api_key)),
        arrivals_(arrival_times(requests.size(), options.requests_per_s, options.seed)),
        timelines_(requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      bodies_.push_back(request_body(requests[i], target.form));
      timelines_[i].prompt_tokens = requests[i].size.prompt_tokens;
    }
  }

  LoadResult run() {
    start_ = Clock::now();
    while (num_ended_ < timelines_.size() && !(options_.interrupted && options_.interrupted())) {
      while (may_send() && arrivals_[num_sent_] <= now()) send();
      client_.poll(wait());
    }
    const double seconds = now();
    client_.cancel_all();
    return {std::move(timelines_), seconds};
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool may_send() const {
    return num_sent_ < timelines_.size() && num_sent_ - num_ended_ < options_.max_concurrency;
  }

  std::chrono::milliseconds wait() const {
    if (!may_send()) return kLongestWait;
    const double ms = std::ceil(1e3 * std::max(0.0, arrivals_[num_sent_] - now()));
    return std::min(kLongestWait, std::chrono::milliseconds(static_cast<std::int64_t>(std::min(ms, 1e6))));
  }

  void send() {
    const std::size_t index = num_sent_++;
    RequestTimeline& timeline = timelines_[index];
    const auto reader = std::make_shared<AnswerReader>(timeline, target_.form.stream);
    HttpCall call{.url = target_.url, .headers = headers_, .body = std::move(bodies_[index])};
    call.on_bytes = [this, reader](int status, std::string_view bytes) {
      reader->read(status, bytes, now());
      return true;
    };
    call.on_done = [this, reader](const HttpOutcome& outcome) {
      reader->end(outcome, now());
      ++num_ended_;
      if (options_.on_progress) options_.on_progress(num_ended_, timelines_.size());
    };
    timeline.state = RequestTimeline::State::kUnderWay;
    timeline.sent = now();
    client_.start(std::move(call));
  }

  HttpClient& client_;
  const LoadTarget& target_;
  const LoadOptions& options_;
  const std::vector<std::string> headers_;
  const std::vector<double> arrivals_;
  std::vector<std::string> bodies_;
  std::vector<RequestTimeline> timelines_;
  std::size_t num_sent_ = 0;
  std::size_t num_ended_ = 0;
  Clock::time_point start_;
};

}  // namespace

LoadResult run_load(HttpClient& client, const LoadTarget& target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options) {
  return Load(client, target, options, requests).run();
}

std::string first_model(const std::string& url, const std::string& api_key) {
  const std::string models_url = url + "/v1/models";
  const Json answer = parse_json(fetch({.url = models_url, .headers = headers_of(api_key)}), models_url);
  if (answer.is_object() && answer.contains("data") && answer["data"].is_array() && !answer["data"].empty()) {
    const Json& model = answer["data"].front();
    if (model.is_object() && model.contains("id") && model["id"].is_string())
      return model["id"].get<std::string>();
  }
  fail("{}: no model is listed there; name one with --model", models_url);
}

}  // namespace quire
