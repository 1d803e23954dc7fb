#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "http/http_client.h"
#include "tokenizer/token_id.h"

namespace quire {

// Takes a stream of server-sent events apart, whatever pieces it comes in. Lines may end with LF, CR LF or
// CR; comments and every field but `data` are dropped.
class SseReader {
 public:
  // Calls `on_data` with the data of every event that `bytes` completes. Error: an event of over 16 MiB.
  void read(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  void take_line(const std::function<void(std::string_view data)>& on_data);

  std::string line_;           // not ended yet
  std::string data_;           // of the event so far
  bool has_data_ = false;      // a data line was there, if only an empty one
  bool after_return_ = false;  // the last byte was CR: an LF belongs to it
};

// What happened to one request, in seconds since the load began.
struct RequestTimeline {
  enum class State { kUnsent, kUnderWay, kDone, kFailed };

  State state = State::kUnsent;
  double sent = 0;
  double end = 0;              // of a stream its last chunk, as in vLLM's benchmark
  std::vector<double> chunks;  // of a stream, those with `choices`
  int prompt_tokens = 0;       // as planned, until the server says
  int output_tokens = 0;       // where the server does not say, the chunks
  bool has_usage = false;
  std::optional<int> cached_tokens;  // of the prompt, where the server says
  std::vector<TokenId> token_ids;    // of a stream's first choice, where the server says
  std::string error;
};

// Reads a server's answer to a completion into a timeline. Nothing throws: what is wrong with the answer is
// the timeline's error.
class AnswerReader {
 public:
  AnswerReader(RequestTimeline& timeline, bool stream) : timeline_(timeline), stream_(stream) {}

  void read(int status, std::string_view bytes, double now);
  void end(const HttpOutcome& outcome, double now);

 private:
  void take_event(std::string_view data, double now);
  void take_usage(const Json& answer);
  // Error where the answer is not whole, or none that was asked for.
  void take_end(const HttpOutcome& outcome);

  RequestTimeline& timeline_;
  bool stream_;
  SseReader events_;
  std::string body_;   // of what is no stream
  bool done_ = false;  // [DONE] has come
};

}  // namespace quire
