#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace quire {

inline constexpr int kMaxOutputs = 16384;  // of a prompt: vLLM's VLLM_MAX_N_SEQUENCES

// When a beam search ends, once it has beam_width finished texts: see docs/sampling.md.
enum class EarlyStopping : std::uint8_t {
  kNo,     // when no unfinished one scores better as it is: a heuristic
  kYes,    // at once
  kNever,  // when no unfinished one can become better
};

// What the text of an output must be: see docs/sampling.md.
struct StructuredOutputs {
  enum class Kind : std::uint8_t {
    kJsonSchema,     // `source` is the schema: an object, true or false
    kJsonObject,     // any JSON object; `source` is not looked at
    kRegex,          // `source` matches the whole text
    kChoice,         // `source` is a JSON array of strings, one of which the text is
    kGrammar,        // `source` has rules as in GBNF, EBNF or Lark
    kStructuralTag,  // `source` is {"type": "structural_tag", "format": {...}}
  };
  Kind kind = Kind::kJsonSchema;
  std::string source = {};
  std::string name = "structured_outputs";  // what messages call them
  // Between the tokens of JSON: nothing at all, or what this regular expression matches. By default a space,
  // or a line break and at most 64 spaces and tabs.
  bool disable_any_whitespace = false;
  std::optional<std::string> whitespace_pattern = {};
  std::string whitespace_name = "whitespace_pattern";  // what messages call that
  bool disable_additional_properties = false;          // of objects whose schema says nothing of them
  bool any_order = true;  // of the properties of an object; else they come as the schema names them
  // What a model says before its answer is free: text up to and with the first `free_until`. With
  // `free_after` only where that comes first. Empty: nothing is.
  std::string free_until = {};
  std::string free_after = {};
  // What `source` was made of: messages name the one that is wrong by itself.
  std::vector<StructuredOutputs> parts = {};

  bool operator==(const StructuredOutputs&) const = default;
};

// How long a model may think: tokens from behind the text `begin`, if the output begins with that (empty:
// from the output's start), after which `end` is made to follow, unless it has come by then.
struct ThinkingBudget {
  int max_tokens = 0;
  std::string begin = {}, end = {};

  bool operator==(const ThinkingBudget&) const = default;
};

// How one request's tokens are chosen and when it ends. Names, meanings and defaults are vLLM's; every range
// and edge is in docs/sampling.md.
struct SamplingParams {
  // Outputs of one prompt, which is computed once; at most kMaxOutputs, and 1 where greedy. Output i is that
  // of the same request with n 1 and a seed larger by i.
  int n = 1;
  // So many are sampled, and the n of the largest sum of log-probabilities are given, the best one first and
  // none before all have ended; unset: n.
  std::optional<int> best_of;
  // Set: a beam search of that width, which gives its n best texts, the best one first and none before the
  // search has ended. Nothing is sampled: temperature, top_p, top_k, min_p and seed have no effect.
  std::optional<int> beam_width;
  float length_penalty = 1.0F;  // a text's score: its log-probability / its tokens ^ length_penalty
  EarlyStopping early_stopping = EarlyStopping::kNo;
  float temperature = 1.0F;           // below 1e-5: greedy
  float top_p = 1.0F;                 // in (0, 1]
  int top_k = 0;                      // 0 or -1: all tokens
  float min_p = 0.0F;                 // in [0, 1], relative to the most likely token
  std::optional<std::uint64_t> seed;  // unset: drawn by the engine
  // In [-2, 2]: subtracted once from tokens of the output, and once for each time they are in it.
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;              // over 1: tokens of prompt and output are less likely
  std::map<std::int32_t, float> logit_bias;     // by token; values beyond -100 and 100 count as these
  std::vector<std::int32_t> allowed_token_ids;  // empty: all
  std::vector<std::string> bad_words;           // texts that are not generated
  // Of each output token, and of that many most likely ones in its place, -1: of all; and the same of the
  // prompt's tokens from the second on, of which then none comes from a cache.
  std::optional<int> logprobs;
  std::optional<int> prompt_logprobs;
  // With logprobs: at most 128 tokens that are told in each output token's place, not the most likely ones.
  std::vector<std::int32_t> logprob_token_ids;
  int max_tokens = 16;  // at least 1; 0 for prompt_logprobs alone
  int min_tokens = 0;   // before that many, no EOS and no stop token is sampled
  bool ignore_eos = false;
  std::vector<std::string> stop;  // at most 16 of 256 bytes
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;  // in the text: the stop string, or the text of the stop token
  bool detokenize = true;                   // else there is no text
  bool skip_special_tokens = true;          // in the text
  // Accepted for vLLM's sake: no tokenizer here puts spaces between tokens.
  bool spaces_between_special_tokens = true;
  std::shared_ptr<const StructuredOutputs> structured_outputs;  // null: any text
  std::optional<ThinkingBudget> thinking_budget;                // needs a tokenizer
  // Only that many last tokens of the prompt are used; -1: what fits beside max_tokens.
  std::optional<int> truncate_prompt_tokens;

  bool operator==(const SamplingParams&) const = default;
};

// Outputs that are made, of which n are given.
inline int num_sampled(const SamplingParams& params) { return params.best_of.value_or(params.n); }
// Sequences that a request takes.
inline int num_sequences(const SamplingParams& params) {
  return params.beam_width.value_or(num_sampled(params));
}

}  // namespace quire
