#include "python/output_json.h"

#include <chrono>

namespace quire::python {
namespace {

OrderedJson seconds(const std::optional<TimePoint>& time) {
  if (!time) return nullptr;
  return std::chrono::duration<double>(time->time_since_epoch()).count();
}

// [id, logprob, rank]; rank 0: not known.
OrderedJson token_json(const TokenLogprob& token) {
  return OrderedJson::array({token.token_id, token.logprob, token.rank});
}

// Of each position a list: the token that stands there, then the most likely ones.
OrderedJson logprobs_json(const std::vector<PositionLogprobs>& positions) {
  OrderedJson list = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson tokens = OrderedJson::array({token_json(position.token)});
    for (const TokenLogprob& token : position.top) tokens.push_back(token_json(token));
    list.push_back(std::move(tokens));
  }
  return list;
}

OrderedJson stop_reason_json(const CompletionOutput& output) {
  if (const auto* id = std::get_if<std::int32_t>(&output.stop_reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) return *text;
  return nullptr;
}

}  // namespace

OrderedJson completion_json(const CompletionOutput& output) {
  OrderedJson json = {{"index", output.index}, {"token_ids", output.token_ids}, {"text", output.text}};
  if (!output.logprobs.empty()) json["logprobs"] = logprobs_json(output.logprobs);
  if (output.cumulative_logprob) json["cumulative_logprob"] = *output.cumulative_logprob;
  if (output.score) json["score"] = *output.score;
  if (!output.finished()) return json;
  json["finish_reason"] = to_string(output.finish_reason);
  json["stop_reason"] = stop_reason_json(output);
  if (!output.error.empty()) json["error"] = output.error;
  json["scheduled"] = seconds(output.times.scheduled);
  json["first_token"] = seconds(output.times.first_token);
  json["last_token"] = seconds(output.times.last_token);
  json["ended"] = seconds(output.times.finished);
  return json;
}

OrderedJson request_json(std::int64_t tag, const RequestOutput& output) {
  OrderedJson json = {{"tag", tag},
                      {"finished", true},
                      {"prompt_token_ids", output.prompt_token_ids},
                      {"num_cached_tokens", output.num_cached_tokens},
                      {"arrival", seconds(output.arrival)}};
  if (!output.prompt_logprobs.empty()) json["prompt_logprobs"] = logprobs_json(output.prompt_logprobs);
  if (!output.embedding.empty()) json["embedding"] = output.embedding;
  OrderedJson& outputs = json["outputs"] = OrderedJson::array();
  for (const CompletionOutput& one : output.outputs) outputs.push_back(completion_json(one));
  return json;
}

}  // namespace quire::python
