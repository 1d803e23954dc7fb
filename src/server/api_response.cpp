#include "server/api_response.h"

#include <algorithm>
#include <variant>

#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

constexpr const char* kDone = "data: [DONE]\n\n";

double per_second(std::int64_t tokens, double milliseconds) {
  return milliseconds > 0 ? 1e3 * static_cast<double>(tokens) / milliseconds : 0;
}

double per_token(double milliseconds, std::int64_t tokens) {
  return tokens > 0 ? milliseconds / static_cast<double>(tokens) : 0;
}

OrderedJson metrics_json(const Timings& timings, const Usage& usage) {
  if (timings.num_outputs != 1) return nullptr;
  const std::int64_t tokens = usage.completion_tokens;
  const auto gaps = static_cast<double>(tokens - 1);
  return {{"time_to_first_token_ms", timings.prefill},
          {"generation_time_ms", timings.decode},
          {"queue_time_ms", timings.queue},
          {"mean_itl_ms", tokens > 1 ? OrderedJson(timings.decode / gaps) : OrderedJson()},
          {"tokens_per_second", per_second(tokens, timings.prefill + timings.decode)}};
}

// JSON has no infinity, so at least -9999, as vLLM has it.
double logprob_json(float logprob) { return std::max(logprob, -9999.0F); }

std::string bytes_of(std::int32_t id, const TokenNames& names) {
  return names.tokenizer != nullptr ? names.tokenizer->token_bytes(id) : std::string();
}

// Of two tokens of one name, the more likely one counts.
void add_to_map(OrderedJson& map, const TokenLogprob& token, const TokenNames& names) {
  const double logprob = logprob_json(token.logprob);
  const auto [place, is_new] = map.emplace(names(token.token_id), logprob);
  if (!is_new && place->get<double>() < logprob) *place = logprob;
}

OrderedJson chat_token(const TokenLogprob& token, const TokenNames& names) {
  const std::string bytes = bytes_of(token.token_id, names);
  return {{"token", names(token.token_id)},
          {"logprob", logprob_json(token.logprob)},
          {"bytes", std::vector<unsigned char>(bytes.begin(), bytes.end())}};
}

}  // namespace

void Usage::add(const RequestOutput& request) {
  prompt_tokens += std::ssize(request.prompt_token_ids);
  cached_tokens += request.num_cached_tokens;
  for (const CompletionOutput& output : request.outputs) completion_tokens += std::ssize(output.token_ids);
}

Usage usage_of(Outputs requests) {
  Usage usage;
  for (const RequestOutput& request : requests) usage.add(request);
  return usage;
}

Usage usage_of(const RequestUpdate& update) {
  return {.prompt_tokens = std::ssize(update.request.prompt_token_ids),
          .completion_tokens = std::ssize(update.output.token_ids),
          .cached_tokens = update.request.num_cached_tokens};
}

OrderedJson usage_json(const Usage& usage) {
  OrderedJson json = {{"prompt_tokens", usage.prompt_tokens},
                      {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                      {"completion_tokens", usage.completion_tokens},
                      {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.reasoning_tokens > 0)
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return json;
}

Timings timings_of(Outputs requests) {
  TimePoint arrival = TimePoint::max();
  TimePoint scheduled = TimePoint::max();
  TimePoint first_token = TimePoint::max();
  TimePoint end = TimePoint::min();
  std::size_t num_outputs = 0;
  CacheEnd cache_end;
  for (const RequestOutput& request : requests) {
    arrival = std::min(arrival, request.arrival);
    num_outputs += request.outputs.size();
    if (cache_end.reason <= CacheEnd::Reason::kWhole) cache_end = request.cache_end;
    for (const CompletionOutput& output : request.outputs) {
      scheduled = std::min(scheduled, output.times.scheduled.value_or(scheduled));
      first_token = std::min(first_token, output.times.first_token.value_or(first_token));
      end = std::max(end, output.times.finished.value_or(output.times.last_token.value_or(end)));
    }
  }
  end = std::max(end, arrival);
  scheduled = std::min(scheduled, end);
  first_token = std::min(first_token, end);
  const auto milliseconds = [](TimePoint::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  return {milliseconds(scheduled - arrival), milliseconds(first_token - scheduled),
          milliseconds(end - first_token), num_outputs, cache_end};
}

OrderedJson timings_json(const Timings& timings, const Usage& usage) {
  const std::int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  OrderedJson json = {{"queue_ms", timings.queue},
                      {"cache_n", usage.cached_tokens},
                      {"prompt_n", computed},
                      {"prompt_ms", timings.prefill},
                      {"prompt_per_token_ms", per_token(timings.prefill, computed)},
                      {"prompt_per_second", per_second(computed, timings.prefill)},
                      {"predicted_n", usage.completion_tokens},
                      {"predicted_ms", timings.decode},
                      {"predicted_per_token_ms", per_token(timings.decode, usage.completion_tokens)},
                      {"predicted_per_second", per_second(usage.completion_tokens, timings.decode)}};
  const CacheEnd& end = timings.cache_end;
  if (end.reason != CacheEnd::Reason::kNone) json["cache_end"] = {{"reason", to_string(end.reason)}};
  if (end.reason == CacheEnd::Reason::kDiffers) json["cache_end"]["token"] = end.token;
  return json;
}

void add_timings(OrderedJson& body, const ApiRequest& request, Outputs outputs, const Usage& usage) {
  if (outputs.empty()) return;
  if (request.timings) body["timings"] = timings_json(timings_of(outputs), usage);
  if (request.metrics) body["metrics"] = metrics_json(timings_of(outputs), usage);
}

std::string to_line(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string to_event(const OrderedJson& json, std::string_view name) {
  const std::string data = "data: " + to_line(json) + "\n\n";
  return name.empty() ? data : format_text("event: {}\n{}", name, data);
}

std::string Response::failure_events(const ApiError& error) { return to_event(openai_error(error)) + kDone; }

OrderedJson begin_response(const ResponseHead& head, std::string_view object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

std::string last_chunk(OrderedJson begun, const ApiRequest& request, const Usage& usage, Outputs outputs) {
  if (!request.include_usage && !request.timings) return kDone;
  begun["choices"] = OrderedJson::array();
  if (request.include_usage) begun["usage"] = usage_json(usage);
  add_timings(begun, request, outputs, usage);
  return to_event(begun) + kDone;
}

void add_ending(OrderedJson& choice, const CompletionOutput& output) {
  const bool timeout = output.finish_reason == FinishReason::kTimeout;
  const std::string_view reason = to_string(timeout ? FinishReason::kAbort : output.finish_reason);
  choice["finish_reason"] = output.finished() ? OrderedJson(reason) : OrderedJson();
  choice["stop_reason"] = nullptr;
  if (const auto* id = std::get_if<std::int32_t>(&output.stop_reason)) choice["stop_reason"] = *id;
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) choice["stop_reason"] = *text;
}

void add_nulls(OrderedJson& object, std::initializer_list<const char*> names) {
  for (const char* name : names) object[name] = nullptr;
}

std::optional<ApiError> failure_of(const CompletionOutput& output) {
  if (output.finish_reason != FinishReason::kError) return std::nullopt;
  if (output.is_request_at_fault)
    return ApiError(400, output.error, output.error.substr(0, output.error.find(' ')));
  // What failed inside may name files or addresses, which are not the client's business.
  const bool is_internal =
      output.error.find('/') != std::string::npos || output.error.find("0x") != std::string::npos;
  return ApiError(500, is_internal ? "the request failed; the server's log says more" : output.error);
}

TokenNames token_names(const ApiRequest& request, const ServedModel& model) {
  return {model.sampling.tokenizer, request.return_tokens_as_token_ids};
}

std::string TokenNames::operator()(std::int32_t id) const {
  if (as_ids || tokenizer == nullptr) return format_text("token_id:{}", id);
  std::string bytes = tokenizer->token_bytes(id);
  if (is_valid_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += format_text("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

void CompletionLogprobs::add_token(std::int32_t id, OrderedJson logprob, OrderedJson top) {
  lists_["text_offset"].push_back(offset_);
  lists_["token_logprobs"].push_back(std::move(logprob));
  lists_["tokens"].push_back(names_(id));
  lists_["top_logprobs"].push_back(std::move(top));
  const bool hidden = skip_special_tokens_ && names_.tokenizer != nullptr && names_.tokenizer->is_special(id);
  if (!hidden) offset_ += count_code_points(bytes_of(id, names_));
}

void CompletionLogprobs::add(std::span<const PositionLogprobs> positions) {
  for (const PositionLogprobs& position : positions) {
    OrderedJson map = OrderedJson::object();
    add_to_map(map, position.token, names_);
    for (const TokenLogprob& token : position.top) add_to_map(map, token, names_);
    add_token(position.token.token_id, logprob_json(position.token.logprob), std::move(map));
  }
}

OrderedJson CompletionLogprobs::take() {
  const OrderedJson none = OrderedJson::array();
  return std::exchange(
      lists_, {{"text_offset", none}, {"token_logprobs", none}, {"tokens", none}, {"top_logprobs", none}});
}

OrderedJson chat_logprobs(std::span<const PositionLogprobs> positions, const TokenNames& names) {
  OrderedJson content = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson& entry = content.emplace_back(chat_token(position.token, names));
    OrderedJson& top = entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& token : position.top) top.push_back(chat_token(token, names));
  }
  return {{"content", std::move(content)}};
}

OrderedJson prompt_logprobs_json(std::span<const PositionLogprobs> positions, const TokenNames& names) {
  OrderedJson list = OrderedJson::array({nullptr});
  for (const PositionLogprobs& position : positions) {
    OrderedJson& map = list.emplace_back(OrderedJson::object());
    const auto add = [&](const TokenLogprob& token) {
      map[format_text("{}", token.token_id)] = {{"logprob", logprob_json(token.logprob)},
                                                {"rank", token.rank},
                                                {"decoded_token", names(token.token_id)}};
    };
    add(position.token);
    for (const TokenLogprob& token : position.top) add(token);
  }
  return list;
}

}  // namespace quire::server
