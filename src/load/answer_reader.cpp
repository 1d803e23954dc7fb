#include "load/answer_reader.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

using Pointer = Json::json_pointer;
constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxEventBytes = std::size_t{16} << 20;
constexpr int kOk = 200;

}  // namespace

void SseReader::read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
  for (const char byte : bytes) {
    const bool ends_return = std::exchange(after_return_, byte == '\r') && byte == '\n';
    if (ends_return) continue;
    if (byte == '\r' || byte == '\n')
      take_line(on_data);
    else
      line_ += byte;
    if (line_.size() + data_.size() > kMaxEventBytes)
      fail("an event of the stream is longer than {} bytes", kMaxEventBytes);
  }
}

void SseReader::take_line(const std::function<void(std::string_view data)>& on_data) {
  constexpr std::string_view kField = "data:";
  if (line_.empty()) {
    if (has_data_) on_data(data_);
    data_.clear();
    has_data_ = false;
  } else if (line_.starts_with(kField)) {
    if (has_data_) data_ += '\n';
    const std::size_t start = kField.size();
    data_ += std::string_view(line_).substr(line_.size() > start && line_[start] == ' ' ? start + 1 : start);
    has_data_ = true;
  }
  line_.clear();
}

void AnswerReader::read(int status, std::string_view bytes, double now) {
  if (!timeline_.error.empty()) return;
  if (!stream_ || status != kOk) {
    body_ += bytes.substr(0, kMaxBodyBytes - body_.size());
    return;
  }
  try {
    events_.read(bytes, [&](std::string_view data) { take_event(data, now); });
  } catch (const std::exception& e) {  // Json's own, too
    timeline_.error = e.what();
  }
}

void AnswerReader::take_event(std::string_view data, double now) {
  if (data.starts_with("[DONE]")) {
    done_ = true;
    return;
  }
  const Json chunk = parse_json(data, "an event of the stream");
  if (!chunk.is_object()) fail("an event of the stream is {}; expected an object", describe(chunk));
  if (chunk.contains("error")) fail("in the stream: {}", error_text(data));
  const auto choices = chunk.find("choices");
  if (choices != chunk.end() && choices->is_array() && !choices->empty()) timeline_.chunks.push_back(now);
  // As Quire and vLLM tell them where return_token_ids asks for it, or llama.cpp with log-probabilities.
  static const Pointer kTokens[] = {Pointer("/choices/0/token_ids"), Pointer("/choices/0/logprobs/content")};
  for (const Pointer& place : kTokens)
    for (const Json& token : chunk.value(place, Json()))
      if (const Json id = token.is_object() ? token.value("id", Json()) : token; id.is_number_integer())
        timeline_.token_ids.push_back(id.get<TokenId>());
  take_usage(chunk);
}

void AnswerReader::take_usage(const Json& answer) {
  static const Pointer kCached[] = {Pointer("/usage/prompt_tokens_details/cached_tokens"),
                                    Pointer("/timings/cache_n")};  // llama.cpp's
  for (const Pointer& place : kCached)
    if (const Json tokens = answer.value(place, Json()); tokens.is_number_unsigned())
      timeline_.cached_tokens = tokens.get<int>();
  const auto usage = answer.find("usage");
  if (usage == answer.end() || !usage->is_object()) return;
  const auto take = [&](const char* key, int& tokens) {
    const auto value = usage->find(key);
    if (value != usage->end() && value->is_number_unsigned()) tokens = value->get<int>();
  };
  take("prompt_tokens", timeline_.prompt_tokens);
  take("completion_tokens", timeline_.output_tokens);
  timeline_.has_usage = true;
}

void AnswerReader::take_end(const HttpOutcome& outcome) {
  if (!timeline_.error.empty()) fail("{}", timeline_.error);
  if (outcome.status != 0 && outcome.status != kOk) fail("HTTP {}: {}", outcome.status, error_text(body_));
  if (!outcome.error.empty()) fail("{}", outcome.error);
  if (stream_) {
    if (!done_) fail("the stream ended before [DONE]");
    if (timeline_.chunks.empty()) fail("the stream had no chunk with choices");
    timeline_.end = timeline_.chunks.back();
    if (!timeline_.has_usage) timeline_.output_tokens = static_cast<int>(timeline_.chunks.size());
  } else {
    const Json answer = parse_json(body_, "the answer");
    if (!answer.is_object() || !answer.contains("choices"))
      fail("the answer is no completion: {}", in_quotes(body_));
    take_usage(answer);
  }
}

void AnswerReader::end(const HttpOutcome& outcome, double now) {
  timeline_.end = now;
  timeline_.state = RequestTimeline::State::kFailed;
  try {
    take_end(outcome);
    timeline_.state = RequestTimeline::State::kDone;
  } catch (const std::exception& e) {
    timeline_.error = e.what();
  }
}

}  // namespace quire
