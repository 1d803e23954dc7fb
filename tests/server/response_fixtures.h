#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "protocol_fixtures.h"
#include "quire/request_output.h"
#include "server/api_response.h"
#include "server/chat_output.h"

namespace quire::server::test {

inline ResponseHead head(std::string id) {
  return {.id = std::move(id), .created = 1700000000, .model = "toy", .system_fingerprint = "fp"};
}

// An output of these bytes, a token each; log-probabilities -0.5, -1.5, …
inline CompletionOutput output(int index, std::string_view text, FinishReason reason, bool logprobs = false) {
  CompletionOutput made;
  made.index = index;
  made.text = text;
  made.finish_reason = reason;
  for (const char c : text) {
    const auto id = static_cast<std::int32_t>(static_cast<unsigned char>(c));
    const float value = -0.5F - static_cast<float>(made.token_ids.size());
    made.token_ids.push_back(id);
    if (logprobs) made.logprobs.push_back({{id, value, 1}, {{id, value, 1}}});
  }
  return made;
}

inline RequestOutput request_output(std::string_view prompt, std::vector<CompletionOutput> outputs,
                                    int cached = 0) {
  RequestOutput made;
  for (const char c : prompt) made.prompt_token_ids.push_back(static_cast<unsigned char>(c));
  made.outputs = std::move(outputs);
  made.num_cached_tokens = cached;
  return made;
}

// The data of a stream's events, but the [DONE] at its end.
inline std::vector<OrderedJson> chunks_of(std::string_view events) {
  std::vector<OrderedJson> chunks;
  while (!events.empty()) {
    EXPECT_TRUE(events.starts_with("data: ")) << events;
    const std::size_t end = events.find("\n\n");
    const std::string_view data = events.substr(6, end - 6);
    if (data != "[DONE]") chunks.push_back(OrderedJson::parse(data));
    events.remove_prefix(end + 2);
  }
  return chunks;
}

// Finds in its text what the test says: a delta a piece.
class ScriptedParser : public OutputParser {
 public:
  explicit ScriptedParser(std::vector<OutputDelta> deltas) : deltas_(std::move(deltas)) {}

  OutputDelta parse(std::string_view) override {
    return next_ < deltas_.size() ? deltas_[next_++] : OutputDelta();
  }
  OutputDelta finish() override { return {}; }

 private:
  std::vector<OutputDelta> deltas_;
  std::size_t next_ = 0;
};

// Plays outputs of one request as the engine would: a token a time, all outputs in turn.
class Player {
 public:
  explicit Player(RequestOutput whole) : whole_(std::move(whole)), so_far_(whole_) {
    for (CompletionOutput& output : so_far_.outputs) {
      output = {};
      output.index = static_cast<int>(&output - so_far_.outputs.data());
    }
  }

  template <typename F>
  void play(F&& on_update) {
    std::size_t unfinished = whole_.outputs.size();
    for (std::size_t position = 0; unfinished > 0; ++position) {
      for (std::size_t i = 0; i < whole_.outputs.size(); ++i) {
        const CompletionOutput& whole = whole_.outputs[i];
        CompletionOutput& output = so_far_.outputs[i];
        if (position >= whole.token_ids.size()) continue;
        output.token_ids.push_back(whole.token_ids[position]);
        if (!whole.logprobs.empty()) output.logprobs.push_back(whole.logprobs[position]);
        const bool last = position + 1 == whole.token_ids.size();
        if (last) {
          output.finish_reason = whole.finish_reason;
          output.stop_reason = whole.stop_reason;
          --unfinished;
        }
        const std::string_view new_text = std::string_view(whole.text).substr(position, 1);
        output.text += new_text;
        on_update(RequestUpdate{.request = so_far_,
                                .output = output,
                                .new_text = new_text,
                                .finished = unfinished == 0,
                                .logits = {}});
      }
    }
  }

 private:
  RequestOutput whole_, so_far_;
};

}  // namespace quire::server::test
