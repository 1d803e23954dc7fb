#include "server/api_request.h"

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/parse_number.h"
#include "server/api_error.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxRequestIdBytes = 64;
constexpr std::size_t kMaxSaltBytes = 256;

std::vector<std::string> to_stop(const OrderedJson& stop, const std::string& place) {
  return stop.is_string() ? std::vector{stop.get<std::string>()} : to_texts(stop, place);
}

void read_logit_bias(const JsonFields& fields, int vocab_size, SamplingParams& params) {
  const OrderedJson* biases = fields.find("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, bias] : to_object(*biases, "logit_bias").items()) {
    const auto id = parse_number<std::int32_t>(key);
    if (!id || *id < 0 || *id >= vocab_size)
      refuse("logit_bias", "has the key {}; it must be a token id from 0 to {}", in_quotes(key),
             vocab_size - 1);
    params.logit_bias[*id] = to_float(bias, format_text("logit_bias.{}", *id));
  }
}

void read_beams(const JsonFields& fields, SamplingParams& params) {
  fields.read("length_penalty", params.length_penalty);
  if (const OrderedJson* early = fields.find("early_stopping")) {
    const bool never = early->is_string() && early->get_ref<const std::string&>() == "never";
    if (!never && !early->is_boolean())
      refuse("early_stopping", "is {}; it must be true, false or \"never\"", shown(*early));
    params.early_stopping = never                ? EarlyStopping::kNever
                            : early->get<bool>() ? EarlyStopping::kYes
                                                 : EarlyStopping::kNo;
  }
  if (!fields.boolean("use_beam_search").value_or(false)) return;
  params.beam_width = params.n;
  // Nothing is sampled, so the model author's taste in sampling does not stand in the way.
  if (fields.find("repetition_penalty") == nullptr) params.repetition_penalty = 1;
}

void read_tokens(const JsonFields& fields, int vocab_size, SamplingParams& params) {
  read_logit_bias(fields, vocab_size, params);
  fields.read("stop_token_ids", params.stop_token_ids, to_token_ids, vocab_size);
  fields.read("allowed_token_ids", params.allowed_token_ids, to_token_ids, vocab_size);
  fields.read("logprob_token_ids", params.logprob_token_ids, to_token_ids, vocab_size);
  fields.read("bad_words", params.bad_words, to_texts);
}

void read_sampling(const JsonFields& fields, const ServedModel& model, SamplingParams& params) {
  fields.read("n", params.n, to_integer, 1, model.max_n);
  fields.read("best_of", params.best_of, to_integer, 1, model.max_n);
  fields.read("temperature", params.temperature);
  fields.read("top_p", params.top_p);
  fields.read("top_k", params.top_k, to_integer, -1, kLargestInt);
  fields.read("min_p", params.min_p);
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  fields.read("seed", params.seed, to_integer, kMin, kMax);
  if (params.seed == ~std::uint64_t{0}) params.seed.reset();  // -1: any
  fields.read("presence_penalty", params.presence_penalty);
  fields.read("frequency_penalty", params.frequency_penalty);
  fields.read("repetition_penalty", params.repetition_penalty);
  read_tokens(fields, model.sampling.vocab_size, params);
  fields.read("min_tokens", params.min_tokens, to_integer, 0, kLargestInt);
  fields.read("ignore_eos", params.ignore_eos);
  fields.read("stop", params.stop, to_stop);
  fields.read("include_stop_str_in_output", params.include_stop_str_in_output);
  fields.read("skip_special_tokens", params.skip_special_tokens);
  fields.read("spaces_between_special_tokens", params.spaces_between_special_tokens);
  fields.read("prompt_logprobs", params.prompt_logprobs, to_integer, -1, model.sampling.max_logprobs);
  read_beams(fields, params);
}

void read_stream(const JsonFields& fields, const ServedModel& model, ApiRequest& request) {
  fields.read("stream", request.stream);
  request.include_usage = request.continuous_usage = model.answers.include_usage;
  const auto options = fields.object("stream_options");
  if (!options) return;
  if (!request.stream) refuse("stream_options", "is only allowed with stream: true");
  request.include_usage = options->boolean("include_usage").value_or(false) || request.include_usage;
  const bool continuous = options->boolean("continuous_usage_stats").value_or(false);
  request.continuous_usage = request.continuous_usage || (continuous && request.include_usage);
}

}  // namespace

bool is_request_id(std::string_view text) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return !text.empty() && text.size() <= kMaxRequestIdBytes && std::ranges::all_of(text, allowed);
}

void read_identity(const JsonFields& fields, ApiRequest& request) {
  fields.read("priority", request.priority, to_integer, -kLargestInt - 1, kLargestInt);
  if (const std::string* id = fields.text("request_id")) {
    if (!is_request_id(*id)) {
      refuse("request_id", "is {}; it must have 1 to {} letters, digits, dots, dashes or underscores",
             in_quotes(*id), kMaxRequestIdBytes);
    }
    request.request_id = *id;
  }
  if (const std::string* salt = fields.text("cache_salt")) {
    if (salt->empty() || salt->size() > kMaxSaltBytes)
      refuse("cache_salt", "has {} bytes; it must have 1 to {}", salt->size(), kMaxSaltBytes);
    request.cache_salt = *salt;
  }
}

void refuse_unsupported(const JsonFields& fields, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (fields.asks(name)) refuse(fields.place_of(name), "is not supported");
}

void refuse_token_details(const JsonFields& fields) {
  refuse_unsupported(fields, {"return_token_offsets", "return_assistant_tokens_mask"});
}

void check_model_name(const std::string& name, const ServedModel& model) {
  const bool known = std::ranges::find(model.names, name) != model.names.end();
  if (name.empty() || known || model.names.empty()) return;
  throw ApiError(404, format_text("The model {} does not exist.", in_quotes(name)), "model",
                 "model_not_found");
}

const Tokenizer& tokenizer_of(const ServedModel& model) {
  if (model.sampling.tokenizer == nullptr) throw ApiError(400, "this model has no tokenizer");
  return *model.sampling.tokenizer;
}

std::string read_model_name(const JsonFields& fields, const ServedModel& model) {
  const std::string* given = fields.text("model");
  const std::string name = given == nullptr ? "" : *given;
  check_model_name(name, model);
  return name.empty() && !model.names.empty() ? model.names.front() : name;
}

void check_sampling(const SamplingParams& params, const ServedModel& model) {
  try {
    validate(params, model.sampling);
  } catch (const Error& e) {
    const std::string_view message = e.what();  // begins with the parameter's name
    std::string param(message.substr(0, message.find(' ')));
    if (param == "beam_width") param = "use_beam_search";
    throw ApiError(400, e.what(), std::move(param));
  }
  const int beams = params.beam_width.value_or(0);
  if (model.max_num_seqs > 0 && beams > model.max_num_seqs)
    refuse("use_beam_search", "asks for {} beams; this server computes {} sequences at once", beams,
           model.max_num_seqs);
}

void read_common(const JsonFields& fields, const ServedModel& model, ApiRequest& request) {
  request.model = read_model_name(fields, model);
  refuse_token_details(fields);
  refuse_unsupported(fields, {"logits_processors", "kv_transfer_params", "vllm_xargs", "ec_transfer_params",
                              "repetition_detection", "stream_interval", "watermarking",
                              "mm_processor_kwargs", "media_io_kwargs"});
  request.params = model.defaults;
  read_truncation(fields, request);
  read_sampling(fields, model, request.params);
  request.params.structured_outputs = read_structured_outputs(fields);
  read_stream(fields, model, request);
  if (request.stream && request.params.prompt_logprobs)
    refuse("prompt_logprobs", "is not available with stream: true");
  request.report_prompt_logprobs = request.params.prompt_logprobs.has_value();
  read_identity(fields, request);
  fields.read("add_special_tokens", request.add_special_tokens);
  fields.read("return_token_ids", request.return_token_ids);
  request.return_tokens_as_token_ids = model.answers.return_tokens_as_token_ids;
  fields.read("return_tokens_as_token_ids", request.return_tokens_as_token_ids);
  fields.read("timings", request.timings);
  request.metrics = model.answers.metrics;
}

void read_truncation(const JsonFields& fields, ApiRequest& request) {
  fields.read("truncate_prompt_tokens", request.params.truncate_prompt_tokens, to_integer, -1, kLargestInt);
  if (const auto side = fields.choice("truncation_side", {"left", "right"}))
    request.truncate_right = side == "right";
}

void cut_tokens(std::vector<TokenId>& tokens, std::int64_t kept, bool keeps_beginning) {
  if (std::ssize(tokens) <= kept) return;
  if (!keeps_beginning) tokens.erase(tokens.begin(), tokens.end() - kept);
  tokens.resize(kept);
}

void truncate_prompt(std::vector<TokenId>& prompt, const ApiRequest& request, const ServedModel& model) {
  if (!request.params.truncate_prompt_tokens) return;
  const std::int64_t wanted = *request.params.truncate_prompt_tokens;
  const std::int64_t room = model.max_model_len - std::int64_t{request.max_tokens.value_or(0)};
  if (wanted > std::max<std::int64_t>(room, 0))
    refuse("truncate_prompt_tokens", "is {}; beside the output, the context holds {}", wanted, room);
  // A token follows the prompt also where none is asked for.
  const std::int64_t rest = std::max<std::int64_t>(std::min<std::int64_t>(room, model.max_model_len - 1), 1);
  cut_tokens(prompt, wanted >= 0 ? wanted : rest, request.truncate_right);
}

void check_cache_holds(std::int64_t tokens, const ServedModel& model) {
  if (model.kv_cache_tokens == 0 || tokens <= model.kv_cache_tokens) return;
  throw ApiError(
      400,
      format_text("The prompt has {} tokens; the whole KV cache holds {}.", tokens, model.kv_cache_tokens),
      "", "context_length_exceeded", ContextOverrun{tokens, 0, model.kv_cache_tokens});
}

EngineRequest make_engine_request(const ApiRequest& request, std::vector<TokenId> prompt,
                                  const ServedModel& model, const SamplingParams* checked) {
  EngineRequest made = request;
  SamplingParams& params = made.params;
  params.max_tokens = request.max_tokens.value_or(1);
  truncate_prompt(prompt, request, model);
  params.truncate_prompt_tokens.reset();
  if (prompt.empty()) throw ApiError(400, "the prompt is empty; at least one token is needed");
  const std::int64_t room = model.max_model_len - std::ssize(prompt);
  const std::int64_t wanted = std::max(request.max_tokens.value_or(1), 1);
  if (wanted > room)
    throw ApiError(
        400,
        format_text(
            "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in "
            "the prompt, {} for the output). Please reduce the length of the prompt or the output.",
            model.max_model_len, std::ssize(prompt) + wanted, prompt.size(), wanted),
        request.max_tokens ? "max_tokens" : "", "context_length_exceeded",
        ContextOverrun{std::ssize(prompt), wanted, model.max_model_len});
  check_cache_holds(std::ssize(prompt), model);
  if (!request.max_tokens) {
    const std::int64_t rest = std::min<std::int64_t>(room, model.default_max_tokens.value_or(kLargestInt));
    params.max_tokens = static_cast<int>(std::max<std::int64_t>(rest, 1));
  }
  if (checked == nullptr || *checked != params) check_sampling(params, model);
  made.prompt = std::move(prompt);
  return made;
}

}  // namespace quire::server
