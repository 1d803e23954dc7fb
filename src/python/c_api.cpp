#include "python/c_api.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/classifier.h"
#include "engine/engine.h"
#include "python/channel.h"
#include "python/json_input.h"
#include "python/model_source.h"
#include "tokenizer/chat_template.h"

namespace quire::python {
namespace {

// Conversations as a model's chat template spells them. Usable from several threads at once.
class Chat {
 public:
  // hf_overrides: find_classifier's.
  Chat(const Engine& engine, const std::string& hf_overrides);

  const Classifier* classifier() const { return classifier_ ? &*classifier_ : nullptr; }
  // request: "context", what the template reads; "chat_template", null or a file or text to be taken instead
  // of the model's; "of_pair", whether the classifier's prompt is; "cut_after", null or the last message's
  // text, behind which the result ends. Error where there is no template, and the template's own.
  std::vector<TextPiece> render(OrderedJson request) const;

 private:
  std::optional<CheckpointChatTemplate> template_;
  std::optional<Classifier> classifier_;
  std::string why_none_;
};

// The pieces up to the end of the last place where `text` stands.
void cut_after(std::vector<TextPiece>& pieces, const std::string& text) {
  const std::string all = join_pieces(pieces);
  const std::size_t begin = all.rfind(text);
  if (text.empty() || begin == std::string::npos)
    fail("continue_final_message: the last message has no text that stands in what the chat template makes");
  cut_pieces(pieces, begin + text.size());
}

Chat::Chat(const Engine& engine, const std::string& hf_overrides) {
  try {
    template_ = engine.load_chat_template();
    if (!template_)
      why_none_ = format_text("{}: no chat template in chat_template.jinja or tokenizer_config.json",
                              engine.model_directory().string());
  } catch (const Error& e) {
    why_none_ = e.what();
  }
  classifier_ = find_classifier(engine, hf_overrides, template_ ? &*template_ : nullptr);
}

std::vector<TextPiece> Chat::render(OrderedJson request) const {
  const OrderedJson& given = request.at("chat_template");
  std::optional<CheckpointChatTemplate> instead;
  if (request.at("of_pair").get<bool>()) {
    if (!classifier_ || !classifier_->pair_prompt) fail("the model has no prompt for pairs of texts");
    instead = classifier_->pair_prompt;
  } else if (!given.is_null()) {
    instead = {read_chat_template(given.get<std::string>()), std::nullopt,
               template_ ? template_->special_tokens : OrderedJson::object()};
  }
  if (!instead && !template_) throw Error(why_none_);
  std::vector<TextPiece> pieces =
      (instead ? instead : template_)->render(std::move(request.at("context")), {local_time()});
  if (const OrderedJson& last = request.at("cut_after"); !last.is_null())
    cut_after(pieces, last.get<std::string>());
  return pieces;
}

}  // namespace
}  // namespace quire::python

struct QuireEngine {
  std::shared_ptr<quire::Engine> engine;
  std::optional<quire::python::Chat> chat;
};

struct QuireChannel {
  quire::python::Channel channel;
  // The last request's, which the next one mostly has, too.
  std::mutex mutex;
  std::string source;         // guarded by mutex
  quire::EngineRequest form;  // guarded by mutex: what was made of it
  bool streams = false;       // guarded by mutex
};

namespace {

using quire::OrderedJson;

void put(std::string_view text, QuireText* out) {
  out->data = static_cast<char*>(std::malloc(text.size() + 1));
  out->size = out->data == nullptr ? 0 : text.size();
  if (out->data == nullptr) return;
  std::memcpy(out->data, text.data(), text.size());
  out->data[text.size()] = '\0';
}

void put(const std::vector<std::int32_t>& ids, QuireText* out) {
  put({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)}, out);
}

void put(const OrderedJson& json, QuireText* out) {
  put(std::string_view(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)), out);
}

// Calls, and makes of what is thrown a status and a line.
template <typename Call>
int guarded(QuireText* out, const Call& call) {
  *out = {nullptr, 0};
  try {
    call();
    return kQuireOk;
  } catch (const quire::QueueFullError& e) {
    put(std::string_view(e.what()), out);
    return kQuireQueueFull;
  } catch (const quire::Error& e) {
    put(std::string_view(e.what()), out);
    return kQuireInvalid;
  } catch (const quire::Stopped& e) {
    put(std::string_view(e.what()), out);
    return kQuireStopped;
  } catch (const std::exception& e) {
    put(std::string_view(quire::what_of(e)), out);
    return kQuireFailed;
  }
}

OrderedJson parse(const char* text, std::size_t size) {
  return quire::parse_ordered_json({text, size}, "the arguments");
}

OrderedJson classifier_json(const quire::Classifier* classifier) {
  if (classifier == nullptr) return {};
  return {{"labels", classifier->labels},
          {"tokens", classifier->tokens},
          {"judges_pairs", classifier->pair_prompt.has_value()}};
}

OrderedJson info(const QuireEngine& of) {
  const quire::Engine& engine = *of.engine;
  const quire::RuntimeConfig& config = engine.config();
  const quire::MemoryPlan& plan = engine.memory_plan();
  OrderedJson startup = OrderedJson::object();
  for (const quire::StartupPhase& phase : engine.startup()) startup[phase.name] = phase.seconds;
  const quire::SamplingContext sampling = engine.sampling_context();
  return {{"model", engine.model_directory().string()},
          {"name", engine.model_name()},
          {"architecture", engine.model_config().architecture()},
          {"device", engine.device_name()},
          {"dtype", to_string(config.dtype)},
          {"max_model_len", config.max_model_len},
          {"max_num_seqs", config.max_num_seqs},
          {"max_num_batched_tokens", config.max_num_batched_tokens},
          {"max_logprobs", sampling.max_logprobs},
          {"kv_cache_tokens", config.cached_tokens()},
          {"vocab_size", sampling.vocab_size},
          {"eos_token_ids",
           std::vector<std::int32_t>(sampling.eos_token_ids.begin(), sampling.eos_token_ids.end())},
          {"has_tokenizer", engine.has_tokenizer()},
          {"classifier", classifier_json(of.chat->classifier())},
          {"sampling", quire::python::sampling_defaults_json(engine.default_sampling_params())},
          {"memory",
           {{"weights_bytes", plan.weights},
            {"kv_cache_bytes", plan.kv_cache},
            {"workspace_bytes", plan.workspace},
            {"host_bytes", plan.host},
            {"total_bytes", plan.total()}}},
          {"startup_seconds", startup}};
}

quire::EngineRequest read_request(QuireChannel& channel, std::string_view text, bool& streams) {
  const std::lock_guard lock(channel.mutex);
  if (channel.source != text || text.empty()) {
    const OrderedJson json = parse(text.data(), text.size());
    channel.source.clear();
    channel.form = {};
    channel.form.params = quire::python::read_sampling_params(json.at("params"), {});
    quire::python::read_request_options(json.at("options"), channel.form);
    channel.streams = json.at("stream").get<bool>();
    channel.source = text;
  }
  streams = channel.streams;
  return channel.form;
}

}  // namespace

extern "C" {

void quire_free_text(QuireText* text) {
  std::free(text->data);
  *text = {nullptr, 0};
}

int quire_set_verbose(int verbose) {
  quire::set_log_level(verbose != 0 ? quire::LogLevel::kInfo : quire::LogLevel::kWarning);
  return kQuireOk;
}

int quire_find_model(const char* source, std::size_t size, QuireProgress progress, QuireText* out) {
  return guarded(out, [&] {
    const OrderedJson json = parse(source, size);
    quire::python::ModelSource from;
    from.model = json.at("model").get<std::string>();
    from.revision = json.at("revision").get<std::string>();
    from.offline = json.at("offline").get<bool>();
    from.with_weights = json.at("with_weights").get<bool>();
    const auto tell = [progress](std::uint64_t done, std::uint64_t total) {
      return progress != nullptr && progress(done, total) != 0;
    };
    put(std::string_view(quire::python::find_model(from, tell)), out);
  });
}

int quire_engine_new(const char* config, std::size_t size, QuireProgress stopped, QuireEngine** engine,
                     QuireText* out) {
  return guarded(out, [&] {
    OrderedJson json = parse(config, size);
    const auto overrides = json.at("hf_overrides").get<std::string>();
    json.erase("hf_overrides");
    quire::check_hf_overrides(overrides);
    quire::EngineConfig read = quire::python::read_engine_config(json);
    read.stopped = [stopped] { return stopped(0, 0) != 0; };
    auto made = std::make_unique<QuireEngine>();
    made->engine = std::make_shared<quire::Engine>(read);
    made->chat.emplace(*made->engine, overrides);
    *engine = made.release();
  });
}

void quire_engine_free(QuireEngine* engine) { delete engine; }

int quire_engine_info(QuireEngine* engine, QuireText* out) {
  return guarded(out, [&] { put(info(*engine), out); });
}

int quire_engine_stats(QuireEngine* engine, QuireText* out) {
  return guarded(out, [&] {
    const quire::EngineStats stats = engine->engine->stats();
    put(OrderedJson{{"prefill_tokens", stats.prefill_tokens},
                    {"decode_tokens", stats.decode_tokens},
                    {"prefill_seconds", stats.prefill_seconds},
                    {"decode_seconds", stats.decode_seconds}},
        out);
  });
}

int quire_encode(QuireEngine* engine, const char* text, std::size_t size, int add_special_tokens,
                 QuireText* out) {
  return guarded(out, [&] {
    put(engine->engine->tokenizer().encode(std::string_view(text, size), add_special_tokens != 0), out);
  });
}

int quire_decode(QuireEngine* engine, const std::int32_t* ids, std::size_t count, int skip_special_tokens,
                 QuireText* out) {
  return guarded(out, [&] {
    const std::string text = engine->engine->tokenizer().decode({ids, count}, skip_special_tokens != 0);
    put(std::string_view(text), out);
  });
}

int quire_tokens(QuireEngine* engine, const std::int32_t* ids, std::size_t count, QuireText* out) {
  return guarded(out, [&] {
    const quire::Tokenizer& tokenizer = engine->engine->tokenizer();
    OrderedJson tokens = OrderedJson::array(), special = OrderedJson::array();
    for (std::size_t i = 0; i < count; ++i) {
      const auto token = tokenizer.id_to_token(ids[i]);
      tokens.push_back(token ? OrderedJson(*token) : OrderedJson());
      special.push_back(token && tokenizer.is_special(ids[i]));
    }
    put(OrderedJson{{"tokens", std::move(tokens)}, {"special", std::move(special)}}, out);
  });
}

int quire_render_chat(QuireEngine* engine, const char* request, std::size_t size, QuireText* out) {
  return guarded(out, [&] {
    OrderedJson json = parse(request, size);
    const bool tokenize = json.at("tokenize").get<bool>();
    const std::vector<quire::TextPiece> pieces = engine->chat->render(std::move(json));
    if (tokenize) return put(engine->engine->tokenizer().encode(pieces, false), out);
    put(std::string_view(quire::join_pieces(pieces)), out);
  });
}

int quire_channel_new(QuireEngine* engine, QuireChannel** channel, QuireText* out) {
  return guarded(out, [&] {
    *channel = new QuireChannel{
        .channel = quire::python::Channel(engine->engine), .mutex = {}, .source = {}, .form = {}};
  });
}

void quire_channel_free(QuireChannel* channel) { delete channel; }

int quire_channel_add(QuireChannel* channel, std::int64_t tag, const char* request, std::size_t size,
                      const std::int32_t* prompt, std::size_t prompt_size, QuireText* out) {
  return guarded(out, [&] {
    bool streams = false;
    quire::EngineRequest made = read_request(*channel, {request, size}, streams);
    made.prompt.assign(prompt, prompt + prompt_size);
    channel->channel.add(tag, std::move(made), streams);
  });
}

int quire_channel_flush(QuireChannel* channel, QuireText* out) {
  return guarded(out, [&] { channel->channel.flush(); });
}

int quire_channel_next(QuireChannel* channel, int milliseconds, QuireText* out) {
  return guarded(out, [&] {
    const std::string events = channel->channel.next(std::chrono::milliseconds(milliseconds));
    if (!events.empty()) put(std::string_view(events), out);
  });
}

int quire_channel_abort(QuireChannel* channel, std::int64_t tag) {
  QuireText ignored;
  const int status =
      guarded(&ignored, [&] { tag < 0 ? channel->channel.abort_all() : channel->channel.abort(tag); });
  quire_free_text(&ignored);
  return status;
}
}
