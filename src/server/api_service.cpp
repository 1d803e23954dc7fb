#include "server/api_service.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/log.h"
#include "server/completion.h"
#include "server/llama_completion.h"
#include "server/messages.h"
#include "server/text_requests.h"

namespace quire::server {
namespace {

ServedModel served_model(const Engine& engine, const ServiceOptions& options) {
  const RuntimeConfig& runtime = engine.config();
  ServedModel model;
  model.names = options.served_model_names;
  if (model.names.empty() && !engine.model_name().empty()) model.names.push_back(engine.model_name());
  if (model.names.empty()) {
    const std::filesystem::path directory = std::filesystem::weakly_canonical(engine.model_directory());
    model.names.push_back(directory.empty() ? "model" : directory.filename().string());
  }
  model.defaults = engine.default_sampling_params();
  const auto add = [&](const char* name, const auto& said) {
    if (said) model.author_defaults[name] = *said;
  };
  add("temperature", engine.generation_config().temperature);
  add("top_k", engine.generation_config().top_k);
  add("top_p", engine.generation_config().top_p);
  add("min_p", engine.generation_config().min_p);
  add("repetition_penalty", engine.generation_config().repetition_penalty);
  model.default_max_tokens = engine.generation_config().max_new_tokens;
  model.sampling = engine.sampling_context();
  model.max_model_len = runtime.max_model_len;
  model.hidden_size = runtime.spec.hidden_size;
  model.max_num_seqs = runtime.max_num_seqs;
  model.kv_cache_tokens = runtime.cached_tokens();
  model.max_n = options.max_n;
  model.max_prompts = options.max_prompts;
  model.answers = options.answers;
  return model;
}

// tokenizer_config.json, with the chat template, which may lie beside it; empty: there is none.
std::string read_tokenizer_info(const Engine& engine, const std::optional<CheckpointChatTemplate>& chat) {
  const std::filesystem::path path = engine.model_directory() / "tokenizer_config.json";
  std::error_code ec;
  if (!engine.model_name().empty() || !std::filesystem::exists(path, ec)) return {};
  Json info = read_json_file(path);  // it was read once before
  if (chat && !info.contains("chat_template")) info["chat_template"] = chat->standard.source();
  return info.dump();
}

std::int64_t unix_time() { return static_cast<std::int64_t>(std::time(nullptr)); }

// The id in /v1/models/{id}, which may have slashes; empty: there is none.
std::string model_id(std::string_view path) {
  constexpr std::string_view kPrefix = "/v1/models/";
  std::string id(path.substr(std::min(kPrefix.size(), path.size())));
  for (std::size_t at = 0; (at = id.find('%', at)) < id.size(); ++at) {
    unsigned char byte = 0;
    const char* const digits = id.data() + at + 1;
    if (at + 2 < id.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2)
      id.replace(at, 3, 1, static_cast<char>(byte));
  }
  return id;
}

// What an option of the service names.
template <typename Dialect>
const Dialect* chosen(const std::string& option, const Dialect* guessed,
                      const Dialect& (*named)(std::string_view)) {
  if (option == "auto") return guessed;
  return option == "none" ? nullptr : &named(option);
}

dialects::OutputFormat chosen(const ServiceOptions& options, const dialects::OutputFormat& guessed) {
  return {.reasoning = chosen(options.reasoning_parser, guessed.reasoning, dialects::reasoning_dialect),
          .tool_calls = chosen(options.tool_call_parser, guessed.tool_calls, dialects::tool_dialect)};
}

bool has_special_tokens(const std::vector<std::string>& tags, const Tokenizer& tokenizer) {
  return std::ranges::any_of(tags, [&](const std::string& tag) {
    const std::vector<TokenId> tokens = tokenizer.encode(tag, false);
    return std::ranges::any_of(tokens, [&](TokenId id) { return tokenizer.is_special(id); });
  });
}

}  // namespace

void check_options(const ServiceOptions& options) {
  chosen(options, dialects::OutputFormat());
  check_hf_overrides(options.hf_overrides);
  for (const std::string& name : options.served_model_names)
    if (name.empty()) fail("served-model-name is empty");
  check_template_variables(options.answers.chat_template_kwargs, "default-chat-template-kwargs");
}

ApiService::ApiService(std::unique_ptr<Engine> engine, const EngineConfig& engine_config,
                       ServiceOptions options)
    : options_(std::move(options)),
      engine_(std::move(engine)),
      model_(served_model(*engine_, options_)),
      metrics_(std::make_unique<Metrics>(model_.names.front(), engine_config, engine_->config())),
      responses_(options_.response_store_size),
      fingerprint_(format_text("quire-" QUIRE_VERSION "-{}", to_string(engine_->config().dtype))),
      start_time_(unix_time()) {
  try {
    chat_template_ = engine_->load_chat_template();
    tokenizer_info_ = read_tokenizer_info(*engine_, chat_template_);
    if (!chat_template_) template_error_ = "this model has no chat template";
    if (!engine_->has_tokenizer()) template_error_ = "this model has no tokenizer, which a chat needs";
  } catch (const Error& e) {
    log_warning("{}; chats are refused", e.what());
    template_error_ = "this model's chat template is broken";
  }
  if (!template_error_.empty()) chat_template_.reset();
  if (options_.content_format == "openai") model_.content_format = ContentFormat::kParts;
  if (chat_template_ && options_.content_format == "auto")
    model_.content_format = content_format(*chat_template_);
  classifier_ = find_classifier(*engine_, options_.hf_overrides, chat_template_ ? &*chat_template_ : nullptr);
  dialects::OutputFormatGuess guess;
  if (chat_template_) {
    guess = dialects::guess_output_format(
        (chat_template_->tool_use ? *chat_template_->tool_use : chat_template_->standard).source());
    log_info("{}", guess.reason);
  }
  output_format_ = chosen(options_, guess.format);
  model_.reasons = output_format_.reasoning != nullptr;
  if (chat_template_)
    has_special_tags_ = has_special_tokens(dialects::tags_of(output_format_), *model_.sampling.tokenizer);
  engine_->observe_steps([metrics = metrics_.get()](const StepRecord& step) { metrics->add_step(step); });
  engine_->observe_compilations([metrics = metrics_.get()](double time) { metrics->add_compilation(time); });
}

bool ApiService::healthy() const {
  const std::shared_lock lock(engine_mutex_);
  return engine_ && engine_->healthy();
}

void ApiService::close() {
  std::unique_ptr<Engine> engine;
  {
    const std::unique_lock lock(engine_mutex_);
    engine.swap(engine_);
  }
}

std::vector<RequestId> ApiService::submit(std::span<EngineRequest> requests) {
  for (EngineRequest& request : requests) request.timeout = options_.request_timeout;
  try {
    return engine_->submit(requests);
  } catch (const QueueFullError& e) {
    metrics_->add_rejection(e.limit());
    throw;
  }
}

void ApiService::abort(RequestId id) {
  const std::shared_lock lock(engine_mutex_);
  if (engine_) engine_->abort(id);
}

const CheckpointChatTemplate& ApiService::chat_template() const {
  if (!chat_template_) throw ApiError(400, template_error_, "messages");
  return *chat_template_;
}

// As long as the client waits for it.
std::vector<TextPiece> ApiService::render(const Exchange& exchange, const ChatRequest& request) const {
  return render_chat(request, chat_template(), {local_time(), [&] { return exchange.is_gone(); }});
}

std::vector<TokenId> ApiService::chat_tokens(const Exchange& exchange, const ChatRequest& request) const {
  return tokenizer_of(model_).encode(render(exchange, request), request.add_special_tokens);
}

ResponseHead ApiService::response_head(const char* prefix, const Exchange& exchange,
                                       const ApiRequest& request) const {
  return {.id = prefix + (request.request_id.empty() ? exchange.id() : request.request_id),
          .created = unix_time(),
          .model = request.model,
          .system_fingerprint = fingerprint_};
}

void ApiService::complete(const std::shared_ptr<Exchange>& exchange) {
  CompletionRequest request = parse_completion_request(exchange->take_body(), model_);
  std::vector<EngineRequest> prompts = make_engine_requests(request, model_);
  ResponseHead head = response_head("cmpl-", *exchange, request);
  generate(exchange, make_completion_response(std::move(head), std::move(request), model_),
           std::move(prompts));
}

void ApiService::chat(const std::shared_ptr<Exchange>& exchange) {
  chat_template();  // or an error, before the request is read
  ChatRequest request = parse_chat_request(exchange->take_body(), model_);
  generate_chat(exchange, std::move(request), [&](ChatRequest asked, const MakeParser& make_parser) {
    ResponseHead head = response_head("chatcmpl-", *exchange, asked);
    return make_chat_response(std::move(head), std::move(asked), model_, make_parser);
  });
}

void ApiService::generate_chat(const std::shared_ptr<Exchange>& exchange, ChatRequest request,
                               const MakeChatResponse& make_response) {
  const std::vector<TextPiece> pieces = render(*exchange, request);
  for (OrderedJson& tool : request.late_tools) request.context["tools"].push_back(std::move(tool));
  dialects::OutputFormat format = output_format_;
  if (!request.parse_tools) format.tool_calls = nullptr;
  if (has_special_tags_ && (format.tool_calls || format.reasoning))
    request.params.skip_special_tokens = false;
  const std::string prompt = join_pieces(pieces);
  hold_output(format, prompt, request);
  std::vector<TokenId> tokens = tokenizer_of(model_).encode(pieces, request.add_special_tokens);
  std::vector<EngineRequest> prompts;
  prompts.push_back(make_engine_request(request, std::move(tokens), model_));
  dialects::ToolParserOptions options{
      .parallel_tool_calls = !request.one_tool_call, .new_id = {}, .tools = {}};
  if (format.tool_calls) options.tools = std::make_shared<OrderedJson>(std::move(request.context["tools"]));
  request.context.clear();  // its answer may take long
  const auto make_parser = [&] { return dialects::make_output_parser(format, prompt, options); };
  generate(exchange, make_response(std::move(request), make_parser), std::move(prompts));
}

void ApiService::create_message(const std::shared_ptr<Exchange>& exchange) {
  chat_template();
  ChatRequest request = parse_messages_request(exchange->take_body(), model_);
  generate_chat(exchange, std::move(request), [&](const ChatRequest& asked, const MakeParser& make_parser) {
    return make_messages_response(response_head("msg_", *exchange, asked), asked, exchange->id(),
                                  make_parser);
  });
}

void ApiService::count_tokens(const std::shared_ptr<Exchange>& exchange) {
  chat_template();
  const ChatRequest request = parse_messages_request(exchange->take_body(), model_, true);
  exchange->send_json(200, {{"input_tokens", chat_tokens(*exchange, request).size()}});
}

void ApiService::tokenize(const std::shared_ptr<Exchange>& exchange) {
  exchange->send_json(200, tokenize_body(exchange->take_body(), model_, [&](const ChatRequest& chat) {
                        return chat_tokens(*exchange, chat);
                      }));
}

void ApiService::detokenize(const std::shared_ptr<Exchange>& exchange) {
  exchange->send_json(200, detokenize_body(exchange->take_body(), model_));
}

void ApiService::show_models(const std::shared_ptr<Exchange>& exchange) {
  exchange->send_json(200, models_body(model_id(exchange->request().path()), model_, start_time_));
}

void ApiService::show_openapi(const std::shared_ptr<Exchange>& exchange) {
  exchange->send_json(200, openapi_document(model_, options_.root_path));
}

void ApiService::show_metrics(const std::shared_ptr<Exchange>& exchange) {
  exchange->send(200, {{"Content-Type", std::string(PrometheusText::kContentType)}},
                 metrics_->render(engine_->stats()));
}

void ApiService::show_load(const std::shared_ptr<Exchange>& exchange) {
  exchange->send_json(200, {{"server_load", num_live_.load()}});
}

void ApiService::show_tokenizer_info(const std::shared_ptr<Exchange>& exchange) {
  if (tokenizer_info_.empty()) throw ApiError(404, "this model has no tokenizer_config.json");
  exchange->send(200, {{"Content-Type", "application/json"}}, tokenizer_info_);
}

void ApiService::llama_complete(const std::shared_ptr<Exchange>& exchange) {
  LlamaRequest request = parse_llama_request(exchange->take_body(), model_);
  static std::atomic<std::uint64_t> num_alone = 0;  // clients may give several requests one id
  if (!request.cache_prompt) request.cache_salt = format_text("alone-{}-{}", exchange->id(), ++num_alone);
  std::vector<EngineRequest> prompts;
  for (std::vector<TokenId>& tokens : request.prompts)
    prompts.push_back(make_engine_request(request, std::move(tokens), model_,
                                          prompts.empty() ? nullptr : &prompts.back().params));
  ResponseHead head = response_head("cmpl-", *exchange, request);
  generate(exchange, make_llama_response(std::move(head), std::move(request), model_), std::move(prompts));
}

void ApiService::apply_template(const std::shared_ptr<Exchange>& exchange) {
  chat_template();  // as in chat()
  const ChatRequest request = parse_chat_request(exchange->take_body(), model_);
  exchange->send_json(200, {{"prompt", join_pieces(render(*exchange, request))}});
}

void ApiService::show_props(const std::shared_ptr<Exchange>& exchange) {
  const OrderedJson nothing_asked = {{"prompt", OrderedJson::array({0})}};
  const OrderedJson defaults = {{"n_ctx", model_.max_model_len},
                                {"params", parse_llama_request(nothing_asked, model_).settings}};
  exchange->send_json(200, {{"default_generation_settings", defaults},
                            {"total_slots", model_.max_num_seqs},
                            {"model_path", model_.names.front()},
                            {"chat_template", chat_template_ ? chat_template_->standard.source() : ""},
                            {"modalities", {{"vision", false}, {"audio", false}}},
                            {"build_info", fingerprint_},
                            {"is_sleeping", false}});
}

}  // namespace quire::server
