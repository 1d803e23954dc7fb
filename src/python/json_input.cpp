#include "python/json_input.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace quire::python {
namespace {

[[noreturn]] void refuse(const std::string& name, const OrderedJson& value, const char* right) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  fail("{} is {}; it must be {}", name, in_quotes(text), right);
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

template <typename T>
void convert(const std::string& name, const OrderedJson& value, std::optional<T>& to) {
  convert(name, value, to.emplace());
}

void convert(const std::string& name, const OrderedJson& value, std::map<std::int32_t, float>& to) {
  to.clear();
  if (!value.is_object()) refuse(name, value, "numbers by token id");
  for (const auto& [key, number] : value.items()) {
    std::int32_t id = 0;
    convert(name + ", of which a token id", OrderedJson::parse(key, nullptr, false), id);
    convert(name, number, to[id]);
  }
}

// One of the values that have names.
template <typename T, std::size_t N>
T read_named(const std::string& name, const OrderedJson& value, const std::pair<const char*, T> (&known)[N],
             const char* right) {
  const auto* const found = std::ranges::find(known, value, &std::pair<const char*, T>::first);
  if (found == std::end(known)) refuse(name, value, right);
  return found->second;
}

void convert(const std::string& name, const OrderedJson& value, Pooling& to) {
  to = read_named<Pooling>(name, value,
                           {{"last", Pooling::kLast}, {"mean", Pooling::kMean}, {"logits", Pooling::kLogits}},
                           "last, mean or logits");
}

void convert(const std::string& name, const OrderedJson& value, std::shared_ptr<const StructuredOutputs>& to);

// Takes the members of an object, and knows which have been asked for.
class Members {
 public:
  Members(const OrderedJson& object, std::string what) : object_(object), what_(std::move(what)) {
    if (!object.is_object()) fail("{} are {}; they must be an object", what_, in_quotes(object.dump()));
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
  // What nobody has asked for.
  void finish() const {
    for (const auto& [name, value] : object_.items())
      if (!known_.contains(name)) fail("{} have no {}", what_, in_quotes(name));
  }

 private:
  const OrderedJson& object_;
  const std::string what_;
  std::set<std::string> known_;
};

// Takes the members of an object that are called as those of a struct.
#define QUIRE_TAKE_ONE(name) members.take(#name, to.name);
#define QUIRE_TAKE(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(QUIRE_TAKE_ONE, __VA_ARGS__))

void convert(const std::string& name, const OrderedJson& value,
             std::shared_ptr<const StructuredOutputs>& made) {
  using Kind = StructuredOutputs::Kind;
  StructuredOutputs to;
  Members members(value, name);
  const OrderedJson* kind = members.find("kind");
  to.kind = read_named<Kind>(name + ".kind", kind == nullptr ? OrderedJson() : *kind,
                             {{"json", Kind::kJsonSchema},
                              {"json_object", Kind::kJsonObject},
                              {"regex", Kind::kRegex},
                              {"choice", Kind::kChoice},
                              {"grammar", Kind::kGrammar},
                              {"structural_tag", Kind::kStructuralTag}},
                             "json, json_object, regex, choice, grammar or structural_tag");
  QUIRE_TAKE(source, disable_any_whitespace, disable_additional_properties, whitespace_pattern);
  members.finish();
  made = std::make_shared<const StructuredOutputs>(std::move(to));
}

}  // namespace

EngineConfig read_engine_config(const OrderedJson& object) {
  EngineConfig to;
  Members members(object, "the engine's arguments");
  QUIRE_TAKE(model, device, cpu_isa, cpu_threads, tensor_parallel_size, watchdog, disable_custom_all_reduce,
             dtype, quantization, quantize_head, weight_only, max_num_seqs, max_num_batched_tokens,
             long_prefill_token_threshold, max_model_len, block_size, kv_cache_dtype,
             kv_cache_dtype_skip_layers, kv_cache_memory, state_cache_memory, gpu_memory_utilization,
             swap_space, preemption_mode, enable_prefix_caching, chat_template, generation_config,
             override_generation_config, enforce_eager, deterministic, disable_jump_forward, max_logprobs,
             scheduling_policy, max_num_queued_reqs, max_num_queued_tokens, record, record_tokens,
             check_invariants, seed);
  members.finish();
  return to;
}

SamplingParams read_sampling_params(const OrderedJson& object) {
  SamplingParams to;
  Members members(object, "the sampling parameters");
  QUIRE_TAKE(n, best_of, beam_width, length_penalty, temperature, top_p, top_k, min_p, seed, presence_penalty,
             frequency_penalty, repetition_penalty, logit_bias, allowed_token_ids, bad_words, logprobs,
             prompt_logprobs, logprob_token_ids, max_tokens, min_tokens, ignore_eos, stop, stop_token_ids,
             include_stop_str_in_output, detokenize, skip_special_tokens, spaces_between_special_tokens,
             structured_outputs, truncate_prompt_tokens);
  members.finish();
  return to;
}

void read_request_options(const OrderedJson& object, EngineRequest& to) {
  Members members(object, "the request's options");
  QUIRE_TAKE(priority, cache_salt, timeout, dimensions, normalise, pooling);
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
