#include "server/completion.h"

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

constexpr const char* kCompletionObject = "text_completion";

class CompletionResponse final : public Response {
 public:
  CompletionResponse(ResponseHead head, CompletionRequest request, const ServedModel& model)
      : Response(std::move(head), request),
        request_(std::move(request)),
        names_(token_names(request_, model)),
        choices_(request_.prompts.size() * request_.params.n) {
    if (!request_.params.logprobs) return;
    for (Choice& choice : choices_) choice.logprobs.emplace(names_, request_.params.skip_special_tokens);
  }

  OrderedJson body(Outputs outputs) override {
    OrderedJson body = begin_response(head_, kCompletionObject);
    OrderedJson& choices = body["choices"] = OrderedJson::array();
    const Usage usage = usage_of(outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i)
      for (const CompletionOutput& completion : outputs[i].outputs)
        choices.push_back(choice(i, outputs[i], completion, completion.text));
    body["usage"] = usage_json(usage);
    body["system_fingerprint"] = head_.system_fingerprint;
    add_nulls(body, {"service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"});
    add_timings(body, request_, outputs, usage);
    return body;
  }

  std::string events(std::size_t prompt, const RequestUpdate& update) override {
    if (!streams()) return {};
    const CompletionOutput& output = update.output;
    if (update.finished) usage_.add(update.request);
    const std::size_t sent = choices_[index_of(prompt, output)].tokens;
    if (sent == output.token_ids.size() && update.new_text.empty() && !output.finished()) return {};
    OrderedJson chunk = begin_response(head_, kCompletionObject);
    chunk["choices"] = OrderedJson::array({choice(prompt, update.request, output, update.new_text)});
    if (output.finished()) chunk["system_fingerprint"] = head_.system_fingerprint;
    if (request_.continuous_usage) chunk["usage"] = usage_json(usage_of(update));
    return to_event(chunk);
  }

  std::string last_events(Outputs outputs) override {
    return last_chunk(begin_response(head_, kCompletionObject), request_, usage_, outputs);
  }

 private:
  struct Choice {
    std::size_t tokens = 0;  // that were sent
    bool begun = false;
    std::optional<CompletionLogprobs> logprobs;
  };

  std::size_t index_of(std::size_t prompt, const CompletionOutput& output) const {
    return prompt * request_.params.n + output.index;
  }

  // As echo shows it.
  std::string prompt_text(std::size_t prompt, const RequestOutput& output) const {
    const auto* text = std::get_if<std::string>(&request_.prompts[prompt]);
    if (text != nullptr && !request_.params.truncate_prompt_tokens) return *text;
    if (names_.tokenizer == nullptr) return {};
    return names_.tokenizer->decode(output.prompt_token_ids, request_.params.skip_special_tokens);
  }

  // The choice of an output of the prompt of that index: all that was not given before, and this text.
  OrderedJson choice(std::size_t prompt, const RequestOutput& request, const CompletionOutput& output,
                     std::string_view new_text) {
    const std::size_t index = index_of(prompt, output);
    Choice& sent = choices_[index];
    const bool echoes = request_.echo && !sent.begun;
    std::string text = echoes ? prompt_text(prompt, request) : "";
    OrderedJson choice = {{"index", index}, {"text", std::move(text += new_text)}, {"logprobs", nullptr}};
    if (sent.logprobs) {
      if (echoes) {
        sent.logprobs->add_first_of_prompt(request.prompt_token_ids.front());
        sent.logprobs->add(request.prompt_logprobs);
      }
      sent.logprobs->add(std::span(output.logprobs).subspan(sent.tokens));
      choice["logprobs"] = sent.logprobs->take();
    }
    add_ending(choice, output);
    add_nulls(choice, {"prompt_token_ids", "token_ids"});
    if (!streams()) add_nulls(choice, {"prompt_logprobs", "routed_experts"});
    if (request_.report_prompt_logprobs)  // never of a stream
      choice["prompt_logprobs"] = prompt_logprobs_json(request.prompt_logprobs, names_);
    if (request_.return_token_ids) {
      if (!sent.begun) choice["prompt_token_ids"] = request.prompt_token_ids;
      choice["token_ids"] = std::span(output.token_ids).subspan(sent.tokens);
    }
    sent.begun = true;
    sent.tokens = output.token_ids.size();
    return choice;
  }

  const CompletionRequest request_;
  const TokenNames names_;
  std::vector<Choice> choices_;  // of all prompts
  Usage usage_;                  // of a stream's prompts that have ended
};

}  // namespace

std::vector<Prompt> to_prompts(const OrderedJson& value, const std::string& name, const ServedModel& model) {
  if (value.is_string()) return {value.get<std::string>()};
  if (to_list(value, name).empty()) refuse(name, "is empty; at least one token is needed");
  const int vocab_size = model.sampling.vocab_size;
  if (value.front().is_number()) return {to_token_ids(value, name, vocab_size)};
  if (value.size() > model.max_prompts)
    refuse(name, "has {} entries; at most {} are allowed", value.size(), model.max_prompts);
  return to_each(value, name, [&](const OrderedJson& prompt, const std::string& place) -> Prompt {
    if (value.front().is_string()) return to_text(prompt, place);
    if (!prompt.is_array())
      throw ApiError(
          400,
          format_text("{} is {}; {} must be a string, a list of strings, token ids, or lists of token ids",
                      place, shown(prompt), name),
          name);
    return to_token_ids(prompt, place, vocab_size);
  });
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
  request.max_tokens = kDefaultMaxTokens;
  fields.read("max_tokens", request.max_tokens, to_integer, no_output ? 0 : 1, kLargestInt);
  request.params.max_tokens = *request.max_tokens;
  read_logprobs(fields, model, request);
  check_sampling(request.params, model);
  request.prompts = fields.required("prompt", to_prompts, model);
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

std::unique_ptr<Response> make_completion_response(ResponseHead head, CompletionRequest request,
                                                   const ServedModel& model) {
  return std::make_unique<CompletionResponse>(std::move(head), std::move(request), model);
}

}  // namespace quire::server
