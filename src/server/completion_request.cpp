#include "server/completion_request.h"

#include <limits>

#include "server/api_error.h"

namespace quire::server {
namespace {

constexpr int kDefaultMaxTokens = 16;

// Of what names tokens, each prompt gets a copy.
void check_named_tokens(const SamplingParams& params, std::size_t num_prompts) {
  constexpr std::size_t kMaxOfAllPrompts = std::size_t{1} << 22;
  std::size_t count = params.allowed_token_ids.size() + params.logit_bias.size();
  for (const std::string& word : params.bad_words) count += word.size();
  if (count * num_prompts > kMaxOfAllPrompts) {
    refuse("prompt",
           "has {} entries, and allowed_token_ids, logit_bias and bad_words {}; at most {} prompts may have "
           "so many",
           num_prompts, count, kMaxOfAllPrompts / count);
  }
}

void read_logprobs(const JsonFields& fields, const ServedModel& model, CompletionRequest& request) {
  SamplingParams& params = request.params;
  fields.read("logprobs", params.logprobs, to_integer, -1, model.sampling.max_logprobs);
  if (!request.echo || params.prompt_logprobs) return;
  params.prompt_logprobs = params.logprobs;
  // Without an output token the prompt's log-probabilities are what is computed.
  if (request.max_tokens == 0 && !params.prompt_logprobs) params.prompt_logprobs = 0;
}

}  // namespace

std::vector<Prompt> to_prompts(const OrderedJson& value, const std::string& name, const ServedModel& model) {
  if (value.is_string()) return {value.get<std::string>()};
  if (to_list(value, name).empty()) refuse(name, "is empty; at least one token is needed");
  const int vocab_size = model.sampling.vocab_size;
  if (value.front().is_number()) return {to_token_ids(value, name, vocab_size)};
  if (value.size() > model.max_prompts)
    refuse(name, "has {} entries; at most {} are allowed", value.size(), model.max_prompts);
  std::vector<Prompt> prompts;
  if (value.front().is_string()) {
    for (std::string& text : to_texts(value, name)) prompts.emplace_back(std::move(text));
    return prompts;
  }
  for (const OrderedJson& ids : value) {
    const std::string place = format_text("{}[{}]", name, prompts.size());
    if (!ids.is_array())
      throw ApiError(
          400,
          format_text("{} is {}; {} must be a string, a list of strings, token ids, or lists of token ids",
                      place, shown(ids), name),
          name);
    prompts.emplace_back(to_token_ids(ids, place, vocab_size));
  }
  return prompts;
}

std::vector<std::vector<TokenId>> tokenize_prompts(std::span<Prompt> prompts, bool add_special_tokens,
                                                   const ServedModel& model) {
  std::vector<std::vector<TokenId>> tokens;
  for (Prompt& prompt : prompts) {
    if (auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
      tokens.push_back(std::move(*ids));
    } else {
      if (model.sampling.tokenizer == nullptr)
        throw ApiError(400, "this model has no tokenizer; prompts must be token ids");
      tokens.push_back(model.sampling.tokenizer->encode(std::get<std::string>(prompt), add_special_tokens));
    }
  }
  return tokens;
}

CompletionRequest parse_completion_request(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  CompletionRequest request;
  read_common(fields, model, request);
  refuse_unsupported(fields, {"suffix", "prompt_embeds", "thinking_token_budget"});
  fields.read("echo", request.echo);
  const bool no_output = request.echo || request.params.prompt_logprobs;
  request.max_tokens =
      static_cast<int>(fields.integer("max_tokens", no_output ? 0 : 1, std::numeric_limits<int>::max())
                           .value_or(kDefaultMaxTokens));
  request.params.max_tokens = *request.max_tokens;
  read_logprobs(fields, model, request);
  check_sampling(request.params, model);
  request.prompts = to_prompts(fields.required("prompt"), "prompt", model);
  return request;
}

std::vector<EngineRequest> make_engine_requests(CompletionRequest& request, const ServedModel& model) {
  check_named_tokens(request.params, request.prompts.size());
  std::vector<EngineRequest> made;
  for (std::vector<TokenId>& tokens : tokenize_prompts(request.prompts, request.add_special_tokens, model))
    made.push_back(
        make_engine_request(request, std::move(tokens), model, made.empty() ? nullptr : &made.back().params));
  if (!request.echo) request.prompts.assign(request.prompts.size(), {});
  return made;
}

}  // namespace quire::server
