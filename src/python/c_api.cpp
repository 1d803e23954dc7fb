#include "python/c_api.h"

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "engine/classifier.h"
#include "engine/engine.h"
#include "python/channel.h"
#include "python/json_input.h"
#include "python/model_source.h"
#include "tokenizer/chat_template.h"

using namespace quire;

// An engine, and its conversations as its model's chat template spells them. Usable from several threads at
// once.
struct QuireEngine {
  // hf_overrides: find_classifier's.
  QuireEngine(const EngineConfig& config, const std::string& hf_overrides)
      : engine(std::make_shared<Engine>(config)),
        classifier(find_classifier(*engine, hf_overrides, chat_template ? &*chat_template : nullptr)) {}

  const std::shared_ptr<Engine> engine;
  std::string why_no_template;
  const std::optional<CheckpointChatTemplate> chat_template = engine->find_chat_template(why_no_template);
  const std::optional<Classifier> classifier;
};

struct QuireChannel {
  python::Channel channel;
};

namespace {

// request: "context", what the template reads; "chat_template", null or a file or text to be taken instead of
// the model's; "of_pair", whether the classifier's prompt is; "cut_after", null or the last message's text,
// behind which the result ends. Error where there is no template, and the template's own.
std::vector<TextPiece> render(const QuireEngine& engine, OrderedJson request) {
  const OrderedJson& given = request.at("chat_template");
  const auto& own = engine.chat_template;
  std::optional<CheckpointChatTemplate> instead;
  if (request.at("of_pair").get<bool>()) {
    if (!engine.classifier || !engine.classifier->pair_prompt)
      fail("the model has no prompt for pairs of texts");
    instead = engine.classifier->pair_prompt;
  } else if (!given.is_null()) {
    instead = {read_chat_template(given.get<std::string>()), std::nullopt,
               own ? own->special_tokens : OrderedJson::object()};
  }
  if (!instead && !own) throw Error(engine.why_no_template);
  std::vector<TextPiece> pieces =
      (instead ? instead : own)->render(std::move(request.at("context")), {local_time()});
  const OrderedJson& last = request.at("cut_after");
  if (!last.is_null() && !cut_after(pieces, last.get<std::string>()))
    fail("continue_final_message: the last message has no text that stands in what the chat template makes");
  return pieces;
}

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

void put_json(const OrderedJson& json, QuireText* out) {
  put(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), out);
}

// Calls, and makes of what is thrown a status and a line.
template <typename Call>
int guarded(QuireText* out, const Call& call) {
  *out = {nullptr, 0};
  const auto tell = [out](const std::exception& e, QuireStatus status) {
    put(what_of(e), out);
    return status;
  };
  try {
    call();
    return kQuireOk;
  } catch (const QueueFullError& e) {
    return tell(e, kQuireQueueFull);
  } catch (const Error& e) {
    return tell(e, kQuireInvalid);
  } catch (const Stopped& e) {
    return tell(e, kQuireStopped);
  } catch (const std::exception& e) {
    return tell(e, kQuireFailed);
  }
}

OrderedJson parse(const char* text, std::size_t size) {
  return parse_ordered_json({text, size}, "the arguments");
}

OrderedJson classifier_json(const std::optional<Classifier>& classifier) {
  if (!classifier) return {};
  return {{"labels", classifier->labels},
          {"tokens", classifier->tokens},
          {"judges_pairs", classifier->pair_prompt.has_value()}};
}

OrderedJson info(const QuireEngine& of) {
  const Engine& engine = *of.engine;
  const RuntimeConfig& config = engine.config();
  const MemoryPlan& plan = engine.memory_plan();
  OrderedJson startup = OrderedJson::object();
  for (const StartupPhase& phase : engine.startup()) startup[phase.name] = phase.seconds;
  const SamplingContext sampling = engine.sampling_context();
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
          {"classifier", classifier_json(of.classifier)},
          {"sampling", python::sampling_defaults_json(engine.default_sampling_params())},
          {"memory",
           {{"weights_bytes", plan.weights},
            {"kv_cache_bytes", plan.kv_cache},
            {"workspace_bytes", plan.workspace},
            {"host_bytes", plan.host},
            {"total_bytes", plan.total()}}},
          {"startup_seconds", startup}};
}

}  // namespace

extern "C" {

void quire_free_text(QuireText* text) {
  std::free(text->data);
  *text = {nullptr, 0};
}

int quire_find_model(const char* source, std::size_t size, QuireProgress progress, QuireText* out) {
  return guarded(out, [&] { put(python::find_model(parse(source, size), progress), out); });
}

int quire_engine_new(const char* config, std::size_t size, QuireProgress stopped, QuireEngine** engine,
                     QuireText* out) {
  return guarded(out, [&] {
    OrderedJson json = parse(config, size);
    const auto overrides = json.at("hf_overrides").get<std::string>();
    erase_key(json, "hf_overrides");
    check_hf_overrides(overrides);
    EngineConfig read = python::read_engine_config(json);
    read.stopped = [stopped] { return stopped(0, 0) != 0; };
    *engine = new QuireEngine(read, overrides);
  });
}

void quire_engine_free(QuireEngine* engine) { delete engine; }

int quire_engine_info(QuireEngine* engine, QuireText* out) {
  return guarded(out, [&] { put_json(info(*engine), out); });
}

int quire_engine_stats(QuireEngine* engine, QuireText* out) {
  return guarded(out, [&] {
    const EngineStats stats = engine->engine->stats();
    put_json({{"prefill_tokens", stats.prefill_tokens},
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
    put(engine->engine->tokenizer().decode({ids, count}, skip_special_tokens != 0), out);
  });
}

int quire_tokens(QuireEngine* engine, const std::int32_t* ids, std::size_t count, QuireText* out) {
  return guarded(out, [&] {
    const Tokenizer& tokenizer = engine->engine->tokenizer();
    OrderedJson tokens = OrderedJson::array();
    for (std::size_t i = 0; i < count; ++i) {
      const auto token = tokenizer.id_to_token(ids[i]);
      tokens.push_back(token ? OrderedJson(*token) : OrderedJson());
    }
    put_json({{"tokens", std::move(tokens)}}, out);
  });
}

int quire_render_chat(QuireEngine* engine, const char* request, std::size_t size, QuireText* out) {
  return guarded(out, [&] {
    OrderedJson json = parse(request, size);
    const bool tokenize = json.at("tokenize").get<bool>();
    const std::vector<TextPiece> pieces = render(*engine, std::move(json));
    if (tokenize) return put(engine->engine->tokenizer().encode(pieces, false), out);
    put(join_pieces(pieces), out);
  });
}

int quire_channel_new(QuireEngine* engine, QuireChannel** channel, QuireText* out) {
  return guarded(out, [&] { *channel = new QuireChannel{python::Channel(engine->engine)}; });
}

void quire_channel_free(QuireChannel* channel) { delete channel; }

int quire_channel_add(QuireChannel* channel, std::int64_t tag, const char* request, std::size_t size,
                      const std::int32_t* prompt, std::size_t prompt_size, QuireText* out) {
  return guarded(out, [&] { channel->channel.add(tag, {request, size}, {prompt, prompt_size}); });
}

int quire_channel_flush(QuireChannel* channel, QuireText* out) {
  return guarded(out, [&] { channel->channel.flush(); });
}

int quire_channel_next(QuireChannel* channel, int milliseconds, QuireText* out) {
  return guarded(out, [&] {
    const std::string events = channel->channel.next(std::chrono::milliseconds(milliseconds));
    if (!events.empty()) put(events, out);
  });
}

int quire_channel_abort(QuireChannel* channel, std::int64_t tag) {
  QuireText ignored;
  const int status = guarded(&ignored, [&] { channel->channel.abort(tag); });
  quire_free_text(&ignored);
  return status;
}
}
