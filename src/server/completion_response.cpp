#include "server/completion_response.h"

namespace quire::server {
namespace {

constexpr const char* kObject = "text_completion";

std::size_t choice_index(const CompletionRequest& request, std::size_t prompt, int output) {
  return prompt * static_cast<std::size_t>(request.params.n) + static_cast<std::size_t>(output);
}

// The prompt as echo shows it.
std::string prompt_text(const CompletionRequest& request, std::size_t prompt, const RequestOutput& output,
                        const ServedModel& model) {
  const auto* text = std::get_if<std::string>(&request.prompts[prompt]);
  if (text != nullptr && !request.params.truncate_prompt_tokens) return *text;
  if (model.sampling.tokenizer == nullptr) return {};
  return model.sampling.tokenizer->decode(output.prompt_token_ids, request.params.skip_special_tokens);
}

// Those of the prompt's tokens, which echo reports.
void add_prompt(CompletionLogprobs& logprobs, const RequestOutput& output) {
  logprobs.add_first_of_prompt(output.prompt_token_ids.front());
  logprobs.add(output.prompt_logprobs);
}

OrderedJson begin_choice(std::size_t index, std::string text) {
  OrderedJson choice;
  choice["index"] = index;
  choice["text"] = std::move(text);
  choice["logprobs"] = nullptr;
  return choice;
}

OrderedJson make_choice(const CompletionRequest& request, std::size_t prompt, const RequestOutput& output,
                        const CompletionOutput& completion, const ServedModel& model) {
  std::string text = request.echo ? prompt_text(request, prompt, output, model) : "";
  OrderedJson choice =
      begin_choice(choice_index(request, prompt, completion.index), std::move(text) + completion.text);
  const TokenNames names = token_names(request, model);
  if (request.params.logprobs) {
    CompletionLogprobs logprobs(names, request.params.skip_special_tokens);
    if (request.echo) add_prompt(logprobs, output);
    logprobs.add(completion.logprobs);
    choice["logprobs"] = logprobs.take();
  }
  add_ending(choice, completion);
  if (request.report_prompt_logprobs)
    choice["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs, names);
  if (request.return_token_ids) {
    choice["prompt_token_ids"] = output.prompt_token_ids;
    add_token_ids(choice, completion.token_ids);
  }
  return choice;
}

}  // namespace

OrderedJson completion_body(const ResponseHead& head, const CompletionRequest& request,
                            std::span<const RequestOutput> outputs, const ServedModel& model,
                            const std::optional<Timings>& timings) {
  OrderedJson body = begin_response(head, kObject);
  OrderedJson choices = OrderedJson::array();
  Usage usage;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const CompletionOutput& completion : outputs[i].outputs)
      choices.push_back(make_choice(request, i, outputs[i], completion, model));
    usage.add(outputs[i]);
  }
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage);
  add_fingerprint(body, head);
  if (timings) body["timings"] = timings_json(*timings, usage);
  return body;
}

CompletionStream::CompletionStream(ResponseHead head, const CompletionRequest& request,
                                   const ServedModel& model)
    : head_(std::move(head)), request_(request), model_(model), prompts_(request.prompts.size()) {
  for (PromptState& prompt : prompts_) {
    prompt.choices.resize(static_cast<std::size_t>(request.params.n));
    if (!request.params.logprobs) continue;
    for (Choice& choice : prompt.choices)
      choice.logprobs.emplace(token_names(request, model), request.params.skip_special_tokens);
  }
}

std::optional<OrderedJson> CompletionStream::chunk(std::size_t prompt, const RequestUpdate& update) {
  const CompletionOutput& output = update.output;
  PromptState& state = prompts_[prompt];
  state.usage = {};
  state.usage.add(update.request);
  Choice& sent = state.choices[static_cast<std::size_t>(output.index)];
  const auto new_ids = std::span(output.token_ids).subspan(sent.tokens);
  if (new_ids.empty() && update.new_text.empty() && !output.finished()) return std::nullopt;

  const bool echoes = request_.echo && !sent.begun;
  std::string text = echoes ? prompt_text(request_, prompt, update.request, model_) : "";
  OrderedJson choice =
      begin_choice(choice_index(request_, prompt, output.index), std::move(text) += update.new_text);
  if (sent.logprobs) {
    if (echoes) add_prompt(*sent.logprobs, update.request);
    sent.logprobs->add(std::span(output.logprobs).subspan(sent.tokens));
    choice["logprobs"] = sent.logprobs->take();
  }
  add_ending(choice, output);
  if (request_.return_token_ids) {
    if (!sent.begun) choice["prompt_token_ids"] = update.request.prompt_token_ids;
    add_token_ids(choice, new_ids);
  }
  sent.begun = true;
  sent.tokens = output.token_ids.size();

  OrderedJson chunk = begin_response(head_, kObject);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (output.finished()) add_fingerprint(chunk, head_);
  if (request_.continuous_usage) chunk["usage"] = usage_json(usage_of(update));
  return chunk;
}

std::optional<OrderedJson> CompletionStream::last(const std::optional<Timings>& timings) const {
  Usage usage;
  for (const PromptState& prompt : prompts_) usage += prompt.usage;
  return last_chunk(begin_response(head_, kObject), request_, usage, timings);
}

}  // namespace quire::server
