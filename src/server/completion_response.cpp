#include "server/completion_response.h"

namespace quire::server {
namespace {

constexpr const char* kCompletionObject = "text_completion";

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

}  // namespace

CompletionResponse::CompletionResponse(ResponseHead head, CompletionRequest request, const ServedModel& model)
    : ChunkResponse(std::move(head), {request.stream, request.timings || request.metrics}),
      request_(std::move(request)),
      model_(model),
      choices_(request_.prompts.size() * request_.params.n),
      usages_(request_.prompts.size()) {
  if (!request_.params.logprobs) return;
  for (Choice& choice : choices_)
    choice.logprobs.emplace(token_names(request_, model), request_.params.skip_special_tokens);
}

OrderedJson CompletionResponse::body(std::span<const RequestOutput> outputs,
                                     const std::optional<Timings>& timings) {
  OrderedJson body = begin_response(head_, kCompletionObject);
  OrderedJson choices = OrderedJson::array();
  const Usage usage = usage_of(outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i)
    for (const CompletionOutput& completion : outputs[i].outputs)
      choices.push_back(choice(i, outputs[i], completion, completion.text));
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage);
  add_fingerprint(body, head_);
  add_nulls(body, {"service_tier", "kv_transfer_params", "ec_transfer_params", "metrics"});
  add_timings(body, request_, timings, usage);
  return body;
}

OrderedJson CompletionResponse::choice(std::size_t prompt, const RequestOutput& request,
                                       const CompletionOutput& output, std::string_view new_text) {
  const std::size_t index = index_of(prompt, output);
  Choice& sent = choices_[index];
  const bool echoes = request_.echo && !sent.begun;
  std::string text = echoes ? prompt_text(request_, prompt, request, model_) : "";
  OrderedJson choice;
  choice["index"] = index;
  choice["text"] = std::move(text += new_text);
  choice["logprobs"] = nullptr;
  if (sent.logprobs) {
    if (echoes) add_prompt(*sent.logprobs, request);
    sent.logprobs->add(std::span(output.logprobs).subspan(sent.tokens));
    choice["logprobs"] = sent.logprobs->take();
  }
  add_ending(choice, output);
  add_nulls(choice, {"prompt_token_ids", "token_ids"});
  if (!form().stream) add_nulls(choice, {"prompt_logprobs", "routed_experts"});
  if (request_.report_prompt_logprobs)  // never of a stream
    choice["prompt_logprobs"] = prompt_logprobs_json(request.prompt_logprobs, token_names(request_, model_));
  if (request_.return_token_ids) {
    if (!sent.begun) choice["prompt_token_ids"] = request.prompt_token_ids;
    choice["token_ids"] = std::span(output.token_ids).subspan(sent.tokens);
  }
  sent.begun = true;
  sent.tokens = output.token_ids.size();
  return choice;
}

std::vector<OrderedJson> CompletionResponse::chunks(std::size_t prompt, const RequestUpdate& update) {
  const CompletionOutput& output = update.output;
  usages_[prompt] = usage_of(std::span(&update.request, 1));
  const std::size_t sent = choices_[index_of(prompt, output)].tokens;
  if (sent == output.token_ids.size() && update.new_text.empty() && !output.finished()) return {};
  std::vector<OrderedJson> chunks = {begin_response(head_, kCompletionObject)};
  OrderedJson& choices = chunks[0]["choices"] = OrderedJson::array();
  choices.push_back(choice(prompt, update.request, output, update.new_text));
  if (output.finished()) add_fingerprint(chunks[0], head_);
  if (request_.continuous_usage) chunks[0]["usage"] = usage_json(usage_of(update));
  return chunks;
}

std::optional<OrderedJson> CompletionResponse::last(const std::optional<Timings>& timings) const {
  Usage usage;
  for (const Usage& of_prompt : usages_) usage += of_prompt;
  return last_chunk(begin_response(head_, kCompletionObject), request_, usage, timings);
}

}  // namespace quire::server
