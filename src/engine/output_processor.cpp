#include "engine/output_processor.h"

#include <iterator>

#include "base/log.h"

namespace quire {
namespace {

void append(std::vector<PositionLogprobs>& all, std::vector<PositionLogprobs>& next) {
  all.insert(all.end(), std::make_move_iterator(next.begin()), std::make_move_iterator(next.end()));
}

}  // namespace

OutputProcessor::OutputProcessor(const Tokenizer* tokenizer, std::function<void(RequestId)> stop)
    : tokenizer_(tokenizer), stop_(std::move(stop)), thread_([this] { run(); }) {}

OutputProcessor::~OutputProcessor() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void OutputProcessor::add(RequestId id, EngineRequest request) {
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(Addition{id, std::move(request)});
  }
  wake_.notify_one();
}

void OutputProcessor::push(std::vector<SequenceUpdate> updates) {
  if (updates.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (SequenceUpdate& update : updates) queue_.emplace_back(std::move(update));
  }
  wake_.notify_one();
}

void OutputProcessor::finish(RequestId id, FinishReason reason, std::string error) {
  {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(Ending{id, reason, std::move(error)});
  }
  wake_.notify_one();
}

void OutputProcessor::run() {
  std::vector<Item> items;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) break;
      items.swap(queue_);
    }
    for (Item& item : items) handle(std::move(item));
    items.clear();
  }
  while (!states_.empty()) handle(Ending{states_.begin()->first, FinishReason::kAbort, {}});
}

void OutputProcessor::handle(Item item) {
  if (auto* addition = std::get_if<Addition>(&item)) {
    State state;
    state.request = std::move(addition->request);
    state.stops = StopStrings(state.request.params.stop);
    state.output.prompt_token_ids = state.request.prompt;
    if (tokenizer_ != nullptr && state.request.params.detokenize)
      state.detokenizer.emplace(*tokenizer_, state.request.params.skip_special_tokens);
    states_.emplace(addition->id, std::move(state));
    return;
  }
  const RequestId id = std::visit([](const auto& event) { return event.id; }, item);
  const auto found = states_.find(id);
  if (found == states_.end()) return;  // it has ended: by a stop string, or by an abort that overtook this
  State& state = found->second;
  std::vector<float> logits;
  if (auto* update = std::get_if<SequenceUpdate>(&item)) {
    logits = std::move(update->logits);
    apply(id, state, *update);
  } else {
    state.output.finish_reason = std::get<Ending>(item).reason;
    state.output.error = std::move(std::get<Ending>(item).error);
    extend_text(state, unfinished_text(state));
  }
  deliver(id, state, std::move(logits));
  if (state.output.finish_reason != FinishReason::kNone) states_.erase(found);
}

void OutputProcessor::apply(RequestId id, State& state, SequenceUpdate& update) {
  state.output.num_cached_tokens = update.num_cached_tokens;
  state.output.finish_reason = update.finish;
  if (update.finish == FinishReason::kError) state.output.error = "the model's logits are not finite numbers";
  append(state.output.prompt_logprobs, update.prompt_logprobs);
  if (state.request.params.max_tokens == 0) {  // the token is one too many
    if (update.finish == FinishReason::kStop) state.output.finish_reason = FinishReason::kLength;
    return;
  }
  bool stopped = false;
  if (update.token) {
    state.output.token_ids.push_back(*update.token);
    if (update.logprobs) {
      state.output.cumulative_logprob =
          state.output.cumulative_logprob.value_or(0) + update.logprobs->token.logprob;
      state.output.logprobs.push_back(std::move(*update.logprobs));
    }
    // The text of a token that ended the sequence is no part of the output, unless it is asked for.
    const bool has_text =
        update.finish != FinishReason::kStop || state.request.params.include_stop_str_in_output;
    if (has_text && state.detokenizer) {
      stopped = extend_text(state, state.detokenizer->push(*update.token));
    }
  }
  if (!stopped && update.finish != FinishReason::kNone) stopped = extend_text(state, unfinished_text(state));
  if (!stopped) return;
  state.output.finish_reason = FinishReason::kStop;
  if (update.finish == FinishReason::kNone) stop_(id);
}

std::string OutputProcessor::unfinished_text(State& state) {
  return state.detokenizer ? state.detokenizer->finish() : std::string();
}

bool OutputProcessor::extend_text(State& state, const std::string& new_text) {
  std::string& text = state.output.text;
  const std::size_t old_size = text.size();
  text += new_text;
  if (static_cast<int>(state.output.token_ids.size()) <= state.request.params.min_tokens) return false;
  const std::size_t stop = state.stops.find(text, old_size);
  if (stop == std::string::npos) return false;
  text.resize(state.request.params.include_stop_str_in_output ? state.stops.end_at(text, stop) : stop);
  return true;
}

void OutputProcessor::deliver(RequestId id, State& state, std::vector<float> logits) {
  const RequestOutput& output = state.output;
  const bool finished = output.finish_reason != FinishReason::kNone;
  const std::string_view text(output.text);
  const bool holds_back = !finished && !state.request.params.include_stop_str_in_output;
  const std::size_t end = text.size() - (holds_back ? state.stops.held_back(output.text) : 0);
  const std::string_view new_text =
      end > state.delivered ? text.substr(state.delivered, end - state.delivered) : "";
  state.delivered += new_text.size();
  try {
    if (state.request.on_update) state.request.on_update({id, output, new_text, finished, std::move(logits)});
  } catch (const std::exception& e) {
    log_error("request {}: its callback threw ({})", id, e.what());
  } catch (...) {
    log_error("request {}: its callback threw", id);
  }
}

}  // namespace quire
