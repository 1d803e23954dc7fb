#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/json.h"
#include "engine/request.h"
#include "quire/request_output.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

// What stands in a whole answer, and in every chunk of a stream.
struct ResponseHead {
  std::string id;            // cmpl-…, chatcmpl-…
  std::int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;  // in whole answers and where a choice ends
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;     // of the prompt's, from the prefix cache
  std::int64_t reasoning_tokens = 0;  // of the completion's

  void add(const RequestOutput& request);  // all but reasoning_tokens
};
using Outputs = std::span<const RequestOutput>;
Usage usage_of(Outputs requests);
Usage usage_of(const RequestUpdate& update);  // of one output, so far
OrderedJson usage_json(const Usage& usage);

// What an answer waited for, in milliseconds: until the first step of any output, from there until one had a
// token, from there until all had ended.
struct Timings {
  double queue = 0;
  double prefill = 0;
  double decode = 0;
  std::size_t num_outputs = 0;
  CacheEnd cache_end = {};  // of several prompts, of the first that is not there as a whole
};

// Of the requests that an answer is made of, which have ended. What they did not come to took no time.
Timings timings_of(Outputs requests);

// Names are llama-server's where it has them.
OrderedJson timings_json(const Timings& timings, const Usage& usage);
// Adds what the request wants of them: `timings`, and `metrics`, vLLM's, which are null unless there is one
// output. Of no outputs, where the request has failed, nothing.
void add_timings(OrderedJson& body, const ApiRequest& request, Outputs outputs, const Usage& usage);

// One line of UTF-8.
std::string to_line(const OrderedJson& json);
// A server-sent event; `name` is its type, empty: none.
std::string to_event(const OrderedJson& json, std::string_view name = {});

// What the engine tells of a request, as its client reads it: one body, or a stream's events. For one thread.
class Response {
 public:
  virtual ~Response() = default;
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  bool streams() const { return streams_; }
  bool has_timings() const { return has_timings_; }
  // Takes an update of the prompt of that index. Of a stream: what it adds, as events; none before a token.
  virtual std::string events(std::size_t, const RequestUpdate&) { return {}; }
  // What ends a stream; outputs: as body() has them, where it has timings. And what ends it where it fails
  // behind its first event: unless said, as OpenAI's older streams do.
  virtual std::string last_events(Outputs) { return {}; }
  virtual std::string failure_events(const ApiError& error);
  // The whole answer. outputs: of each prompt, in order, all finished.
  virtual OrderedJson body(Outputs outputs) = 0;

 protected:
  Response(ResponseHead head, const ApiRequest& request)
      : head_(std::move(head)), streams_(request.stream), has_timings_(request.timings || request.metrics) {}

  const ResponseHead head_;

 private:
  const bool streams_, has_timings_;
};

// The whole answer or a chunk, without choices.
OrderedJson begin_response(const ResponseHead& head, std::string_view object);
// What ends OpenAI's older streams: usage and timings, if asked for, in a chunk without choices; then [DONE].
std::string last_chunk(OrderedJson begun, const ApiRequest& request, const Usage& usage, Outputs outputs);

// finish_reason ("abort" too when the time is up; null before the end) and stop_reason.
void add_ending(OrderedJson& choice, const CompletionOutput& output);
// vLLM's typed clients want these fields, of which nothing is to be said.
void add_nulls(OrderedJson& object, std::initializer_list<const char*> names);

// What an output that failed makes of the answer; nothing: it did not.
std::optional<ApiError> failure_of(const CompletionOutput& output);

// How log-probabilities name tokens.
struct TokenNames {
  const Tokenizer* tokenizer = nullptr;  // null: there is none, and ids stand for tokens
  bool as_ids = false;                   // "token_id:7"

  // The token's text; "bytes:\xe2\x80" of one that is a part of a character.
  std::string operator()(std::int32_t id) const;
};
TokenNames token_names(const ApiRequest& request, const ServedModel& model);

// The four parallel lists of /v1/completions. A position that was reported once is not again. For one thread.
class CompletionLogprobs {
 public:
  // skip_special_tokens: as in the text, where offsets point to.
  CompletionLogprobs(TokenNames names, bool skip_special_tokens)
      : names_(names), skip_special_tokens_(skip_special_tokens) {
    take();  // the lists begin, empty
  }

  void add_first_of_prompt(std::int32_t id) { add_token(id, nullptr, nullptr); }  // which has none
  void add(std::span<const PositionLogprobs> positions);
  // What was added since the last time.
  OrderedJson take();

 private:
  void add_token(std::int32_t id, OrderedJson logprob, OrderedJson top);

  TokenNames names_;
  bool skip_special_tokens_;
  std::int64_t offset_ = 0;  // in code points
  OrderedJson lists_;
};

// {"content": [{token, logprob, bytes, top_logprobs}]} of /v1/chat/completions.
OrderedJson chat_logprobs(std::span<const PositionLogprobs> positions, const TokenNames& names);

// vLLM's prompt_logprobs: null of the first token, then {id: {logprob, rank, decoded_token}} of each.
OrderedJson prompt_logprobs_json(std::span<const PositionLogprobs> positions, const TokenNames& names);

}  // namespace quire::server
