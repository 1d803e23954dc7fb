#include "quire/llm.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>

#include "base/error.h"
#include "base/threads.h"
#include "engine/engine.h"
#include "engine/sampling_context.h"
#include "tokenizer/chat_template.h"

namespace quire {

std::string_view to_string(CacheEnd::Reason reason) {
  constexpr std::string_view kNames[CacheEnd::kNumReasons] = {"",     "whole",   "no_checkpoint", "differs",
                                                              "salt", "evicted", "new",           "off"};
  return kNames[static_cast<std::size_t>(reason)];
}

namespace {

// The requests of one call to generate, shared with the output thread.
class Batch {
 public:
  struct Progress {
    std::size_t num_finished;
    std::exception_ptr exception;  // the first that the callback or generate threw
  };

  Batch(std::size_t size, const GenerateOptions& options) : options_(options), outputs_(size) {}

  // On the output thread. A callback that throws ends the whole batch.
  void update(std::size_t index, const RequestUpdate& update) {
    RequestOutput output;
    try {
      if (options_.on_text && !update.new_text.empty())
        options_.on_text(index, update.output, update.new_text);
      if (update.finished) output = update.request;
    } catch (...) {
      give_up();
    }
    if (update.finished) finish(index, std::move(output));
  }

  // For one that the engine did not take.
  void refuse(std::size_t index, const EngineRequest& request, const std::string& why) {
    RequestOutput output;
    output.prompt_token_ids = request.prompt;
    for (int i = 0; i < request.params.n; ++i) {
      CompletionOutput& refused = output.outputs.emplace_back();
      refused.index = i;
      refused.finish_reason = FinishReason::kError;
      refused.error = why;
    }
    finish(index, std::move(output));
  }

  // In a handler, for what was thrown; so many will not be submitted.
  void give_up(std::size_t num_left_out = 0) {
    const std::lock_guard lock(mutex_);
    if (!progress_.exception) progress_.exception = std::current_exception();
    progress_.num_finished += num_left_out;
  }

  // Returns when all have ended, or the time is up.
  Progress wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, time, [this] { return progress_.num_finished == outputs_.size(); });
    return progress_;
  }
  std::vector<RequestOutput> take_outputs() { return std::move(outputs_); }

 private:
  void finish(std::size_t index, RequestOutput output) {
    change_and_wake(mutex_, done_, [&] {
      outputs_[index] = std::move(output);
      ++progress_.num_finished;
    });
  }

  GenerateOptions options_;
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<RequestOutput> outputs_;  // guarded by mutex_
  Progress progress_{};                 // guarded by mutex_
};

// One line on stderr, rewritten in place: what came of the prompts between the two.
void show_progress(const EngineStats& start, const EngineStats& now, std::size_t finished,
                   std::size_t total) {
  const auto rate = [](std::uint64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  print_text(stderr, "\r{}/{} prompts, prefill {:.0f} tokens/s, decode {:.0f} tokens/s\033[K{}", finished,
             total,
             rate(now.prefill_tokens - start.prefill_tokens, now.prefill_seconds - start.prefill_seconds),
             rate(now.decode_tokens - start.decode_tokens, now.decode_seconds - start.decode_seconds),
             finished == total ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace

struct LLM::Impl {
  explicit Impl(const EngineConfig& config) : engine(config) {}

  Engine engine;
  std::string why_no_template;  // the error of whoever needs one
  std::optional<CheckpointChatTemplate> chat_template = engine.find_chat_template(why_no_template);
};

LLM::LLM(const EngineConfig& config) : impl_(std::make_unique<Impl>(config)) {}
LLM::~LLM() = default;
LLM::LLM(LLM&&) noexcept = default;
LLM& LLM::operator=(LLM&&) noexcept = default;

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts, const SamplingParams& params,
                                         const GenerateOptions& options) {
  return generate(prompts, std::vector<SamplingParams>(prompts.size(), params), options);
}

std::vector<RequestOutput> LLM::generate(const std::vector<Prompt>& prompts,
                                         const std::vector<SamplingParams>& params,
                                         const GenerateOptions& options) {
  if (params.size() != prompts.size())
    fail("{} prompts with {} sampling parameters; give one, or one each", prompts.size(), params.size());
  if (!options.priorities.empty() && options.priorities.size() != prompts.size())
    fail("{} prompts with {} priorities; give none, or one each", prompts.size(), options.priorities.size());
  Engine& engine = impl_->engine;
  // Shared: the output thread may still be leaving it when the last request has ended.
  const auto batch = std::make_shared<Batch>(prompts.size(), options);
  const bool shows_progress = options.progress && isatty(STDERR_FILENO) != 0;
  const EngineStats start = engine.stats();
  std::vector<EngineRequest> requests(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&prompts[i]);
    requests[i].prompt = text != nullptr ? encode(*text) : std::get<std::vector<TokenId>>(prompts[i]);
    requests[i].params = params[i];
    if (!options.priorities.empty()) requests[i].priority = options.priorities[i];
    requests[i].cache_salt = options.cache_salt;
    requests[i].timeout = options.timeout;
    requests[i].on_update = [batch, i](const RequestUpdate& update) { batch->update(i, update); };
    try {
      engine.validate(requests[i]);  // all of them, before the first one runs
    } catch (const Error& e) {
      fail("prompt {}: {}", i + 1, e.what());
    }
  }
  std::vector<RequestId> ids;
  ids.reserve(requests.size());
  std::size_t i = 0;
  try {
    for (; i < requests.size(); ++i) {
      try {
        ids.push_back(engine.submit(std::move(requests[i])));
      } catch (const QueueFullError& e) {  // it has left the request as it was
        batch->refuse(i, requests[i], e.what());
      }
    }
  } catch (...) {  // no memory, say; those under way end before the caller is told
    batch->give_up(requests.size() - i);
  }
  bool aborted = false;
  while (true) {
    const auto [num_finished, exception] = batch->wait_for(std::chrono::milliseconds(20));
    const bool last = num_finished == prompts.size();
    try {
      if (shows_progress) show_progress(start, engine.stats(), num_finished, prompts.size());
      const bool cancelled = options.cancelled != nullptr && *options.cancelled;
      if (!last && !aborted && (cancelled || exception)) {
        for (const RequestId id : ids) engine.abort(id);
        aborted = true;
      }
    } catch (...) {
      batch->give_up();
    }
    if (last && exception) std::rethrow_exception(exception);
    if (last) return batch->take_outputs();
  }
}

std::vector<std::int32_t> LLM::apply_chat_template(const std::vector<ChatMessage>& messages) const {
  if (!impl_->chat_template) throw Error(impl_->why_no_template);
  OrderedJson context;
  context["messages"] = OrderedJson::array();
  for (const ChatMessage& message : messages)
    context["messages"].push_back({{"role", message.role}, {"content", message.content}});
  context["add_generation_prompt"] = true;
  return impl_->engine.tokenizer().encode(impl_->chat_template->render(std::move(context), {local_time()}),
                                          false);
}

std::vector<std::int32_t> LLM::encode(std::string_view text) const {
  return impl_->engine.tokenizer().encode(text);
}

std::string LLM::decode(std::span<const std::int32_t> token_ids) const {
  return impl_->engine.tokenizer().decode(token_ids, true);
}

SamplingParams LLM::default_sampling_params() const { return impl_->engine.default_sampling_params(); }

void LLM::check(const SamplingParams& params) const { validate(params, impl_->engine.sampling_context()); }

int LLM::max_model_len() const { return impl_->engine.config().max_model_len; }

}  // namespace quire
