#include "load/load_generator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "inspect/bench.h"

namespace quire {
namespace {

constexpr int kMaxLength = 1 << 20;  // tokens

// One token each in most vocabularies.
constexpr std::array<std::string_view, 32> kWords = {
    "the",   "and",    "time", "house", "water", "people", "good", "small", "day", "year",  "way",
    "man",   "work",   "life", "hand",  "part",  "place",  "case", "week",  "old", "new",   "long",
    "great", "little", "own",  "other", "right", "big",    "high", "young", "few", "public"};

int length_of(const Json& line, const char* key, const std::string& where) {
  const auto value = line.find(key);
  if (value == line.end() || !value->is_number_integer() || *value < 1 || *value > kMaxLength)
    fail("{}: {} must be a number of tokens from 1 to {}", where, key, kMaxLength);
  return value->get<int>();
}

LoadRequest parse_line(std::string_view text, const std::string& where) {
  const Json line = parse_json(text, where);
  if (!line.is_object()) fail("{}: this is {}; expected an object", where, describe(line));
  LoadRequest request;
  request.size.output_tokens = length_of(line, "output_len", where);
  const auto prompt = line.find("prompt");
  if (prompt == line.end()) {
    request.size.prompt_tokens = length_of(line, "input_len", where);
  } else if (!prompt->is_string() || prompt->get_ref<const std::string&>().empty()) {
    fail("{}: prompt must be a text", where);
  } else {
    request.text = prompt->get<std::string>();
  }
  return request;
}

constexpr std::chrono::milliseconds kLongestWait{100};  // until an interruption is noticed

std::vector<std::string> headers_of(const std::string& api_key) {
  std::vector<std::string> headers = {"Content-Type: application/json"};
  if (!api_key.empty()) headers.push_back("Authorization: Bearer " + api_key);
  return headers;
}

// Reads the answer into the timeline, in seconds since `start`. The timeline is there until on_done.
void send_request(HttpClient& client, const LoadTarget& target, std::string body, RequestTimeline& timeline,
                  BenchClock::time_point start, std::function<void()> on_done) {
  const auto now = [start] { return seconds_between(start, BenchClock::now()); };
  const auto reader = std::make_shared<AnswerReader>(timeline, target.form.stream);
  HttpCall call{.url = target.url, .headers = headers_of(target.api_key), .body = std::move(body)};
  call.on_bytes = [reader, now](int status, std::string_view bytes) {
    reader->read(status, bytes, now());
    return true;
  };
  call.on_done = [reader, now, done = std::move(on_done)](const HttpOutcome& outcome) {
    reader->end(outcome, now());
    done();
  };
  timeline.state = RequestTimeline::State::kUnderWay;
  timeline.sent = now();
  client.start(std::move(call));
}

class ServerTurns final : public TurnRunner {
 public:
  explicit ServerTurns(LoadTarget target) : target_(std::move(target)) {}

  void start(AgentTurn turn) override {
    const auto t = std::make_shared<RequestTimeline>();
    const auto take = [this, turn, t]() mutable {
      turn.output_tokens = t->output_tokens;
      if (t->token_ids.size() == static_cast<std::size_t>(t->output_tokens)) turn.output = t->token_ids;
      turn.cached_tokens = t->cached_tokens;
      if (!t->chunks.empty()) turn.first_token_ms = 1e3 * (t->chunks.front() - t->sent);
      turn.error = t->error;
      ended_.push_back(std::move(turn));
    };
    send_request(client_, target_, request_body({{0, turn.output_tokens}, "", turn.prompt}, target_.form), *t,
                 BenchClock::now(), take);
  }

  std::vector<AgentTurn> wait() override {
    client_.poll(kLongestWait);
    return std::exchange(ended_, {});
  }

 private:
  const LoadTarget target_;
  std::vector<AgentTurn> ended_;
  HttpClient client_;
};

void add_latencies(const RequestTimeline& timeline, LoadFigures& figures) {
  figures.e2e_ms.push_back(1e3 * (timeline.end - timeline.sent));
  if (timeline.chunks.empty()) return;
  const double first = timeline.chunks.front();
  figures.ttft_ms.push_back(1e3 * (first - timeline.sent));
  if (timeline.output_tokens > 1)
    figures.tpot_ms.push_back(1e3 * (timeline.end - first) / (timeline.output_tokens - 1));
  for (std::size_t i = 1; i < timeline.chunks.size(); ++i)
    figures.itl_ms.push_back(1e3 * (timeline.chunks[i] - timeline.chunks[i - 1]));
}

std::size_t peak_concurrency(const LoadResult& result) {
  std::vector<std::pair<double, int>> changes;  // an end before a beginning of the same time
  for (const RequestTimeline& timeline : result.timelines) {
    if (timeline.state == RequestTimeline::State::kUnsent) continue;
    const bool under_way = timeline.state == RequestTimeline::State::kUnderWay;
    changes.emplace_back(timeline.sent, 1);
    changes.emplace_back(under_way ? result.seconds : timeline.end, -1);
  }
  std::ranges::sort(changes);
  int now = 0;
  int peak = 0;
  for (const auto& change : changes) peak = std::max(peak, now += change.second);
  return static_cast<std::size_t>(peak);
}

}  // namespace

std::vector<LoadRequest> random_requests(const RandomSizes& sizes, std::uint64_t seed) {
  std::vector<LoadRequest> requests;
  for (const RequestSize& size : random_sizes(sizes, seed)) requests.emplace_back().size = size;
  return requests;
}

std::vector<LoadRequest> read_dataset(const std::filesystem::path& file) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  std::istringstream text(read_text_file(file, kMaxBytes));
  std::vector<LoadRequest> requests;
  int number = 1;
  for (std::string line; std::getline(text, line); ++number)
    if (line.find_first_not_of(" \t\r") != std::string::npos)
      requests.push_back(parse_line(line, format_text("{}, line {}", file.string(), number)));
  if (requests.empty()) fail("{}: there are no requests in it", file.string());
  return requests;
}

void fill_prompts(std::vector<LoadRequest>& requests, bool as_text, int vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<std::size_t> any_word(0, kWords.size() - 1);
  for (LoadRequest& request : requests) {
    if (!request.text.empty()) continue;
    if (!as_text) {
      request.token_ids = random_tokens(request.size.prompt_tokens, vocab_size, random, kFirstTokenId);
      continue;
    }
    for (int i = 0; i < request.size.prompt_tokens; ++i) {
      request.text += i == 0 ? "" : " ";
      request.text += kWords[any_word(random)];
    }
  }
}

std::string request_body(const LoadRequest& request, const RequestForm& form) {
  OrderedJson body = {{"model", form.model}};
  if (form.chat) {
    const OrderedJson part = {{"type", "text"}, {"text", request.text}};
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", OrderedJson::array({part})}}});
    body["max_completion_tokens"] = request.size.output_tokens;
  } else {
    body["prompt"] = request.text.empty() ? OrderedJson(request.token_ids) : OrderedJson(request.text);
    body["max_tokens"] = request.size.output_tokens;
  }
  body["stream"] = form.stream;
  if (form.stream) body["stream_options"] = {{"include_usage", true}};
  if (form.ignore_eos) body["ignore_eos"] = true;
  if (form.temperature) body["temperature"] = *form.temperature;
  const OrderedJson extra = parse_ordered_json(form.extra_body, "--extra-body");
  if (!extra.is_object()) fail("--extra-body: {} is no JSON object", in_quotes(form.extra_body));
  body.update(extra);
  return body.dump();
}

LoadResult run_load(HttpClient& client, const LoadTarget& target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options) {
  const std::size_t count = requests.size();
  const std::vector<double> arrivals = arrival_times(count, options.requests_per_s, options.seed);
  LoadResult result{.timelines = std::vector<RequestTimeline>(count)};
  std::vector<std::string> bodies;  // which take no time once the load has begun
  for (const LoadRequest& request : requests) {
    result.timelines[bodies.size()].prompt_tokens = request.size.prompt_tokens;
    bodies.push_back(request_body(request, target.form));
  }
  std::size_t num_sent = 0, num_ended = 0;
  const auto end_one = [&] {
    ++num_ended;
    if (options.on_progress) options.on_progress(num_ended, count);
  };
  const auto start = BenchClock::now();
  const auto wait = [&] {  // 0: the next one is to be sent
    auto ms = static_cast<double>(kLongestWait.count());
    if (num_sent < count && num_sent - num_ended < options.max_concurrency)
      ms = std::clamp(std::ceil(1e3 * (arrivals[num_sent] - seconds_between(start, BenchClock::now()))), 0.0,
                      ms);
    return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
  };
  while (num_ended < count && !(options.interrupted && options.interrupted())) {
    while (wait().count() == 0) {
      const std::size_t index = num_sent++;
      send_request(client, target, std::move(bodies[index]), result.timelines[index], start, end_one);
    }
    client.poll(wait());
  }
  result.seconds = seconds_between(start, BenchClock::now());
  client.cancel_all();
  return result;
}

std::unique_ptr<TurnRunner> server_turns(LoadTarget target) {
  return std::make_unique<ServerTurns>(std::move(target));
}

LoadFigures load_figures(const LoadResult& result) {
  LoadFigures figures;
  figures.seconds = result.seconds;
  figures.peak_concurrency = peak_concurrency(result);
  for (const RequestTimeline& timeline : result.timelines) {
    using State = RequestTimeline::State;
    if (timeline.state == State::kUnderWay) ++figures.num_cancelled;
    if (timeline.state == State::kFailed && figures.num_failed++ == 0) figures.first_error = timeline.error;
    if (timeline.state != State::kDone) continue;
    ++figures.num_done;
    figures.num_without_usage += timeline.has_usage ? 0 : 1;
    figures.prompt_tokens += timeline.prompt_tokens;
    figures.output_tokens += timeline.output_tokens;
    add_latencies(timeline, figures);
  }
  return figures;
}

double LoadFigures::per_s(std::int64_t amount) const {
  return amount > 0 && seconds > 0 ? static_cast<double>(amount) / seconds : std::nan("");
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string first_model(const std::string& url, const std::string& api_key) {
  const std::string models_url = url + "/v1/models";
  const Json answer = parse_json(fetch({.url = models_url, .headers = headers_of(api_key)}), models_url);
  const Json models = answer.is_object() ? answer.value("data", Json()) : Json();
  const Json model = models.is_array() && !models.empty() ? models[0] : Json();
  const Json id = model.is_object() ? model.value("id", Json()) : Json();
  if (!id.is_string()) fail("{}: no model is listed there; name one with --model", models_url);
  return id.get<std::string>();
}

}  // namespace quire
