#include "python/json_input.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace quire::python {
namespace {

[[noreturn]] void refuse(const std::string& name, const OrderedJson& value, const char* right) {
  fail("{} is {}; it must be {}", name, in_quotes(value.dump()), right);
}

template <typename T>
requires std::is_arithmetic_v<T>
void convert(const std::string& name, const OrderedJson& value, T& to) {
  if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) refuse(name, value, "true or false");
  } else if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) refuse(name, value, "a number");
  } else {
    if (!value.is_number_integer()) refuse(name, value, "a whole number");
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<std::uint64_t>())
                                                 : std::in_range<T>(value.get<std::int64_t>());
    if (!fits) refuse(name, value, "a number of fewer digits");
  }
  to = value.get<T>();
}

void convert(const std::string& name, const OrderedJson& value, std::string& to) {
  if (!value.is_string()) refuse(name, value, "a text");
  to = value.get<std::string>();
}

template <typename T>
void convert(const std::string& name, const OrderedJson& value, std::vector<T>& to) {
  to.clear();
  if (!value.is_array()) refuse(name, value, "a list");
  for (const OrderedJson& element : value) convert(name, element, to.emplace_back());
}

// Takes the members of an object, and knows which have been asked for.
class Members {
 public:
  Members(const OrderedJson& object, const char* what) : object_(object), what_(what) {
    if (!object.is_object()) fail("{} are {}; they must be an object", what, in_quotes(object.dump()));
  }

  const OrderedJson* find(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end()) return nullptr;
    known_.insert(name);
    return &*found;
  }
  template <typename T>
  void take(const char* name, T& to) {
    const OrderedJson* value = find(name);
    if (value != nullptr && !value->is_null()) convert(name, *value, to);
  }
  template <typename T>
  void take(const char* name, std::optional<T>& to) {
    const OrderedJson* value = find(name);
    if (value != nullptr) to.reset();
    if (value != nullptr && !value->is_null()) convert(name, *value, to.emplace());
  }
  // What nobody has asked for.
  void finish() const {
    for (const auto& [name, value] : object_.items())
      if (!known_.contains(name)) fail("{} have no {}", what_, in_quotes(name));
  }

 private:
  const OrderedJson& object_;
  const char* what_;
  std::set<std::string> known_;
};

void take_logit_bias(Members& members, SamplingParams& params) {
  const OrderedJson* biases = members.find("logit_bias");
  if (biases == nullptr || biases->is_null()) return;
  if (!biases->is_object()) refuse("logit_bias", *biases, "numbers by token id");
  params.logit_bias.clear();
  for (const auto& [key, value] : biases->items()) {
    std::int32_t id = 0;
    convert("logit_bias, of which a token id", OrderedJson::parse(key, nullptr, false), id);
    convert("logit_bias", value, params.logit_bias[id]);
  }
}

void take_early_stopping(Members& members, SamplingParams& params) {
  const OrderedJson* value = members.find("early_stopping");
  if (value == nullptr) return;
  if (*value == "never") {
    params.early_stopping = EarlyStopping::kNever;
  } else if (value->is_boolean()) {
    params.early_stopping = value->get<bool>() ? EarlyStopping::kYes : EarlyStopping::kNo;
  } else {
    refuse("early_stopping", *value, "true, false or \"never\"");
  }
}

StructuredOutputs::Kind to_kind(const OrderedJson& value) {
  using Kind = StructuredOutputs::Kind;
  constexpr std::pair<const char*, Kind> kKinds[] = {
      {"json", Kind::kJsonSchema}, {"json_object", Kind::kJsonObject},
      {"regex", Kind::kRegex},     {"choice", Kind::kChoice},
      {"grammar", Kind::kGrammar}, {"structural_tag", Kind::kStructuralTag}};
  for (const auto& [name, kind] : kKinds)
    if (value == name) return kind;
  refuse("structured_outputs.kind", value, "json, json_object, regex, choice, grammar or structural_tag");
}

void take_structured_outputs(Members& members, SamplingParams& params) {
  const OrderedJson* value = members.find("structured_outputs");
  if (value == nullptr || value->is_null()) return;
  const auto made = std::make_shared<StructuredOutputs>();
  StructuredOutputs& outputs = *made;
  Members fields(*value, "structured_outputs");
  const OrderedJson* kind = fields.find("kind");
  outputs.kind = to_kind(kind == nullptr ? OrderedJson() : *kind);
  fields.take("source", outputs.source);
  fields.take("disable_any_whitespace", outputs.disable_any_whitespace);
  fields.take("disable_additional_properties", outputs.disable_additional_properties);
  fields.take("whitespace_pattern", outputs.whitespace_pattern);
  fields.finish();
  params.structured_outputs = made;
}

void take_cache_and_memory(Members& members, EngineConfig& config) {
  members.take("max_num_seqs", config.max_num_seqs);
  members.take("max_num_batched_tokens", config.max_num_batched_tokens);
  members.take("long_prefill_token_threshold", config.long_prefill_token_threshold);
  members.take("max_model_len", config.max_model_len);
  members.take("block_size", config.block_size);
  members.take("kv_cache_dtype", config.kv_cache_dtype);
  members.take("kv_cache_dtype_skip_layers", config.kv_cache_dtype_skip_layers);
  members.take("kv_cache_memory", config.kv_cache_memory);
  members.take("state_cache_memory", config.state_cache_memory);
  members.take("gpu_memory_utilization", config.gpu_memory_utilization);
  members.take("swap_space", config.swap_space);
  members.take("preemption_mode", config.preemption_mode);
  members.take("enable_prefix_caching", config.enable_prefix_caching);
}

}  // namespace

EngineConfig read_engine_config(const OrderedJson& object) {
  EngineConfig config;
  Members members(object, "the engine's arguments");
  members.take("model", config.model);
  members.take("device", config.device);
  members.take("cpu_isa", config.cpu_isa);
  members.take("cpu_threads", config.cpu_threads);
  members.take("tensor_parallel_size", config.tensor_parallel_size);
  members.take("watchdog", config.watchdog);
  members.take("disable_custom_all_reduce", config.disable_custom_all_reduce);
  members.take("dtype", config.dtype);
  members.take("quantization", config.quantization);
  members.take("quantize_head", config.quantize_head);
  members.take("weight_only", config.weight_only);
  take_cache_and_memory(members, config);
  members.take("chat_template", config.chat_template);
  members.take("generation_config", config.generation_config);
  members.take("override_generation_config", config.override_generation_config);
  members.take("enforce_eager", config.enforce_eager);
  members.take("deterministic", config.deterministic);
  members.take("disable_jump_forward", config.disable_jump_forward);
  members.take("max_logprobs", config.max_logprobs);
  members.take("scheduling_policy", config.scheduling_policy);
  members.take("max_num_queued_reqs", config.max_num_queued_reqs);
  members.take("max_num_queued_tokens", config.max_num_queued_tokens);
  members.take("record", config.record);
  members.take("record_tokens", config.record_tokens);
  members.take("check_invariants", config.check_invariants);
  members.take("seed", config.seed);
  members.finish();
  return config;
}

SamplingParams read_sampling_params(const OrderedJson& object) {
  SamplingParams params;
  Members members(object, "the sampling parameters");
  members.take("n", params.n);
  members.take("best_of", params.best_of);
  members.take("beam_width", params.beam_width);
  members.take("length_penalty", params.length_penalty);
  take_early_stopping(members, params);
  members.take("temperature", params.temperature);
  members.take("top_p", params.top_p);
  members.take("top_k", params.top_k);
  members.take("min_p", params.min_p);
  members.take("seed", params.seed);
  members.take("presence_penalty", params.presence_penalty);
  members.take("frequency_penalty", params.frequency_penalty);
  members.take("repetition_penalty", params.repetition_penalty);
  take_logit_bias(members, params);
  members.take("allowed_token_ids", params.allowed_token_ids);
  members.take("bad_words", params.bad_words);
  members.take("logprobs", params.logprobs);
  members.take("prompt_logprobs", params.prompt_logprobs);
  members.take("logprob_token_ids", params.logprob_token_ids);
  members.take("max_tokens", params.max_tokens);
  members.take("min_tokens", params.min_tokens);
  members.take("ignore_eos", params.ignore_eos);
  members.take("stop", params.stop);
  members.take("stop_token_ids", params.stop_token_ids);
  members.take("include_stop_str_in_output", params.include_stop_str_in_output);
  members.take("detokenize", params.detokenize);
  members.take("skip_special_tokens", params.skip_special_tokens);
  members.take("spaces_between_special_tokens", params.spaces_between_special_tokens);
  take_structured_outputs(members, params);
  members.take("truncate_prompt_tokens", params.truncate_prompt_tokens);
  members.finish();
  return params;
}

void read_request_options(const OrderedJson& object, EngineRequest& request) {
  Members members(object, "the request's options");
  members.take("priority", request.priority);
  members.take("cache_salt", request.cache_salt);
  members.take("timeout", request.timeout);
  members.take("dimensions", request.dimensions);
  members.take("normalise", request.normalise);
  if (const OrderedJson* pooling = members.find("pooling"); pooling != nullptr && !pooling->is_null()) {
    constexpr std::pair<const char*, Pooling> kKinds[] = {
        {"last", Pooling::kLast}, {"mean", Pooling::kMean}, {"logits", Pooling::kLogits}};
    const auto* const kind = std::ranges::find(kKinds, *pooling, &std::pair<const char*, Pooling>::first);
    if (kind == std::end(kKinds)) refuse("pooling", *pooling, "last, mean or logits");
    request.pooling = kind->second;
  }
  members.finish();
}

OrderedJson sampling_defaults_json(const SamplingParams& params) {
  return {{"temperature", params.temperature},
          {"top_p", params.top_p},
          {"top_k", params.top_k},
          {"min_p", params.min_p},
          {"repetition_penalty", params.repetition_penalty},
          {"max_tokens", params.max_tokens}};
}

}  // namespace quire::python
