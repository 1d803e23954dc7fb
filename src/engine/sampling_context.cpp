// Checks parameters of sampling, and requests (engine/request.h).
#include "engine/sampling_context.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "engine/request.h"
#include "engine/search_rounds.h"
#include "engine/structured_outputs.h"
#include "ops/logits_batches.h"

namespace quire {
namespace {

constexpr std::string_view kSpaces = " \t\n\v\f\r";
constexpr float kGreedyBelow = 1e-5F;        // vLLM's _SAMPLING_EPS
constexpr float kLowestTemperature = 1e-2F;  // vLLM's _MAX_TEMP
constexpr std::size_t kMaxStops = 16;
constexpr std::size_t kMaxStopBytes = 256;
constexpr std::size_t kMaxStopTokenIds = 128;
constexpr std::size_t kMaxBadWords = SamplingState::kMaxBadWords / 2;  // each may be spelled in two ways
constexpr std::size_t kMaxBadWordBytes = 256;
constexpr float kMaxBias = 100;

// Written so that NaN is outside. of_max: what the largest value is, where it has a name.
template <typename T>
void check_range(const char* name, T value, std::type_identity_t<T> min, std::type_identity_t<T> max,
                 const char* of_max = "") {
  if (!(value >= min && value <= max))
    fail("{} is {}; it must be from {} to {}{}", name, value, min, of_max, max);
}

void check_count(const char* name, std::size_t count, std::size_t max) {
  if (count > max) fail("{} has {} entries; at most {} are allowed", name, count, max);
}

void check_id(const char* name, TokenId id, int vocab_size) {
  if (id < 0 || id >= vocab_size) fail("{} has {}; ids are from 0 to {}", name, id, vocab_size - 1);
}

void validate_logprobs(const char* name, const std::optional<int>& count, const SamplingContext& context) {
  if (count == -1 && context.max_logprobs < context.vocab_size)
    fail("{} is -1, all {} tokens; max-logprobs allows {}, and with -1 all", name, context.vocab_size,
         context.max_logprobs);
  if (count != -1) check_range(name, count.value_or(0), 0, context.max_logprobs, "max-logprobs, ");
}

void validate_outputs(const SamplingParams& params) {
  check_range("n", params.n, 1, kMaxOutputs);
  if (params.best_of && (*params.best_of < params.n || *params.best_of > kMaxOutputs))
    fail("best_of is {}; it must be from n, {}, to {}", *params.best_of, params.n, kMaxOutputs);
  if (!params.beam_width && num_sampled(params) > 1 && params.temperature < kGreedyBelow) {
    fail("{} is {}; it must be 1 with temperature 0, since all outputs would be the same",
         params.n > 1 ? "n" : "best_of", num_sampled(params));
  }
}

void validate_distribution(const SamplingParams& params) {
  check_range("temperature", params.temperature, 0, 1e4F);
  if (!(params.top_p > 0.0F && params.top_p <= 1.0F))
    fail("top_p is {}; it must be over 0 and at most 1", params.top_p);
  check_range("min_p", params.min_p, 0, 1);
  if (params.top_k < -1) fail("top_k is {}; it must be at least 1, or 0 or -1 for all tokens", params.top_k);
  check_range("presence_penalty", params.presence_penalty, -2, 2);
  check_range("frequency_penalty", params.frequency_penalty, -2, 2);
  check_range("repetition_penalty", params.repetition_penalty, 1e-4F, 1e4F);
}

void validate_end(const SamplingParams& params, int vocab_size) {
  if (params.max_tokens < (params.prompt_logprobs ? 0 : 1))
    fail("max_tokens is {}; it must be at least 1, or 0 with prompt_logprobs", params.max_tokens);
  check_range("min_tokens", params.min_tokens, 0, params.max_tokens, "max_tokens, ");
  check_count("stop", params.stop.size(), kMaxStops);
  for (const std::string& stop : params.stop) {
    if (stop.empty() || stop.size() > kMaxStopBytes)
      fail("stop has a string of {} bytes; each must have 1 to {}", stop.size(), kMaxStopBytes);
  }
  check_count("stop_token_ids", params.stop_token_ids.size(), kMaxStopTokenIds);
  for (const TokenId id : params.stop_token_ids) check_id("stop_token_ids", id, vocab_size);
}

void validate_text(const SamplingParams& params) {
  if (!params.detokenize && !params.stop.empty()) fail("stop needs text; detokenize is off");
  if (const auto kept = params.truncate_prompt_tokens; kept && *kept != -1 && *kept < 1)
    fail("truncate_prompt_tokens is {}; it must be at least 1, or -1 for what fits beside max_tokens", *kept);
}

void validate_tokens(const SamplingParams& params, const SamplingContext& context) {
  check_count("logit_bias", params.logit_bias.size(), SamplingState::kMaxBiases);
  for (const auto& [id, bias] : params.logit_bias) {
    check_id("logit_bias", id, context.vocab_size);
    if (std::isnan(bias)) fail("logit_bias of token {} is not a number; it must be from -100 to 100", id);
  }
  check_count("allowed_token_ids", params.allowed_token_ids.size(),
              static_cast<std::size_t>(context.vocab_size));
  for (const TokenId id : params.allowed_token_ids) check_id("allowed_token_ids", id, context.vocab_size);
  check_count("logprob_token_ids", params.logprob_token_ids.size(), kMaxNamedLogprobs);
  for (const TokenId id : params.logprob_token_ids) check_id("logprob_token_ids", id, context.vocab_size);
  if (!params.logprob_token_ids.empty() && !params.logprobs) fail("logprob_token_ids needs logprobs");
  check_count("bad_words", params.bad_words.size(), kMaxBadWords);
  if (!params.bad_words.empty() && context.tokenizer == nullptr)
    fail("bad_words need a tokenizer; this model has none");
  for (const std::string& word : params.bad_words) {
    if (word.find_first_not_of(kSpaces) == std::string::npos || word.size() > kMaxBadWordBytes) {
      fail("bad_words has {}; each must have 1 to {} bytes, not spaces alone", in_quotes(word),
           kMaxBadWordBytes);
    }
  }
}

// The tokens of each word, as it stands at the beginning of a text and after a space.
std::vector<std::vector<TokenId>> encode_bad_words(const std::vector<std::string>& words,
                                                   const Tokenizer* tokenizer) {
  std::vector<std::vector<TokenId>> encoded;
  for (const std::string& word : words) {
    const std::string bare = word.substr(word.find_first_not_of(kSpaces));
    encoded.push_back(tokenizer->encode(bare, false));
    std::vector<TokenId> spaced = tokenizer->encode(" " + bare, false);
    if (spaced != encoded.back()) encoded.push_back(std::move(spaced));
  }
  return encoded;
}

// Some token can come first. Where it shows only later that none can, the output fails.
void validate_choice(const SamplingParams& params, const SamplingContext& context) {
  constexpr int kMaxMasks = SamplingState::kMaxStopIds + SamplingState::kMaxBadWords;
  const bool has_masks = params.min_tokens > 0 || !params.bad_words.empty();
  if (!has_masks || (params.allowed_token_ids.empty() && context.vocab_size > kMaxMasks)) return;
  const SamplingState state = make_sampling_state(params, context, 0);
  if (!state.leaves_token({}, params.min_tokens > 0, context.vocab_size))
    fail("{}", describe_no_token(params, 0));
}

}  // namespace

void validate(const SamplingParams& params, const SamplingContext& context) {
  validate_logprobs("logprobs", params.logprobs, context);
  validate_logprobs("prompt_logprobs", params.prompt_logprobs, context);
  validate_outputs(params);
  if (params.beam_width) validate_search(params, context);
  validate_distribution(params);
  validate_end(params, context.vocab_size);
  validate_text(params);
  validate_tokens(params, context);
  validate_choice(params, context);
  if (params.structured_outputs) validate_structured_outputs(params, context);
  if (!params.thinking_budget) return;
  if (params.beam_width) fail("thinking_token_budget and beam_width exclude each other");
  if (context.tokenizer == nullptr) fail("thinking_token_budget needs a tokenizer; this model has none");
  if (params.thinking_budget->max_tokens < 0 || params.thinking_budget->end.empty())
    fail("thinking_token_budget is {} tokens up to {}; it must be at least 0, and a text",
         params.thinking_budget->max_tokens, in_quotes(params.thinking_budget->end));
  const std::vector<TokenId> end = context.tokenizer->encode(params.thinking_budget->end, false);
  if (end.empty() || std::ranges::max(end) >= context.vocab_size)
    fail("thinking_token_budget ends with {}, which is no text of the model's {} tokens",
         in_quotes(params.thinking_budget->end), context.vocab_size);
}

void validate_without_params(const EngineRequest& request, const SamplingContext& context) {
  constexpr double kMaxTimeout = 1e9;  // some thirty years, and far from the clock's end
  if (request.timeout && !(*request.timeout > 0 && *request.timeout <= kMaxTimeout))
    fail("timeout is {}; it must be over 0 seconds and at most {}", *request.timeout, kMaxTimeout);
  if (request.params.beam_width && request.prompt_logits)
    fail("beam_width and the prompt's logits exclude each other");
  const SamplingParams& params = request.params;
  const std::pair<bool, const char*> excluded[] = {
      {request.prompt_logits, "the prompt's logits"},
      {params.n > 1, "n"},
      {params.best_of.has_value(), "best_of"},
      {params.beam_width.has_value(), "beam_width"},
      {params.logprobs.has_value(), "logprobs"},
      {params.prompt_logprobs.has_value(), "prompt_logprobs"},
      {params.structured_outputs != nullptr, "structured_outputs"}};
  for (const auto& [is_asked, what] : excluded)
    if (is_asked && request.pooling != Pooling::kNone) fail("pooling and {} exclude each other", what);
  if (request.pooling == Pooling::kLogits && request.params.allowed_token_ids.empty())
    fail("pooling of logits needs allowed_token_ids, which are pooled");
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= context.vocab_size)
      fail("the prompt has token id {}; this model's are from 0 to {}", id, context.vocab_size - 1);
  }
}

std::string describe_no_token(const SamplingParams& params, std::size_t num_output) {
  std::vector<std::string_view> names;
  if (!params.allowed_token_ids.empty()) names.emplace_back("allowed_token_ids");
  if (!params.bad_words.empty()) names.emplace_back("bad_words");
  if (static_cast<std::size_t>(params.min_tokens) > num_output) names.emplace_back("min_tokens");
  if (params.structured_outputs) names.emplace_back("structured_outputs");
  if (params.thinking_budget) names.emplace_back("thinking_token_budget");
  return format_text("{} leave no token that could be number {} of the output", join_text(names, " and "),
                     num_output + 1);
}

int num_beam_candidates(int beam_width, std::size_t num_stop_ids, int vocab_size) {
  return std::min(beam_width + static_cast<int>(num_stop_ids), vocab_size);
}

void truncate_prompt(std::vector<TokenId>& prompt, const SamplingParams& params, int max_model_len) {
  if (!params.truncate_prompt_tokens) return;
  const int room = max_model_len - std::min(std::max(params.max_tokens, 1), max_model_len - 1);
  const auto kept = static_cast<std::ptrdiff_t>(
      *params.truncate_prompt_tokens == -1 ? room : *params.truncate_prompt_tokens);
  if (std::ssize(prompt) > kept) prompt.erase(prompt.begin(), prompt.end() - kept);
}

SamplingState make_sampling_state(const SamplingParams& params, const SamplingContext& context,
                                  std::uint64_t default_seed) {
  SamplingState state;
  state.temperature =
      params.temperature < kGreedyBelow ? 0.0F : std::max(params.temperature, kLowestTemperature);
  state.top_p = params.top_p;
  state.min_p = params.min_p;
  state.top_k = std::max(params.top_k, 0);
  state.seed = params.seed.value_or(default_seed);
  state.presence_penalty = params.presence_penalty;
  state.frequency_penalty = params.frequency_penalty;
  state.repetition_penalty = params.repetition_penalty;
  for (const auto& [id, bias] : params.logit_bias)
    state.biases.push_back({id, std::clamp(bias, -kMaxBias, kMaxBias)});
  state.allowed_ids = params.allowed_token_ids;
  state.bad_words = encode_bad_words(params.bad_words, context.tokenizer);
  // best_of chooses by log-probability.
  const auto wanted = [&](const std::optional<int>& count, int otherwise) {
    return count == -1 ? context.vocab_size : count.value_or(otherwise);
  };
  state.num_logprobs = wanted(params.logprobs, params.best_of ? 0 : SamplingState::kNoLogprobs);
  state.num_prompt_logprobs = wanted(params.prompt_logprobs, SamplingState::kNoLogprobs);
  for (const TokenId id : params.logprob_token_ids)
    if (std::ranges::find(state.logprob_ids, id) == state.logprob_ids.end()) state.logprob_ids.push_back(id);
  if (!state.logprob_ids.empty()) state.num_logprobs = static_cast<int>(state.logprob_ids.size());
  state.stop_ids = params.stop_token_ids;
  if (!params.ignore_eos || params.structured_outputs)  // which allow it where the text is complete
    state.stop_ids.insert(state.stop_ids.end(), context.eos_token_ids.begin(), context.eos_token_ids.end());
  std::ranges::sort(state.stop_ids);
  state.stop_ids.erase(std::unique(state.stop_ids.begin(), state.stop_ids.end()), state.stop_ids.end());
  if (params.beam_width) {
    state.temperature = 0.0F;  // what is sampled is not looked at
    state.num_logprobs = num_beam_candidates(*params.beam_width, state.stop_ids.size(), context.vocab_size);
  }
  return state;
}

}  // namespace quire
