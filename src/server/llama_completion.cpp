#include "server/llama_completion.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/parse_number.h"
#include "server/api_error.h"

namespace quire::server {
namespace {

constexpr std::int64_t kRandomSeed = 0xFFFFFFFF;  // as -1
constexpr std::size_t kLongSetting = 1 << 10;     // bytes of a field, told in an answer of one output alone

// llama.cpp's names of our fields.
constexpr FieldName kRenamed[] = {
    {"repeat_penalty", "repetition_penalty"}, {"n_probs", "logprobs"}, {"n_cmpl", "n"}};

// What `samplers` calls a field, and where that does nothing.
struct Sampler {
  std::string_view name, field;
  float off;
};
constexpr Sampler kSamplers[] = {{"top_k", "top_k", 0},
                                 {"top_p", "top_p", 1},
                                 {"min_p", "min_p", 0},
                                 {"temperature", "temperature", 1},
                                 {"penalties", "repetition_penalty", 1},
                                 {"penalties", "presence_penalty", 0},
                                 {"penalties", "frequency_penalty", 0}};

void refuse_samplers(const JsonFields& fields) {
  const auto check = [&](const char* name, float least, float most) {
    const float value = fields.get(name, to_float).value_or(least);
    if (value < least || value > most) refuse(name, "is {}, which is not supported", value);
  };
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const char* name : {"dry_multiplier", "xtc_probability", "mirostat", "dynatemp_range", "top_n_sigma",
                           "n_indent", "min_keep", "t_max_predict_ms"})
    check(name, -kMax, 0);
  check("adaptive_target", -kMax, -1e-9F);
  check("typical_p", 1, kMax);
  refuse_unsupported(fields,
                     {"lora", "response_fields", "return_progress", "post_sampling_probs", "image_data"});
}

// Pairs of a token, or a text, and a bias, or an object of these; false: never.
OrderedJson read_llama_bias(const OrderedJson& value, const ServedModel& model) {
  OrderedJson read = OrderedJson::object();
  const auto add = [&](const OrderedJson& token, const OrderedJson& bias) {
    const OrderedJson amount = bias.is_boolean() && !bias.get<bool>() ? OrderedJson(-100) : bias;
    std::vector<TokenId> ids;
    if (token.is_string())
      ids = tokenizer_of(model).encode(token.get_ref<const std::string&>(), false);
    else
      ids = {static_cast<TokenId>(to_integer(token, "logit_bias", 0, model.sampling.vocab_size - 1))};
    if (read.size() + ids.size() > SamplingState::kMaxBiases)
      refuse("logit_bias", "has more than {} tokens", SamplingState::kMaxBiases);
    for (const TokenId id : ids) read[std::to_string(id)] = amount;
  };
  if (value.is_object()) {
    for (const auto& [key, bias] : value.items()) {
      const auto id = parse_number<std::int64_t>(key);
      add(id ? OrderedJson(*id) : OrderedJson(key), bias);
    }
    return read;
  }
  for (const OrderedJson& pair : to_list(value, "logit_bias")) {
    if (!pair.is_array() || pair.size() != 2)
      refuse("logit_bias", "has {}; it must have pairs of a token and a bias", shown(pair));
    add(pair[0], pair[1]);
  }
  return read;
}

// The fields under our names, with the model author's defaults, and where that says nothing llama.cpp's.
OrderedJson translate(const JsonFields& fields, const ServedModel& model) {
  OrderedJson made = {
      {"temperature", 0.8F},     {"top_k", 40},           {"top_p", 0.95F},        {"min_p", 0.05F},
      {"repetition_penalty", 1}, {"presence_penalty", 0}, {"frequency_penalty", 0}};
  made.update(model.author_defaults);
  for (const char* name : {"model", "temperature", "top_k", "top_p", "min_p", "presence_penalty",
                           "frequency_penalty", "stop", "stream", "grammar", "json_schema", "ignore_eos"})
    if (const OrderedJson* value = fields.find(name)) made[name] = *value;
  for (const auto& [name, ours] : kRenamed)
    if (const OrderedJson* value = fields.find(name)) made[ours] = *value;
  if (fields.integer("n_probs", 0, model.sampling.max_logprobs).value_or(0) == 0) erase_key(made, "logprobs");
  const std::int64_t seed = fields.integer("seed", -1, std::numeric_limits<std::int64_t>::max()).value_or(-1);
  if (seed >= 0 && seed != kRandomSeed) made["seed"] = seed;
  if (fields.get("temperature", to_float).value_or(0) < 0) made["temperature"] = 0;  // greedy
  if (const OrderedJson* bias = fields.find("logit_bias")) made["logit_bias"] = read_llama_bias(*bias, model);
  const bool no_history = fields.integer("repeat_last_n", -1, kLargestInt).value_or(-1) == 0;
  const auto samplers = fields.get("samplers", to_texts);
  for (const auto& [name, field, off] : kSamplers) {
    const bool is_left_out = samplers && std::ranges::find(*samplers, name) == samplers->end();
    if (is_left_out || (no_history && name == "penalties")) made[field] = off;
  }
  return made;
}

// generation_settings, of what was translated.
OrderedJson settings_json(const OrderedJson& translated, const LlamaRequest& request) {
  OrderedJson settings = {{"seed", kRandomSeed}, {"stop", nullptr}, {"stream", false},
                          {"ignore_eos", false}, {"grammar", ""},   {"n_probs", 0},
                          {"repeat_last_n", -1}};
  settings.update(translated);
  settings["stop"] = request.params.stop;  // also one text is a list
  for (const auto& [name, ours] : kRenamed) {
    if (const auto found = translated.find(ours); found != translated.end()) settings[name] = *found;
    erase_key(settings, ours);
  }
  settings["n_predict"] = settings["max_tokens"] = request.max_tokens.value_or(-1);
  settings["samplers"] = {"penalties", "temperature", "min_p", "top_k", "top_p"};
  // Each output repeats them: a small body would make an answer of gigabytes.
  for (OrderedJson& value : settings)
    if (request.prompts.size() * request.params.n > 1 && to_line(value).size() > kLongSetting)
      value = nullptr;
  return settings;
}

void read_samplers(const JsonFields& fields, const ServedModel& model, LlamaRequest& request) {
  const OrderedJson translated = translate(fields, model);
  try {
    const JsonFields ours(translated);
    read_common(ours, model, request);
    ours.read("logprobs", request.params.logprobs, to_integer, 1, model.sampling.max_logprobs);
    check_sampling(request.params, model);
  } catch (const ApiError& e) {
    throw renamed(e, kRenamed);
  }
  request.settings = settings_json(translated, request);
}

// A text, or a list of tokens and texts.
std::vector<TokenId> read_llama_prompt(const OrderedJson& prompt, const ServedModel& model) {
  if (prompt.is_string()) return tokenizer_of(model).encode(prompt.get_ref<const std::string&>(), true);
  if (std::ranges::none_of(to_list(prompt, "prompt"), [](const auto& part) { return part.is_string(); }))
    return to_token_ids(prompt, "prompt", model.sampling.vocab_size);
  std::vector<TokenId> tokens;
  for (const OrderedJson& part : prompt) {
    if (!part.is_string()) {
      tokens.push_back(static_cast<TokenId>(to_integer(part, "prompt", 0, model.sampling.vocab_size - 1)));
      continue;
    }
    const auto ids = tokenizer_of(model).encode(part.get_ref<const std::string&>(), tokens.empty());
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

void read_llama_prompts(const OrderedJson& prompt, const ServedModel& model, LlamaRequest& request) {
  const bool is_list =
      prompt.is_array() && std::ranges::none_of(prompt, [](const auto& part) { return part.is_number(); });
  if (!is_list) return request.prompts.push_back(read_llama_prompt(prompt, model));
  if (prompt.empty() || prompt.size() > model.max_prompts)
    refuse("prompt", "has {} entries; it must have 1 to {}", prompt.size(), model.max_prompts);
  for (const OrderedJson& one : prompt) request.prompts.push_back(read_llama_prompt(one, model));
}

std::string_view stop_type(const CompletionOutput& output) {
  if (output.finish_reason == FinishReason::kLength) return "limit";
  if (output.finish_reason != FinishReason::kStop) return "none";
  return std::holds_alternative<std::string>(output.stop_reason) ? "word" : "eos";
}

OrderedJson probabilities(std::span<const PositionLogprobs> positions, const TokenNames& names) {
  OrderedJson list = chat_logprobs(positions, names)["content"];
  for (std::size_t i = 0; i < positions.size(); ++i) {
    list[i]["id"] = positions[i].token.token_id;
    for (std::size_t place = 0; place < positions[i].top.size(); ++place)
      list[i]["top_logprobs"][place]["id"] = positions[i].top[place].token_id;
  }
  return list;
}

class LlamaResponse final : public Response {
 public:
  LlamaResponse(ResponseHead head, LlamaRequest request, const ServedModel& model)
      : Response(std::move(head), request),
        request_(std::move(request)),
        model_(model),
        sent_(request_.prompts.size() * request_.params.n) {}

  std::string events(std::size_t prompt, const RequestUpdate& update) override {
    if (!streams()) return {};
    std::string events;
    if (!update.new_text.empty()) events = to_event(piece(prompt, update, update.new_text));
    return update.output.finished() ? events + to_event(last_piece(prompt, update, "")) : events;
  }

  std::string failure_events(const ApiError& error) override { return to_event(openai_error(error)); }

  OrderedJson body(Outputs outputs) override {
    OrderedJson all = OrderedJson::array();
    for (std::size_t prompt = 0; prompt < outputs.size(); ++prompt)
      for (const CompletionOutput& output : outputs[prompt].outputs)
        all.push_back(last_piece(prompt,
                                 {.request = outputs[prompt], .output = output, .new_text = {}, .logits = {}},
                                 output.text));
    return all.size() == 1 ? std::move(all.front()) : all;
  }

 private:
  // This text of an output, and all its tokens that were not told before.
  OrderedJson piece(std::size_t prompt, const RequestUpdate& update, std::string_view text) {
    const CompletionOutput& output = update.output;
    const std::size_t index = prompt * request_.params.n + output.index;
    const std::size_t first = std::exchange(sent_[index], output.token_ids.size());
    OrderedJson json = {{"index", index}, {"content", text}, {"tokens", OrderedJson::array()}};
    if (request_.return_tokens || streams()) json["tokens"] = std::span(output.token_ids).subspan(first);
    json["id_slot"] = -1;
    json["stop"] = false;
    json["tokens_predicted"] = output.token_ids.size();
    json["tokens_evaluated"] = update.request.prompt_token_ids.size();
    if (request_.params.logprobs)
      json["completion_probabilities"] =
          probabilities(std::span(output.logprobs).subspan(first), {model_.sampling.tokenizer});
    if (request_.timings_per_token || output.finished())
      json["timings"] = timings_json(timings_of(std::span(&update.request, 1)), usage_of(update));
    return json;
  }

  OrderedJson last_piece(std::size_t prompt, const RequestUpdate& update, std::string_view text) {
    const CompletionOutput& output = update.output;
    const std::vector<TokenId>& tokens = update.request.prompt_token_ids;
    const auto* word = std::get_if<std::string>(&output.stop_reason);
    OrderedJson json = piece(prompt, update, text);
    json["stop"] = true;
    json["model"] = head_.model;
    json["generation_settings"] = request_.settings;
    json["prompt"] = model_.sampling.tokenizer ? model_.sampling.tokenizer->decode(tokens, false) : "";
    json["has_new_line"] = output.text.find('\n') != std::string::npos;
    json["truncated"] = std::ssize(tokens) + std::ssize(output.token_ids) >= model_.max_model_len;
    json["stop_type"] = stop_type(output);
    json["stopping_word"] = word == nullptr ? "" : *word;
    json["tokens_cached"] = update.request.num_cached_tokens;
    return json;
  }

  const LlamaRequest request_;
  const ServedModel& model_;
  std::vector<std::size_t> sent_;  // tokens of each output of each prompt
};

}  // namespace

LlamaRequest parse_llama_request(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  LlamaRequest request;
  refuse_samplers(fields);
  const char* const name = fields.find("n_predict") == nullptr ? "max_tokens" : "n_predict";
  const std::int64_t predicted = fields.integer(name, -1, kLargestInt).value_or(-1);
  if (predicted == 0) refuse(name, "is 0; it must be at least 1, or -1 for what the context holds");
  if (predicted > 0) request.max_tokens = static_cast<int>(predicted);
  fields.read("cache_prompt", request.cache_prompt);
  fields.read("return_tokens", request.return_tokens);
  fields.read("timings_per_token", request.timings_per_token);
  read_llama_prompts(fields.required("prompt"), model, request);
  read_samplers(fields, model, request);
  return request;
}

std::unique_ptr<Response> make_llama_response(ResponseHead head, LlamaRequest request,
                                              const ServedModel& model) {
  return std::make_unique<LlamaResponse>(std::move(head), std::move(request), model);
}

}  // namespace quire::server
