#include "engine/output_processor.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "base/threads.h"
#include "engine/sampling_context.h"

namespace quire {

std::optional<StopPlace> find_stop(const std::vector<std::string>& stops, const std::string& text,
                                   std::size_t old_size) {
  std::optional<StopPlace> first;
  for (const std::string& stop : stops) {
    const std::size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const std::size_t begin = text.find(stop, from);
    if (begin == std::string::npos) continue;
    const StopPlace place{begin, begin + stop.size()};
    first = std::min(first.value_or(place), place);
  }
  return first;
}

std::size_t num_held_back(const std::vector<std::string>& stops, const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n)
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
  }
  return longest;
}

namespace {

constexpr const char* kNoMemory = "there was no memory for what it computed";

// As the request has asked for it. Error where it has no direction.
std::vector<float> make_embedding(std::vector<float> vector, const EngineRequest& request) {
  if (request.dimensions > 0)
    vector.resize(std::min(vector.size(), static_cast<std::size_t>(request.dimensions)));
  if (!request.normalise || request.pooling == Pooling::kLogits) return vector;
  double square = 0;
  for (const float value : vector) square += static_cast<double>(value) * static_cast<double>(value);
  if (square == 0) fail("the pooled hidden state is zero: it cannot be scaled to length 1");
  const double length = std::sqrt(square);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) / length);
  return vector;
}

// The last token, if it is one of those that the request has named.
decltype(CompletionOutput::stop_reason) stop_token(const CompletionOutput& output,
                                                   const SamplingParams& params) {
  const auto& named = params.stop_token_ids;
  const auto& ids = output.token_ids;
  if (ids.empty() || std::ranges::find(named, ids.back()) == named.end()) return {};
  return ids.back();
}

}  // namespace

OutputProcessor::OutputProcessor(const Tokenizer* tokenizer, EngineHooks::Fault fault,
                                 std::function<void(SequenceId)> stop)
    : tokenizer_(tokenizer), fault_(std::move(fault)), stop_(std::move(stop)), thread_([this] { run(); }) {}

OutputProcessor::~OutputProcessor() {
  change_and_wake(mutex_, wake_, [this] { closing_ = true; });
  thread_.join();
}

template <typename Each>
void OutputProcessor::queue(std::span<Each> items, TimePoint at) {
  change_and_wake(mutex_, wake_, [&] {
    try {
      push_all(items, at);
    } catch (const std::bad_alloc&) {
      is_lost_ = true;
    }
  });
}

// Into the queue, whose lock is held: all of them, or none where there is no memory.
template <typename Each>
void OutputProcessor::push_all(std::span<Each> items, TimePoint at) {
  const std::size_t size = queue_.size() + items.size();
  if (size > queue_.capacity()) queue_.reserve(std::max(size, 2 * queue_.capacity()));
  for (Each& item : items) queue_.emplace_back(at, std::move(item));
}

void OutputProcessor::add(std::vector<Addition> additions) {
  change_and_wake(mutex_, wake_, [&] { push_all(std::span(additions), Clock::now()); });
}

void OutputProcessor::start(std::vector<Start> sequences, TimePoint at) { queue(std::span(sequences), at); }

void OutputProcessor::push(std::vector<SequenceUpdate> updates, TimePoint at) {
  if (!updates.empty()) queue(std::span(updates), at);
}

void OutputProcessor::queue_now(Item item) { queue(std::span(&item, 1), Clock::now()); }

void OutputProcessor::finish(SearchResult result) { queue_now(std::move(result)); }

void OutputProcessor::finish(SequenceId id, FinishReason reason, std::string error) {
  queue_now(Ending{id, reason, std::move(error)});
}

void OutputProcessor::fail_all(std::string error) { queue_now(Failure{std::move(error)}); }

void OutputProcessor::run() {
  name_thread("quire-output");
  std::vector<Event> events;
  while (true) {
    bool is_lost;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || is_lost_ || !queue_.empty(); });
      if (queue_.empty() && !is_lost_) break;
      events.swap(queue_);
      is_lost = std::exchange(is_lost_, false);
    }
    for (Event& event : events) take(event);
    events.clear();
    if (is_lost) end_all(FinishReason::kError, kNoMemory);
  }
  end_all(FinishReason::kAbort, {});
}

void OutputProcessor::take(Event& event) {
  const SequenceId id = std::visit([](const auto& which) { return which.id; }, event.item);
  try {
    if (auto* addition = std::get_if<Addition>(&event.item))
      add(*addition, event.at);
    else if (const auto* failure = std::get_if<Failure>(&event.item))
      end_all(FinishReason::kError, failure->error);
    else
      handle(id, std::move(event));
  } catch (const std::exception& e) {  // no memory, say
    try {
      log_error("sequence {}: its output failed ({})", id, what_of(e));
      give_up(event, id, what_of(e));
    } catch (const std::exception&) {
      if (const auto found = find(id); found != states_.end()) states_.erase(found);
    }
  }
}

void OutputProcessor::give_up(Event& event, SequenceId id, const std::string& why) {
  if (const auto* addition = std::get_if<Addition>(&event.item)) {
    for (int i = 0; i < num_sampled(addition->request.params); ++i) stop_(id + static_cast<SequenceId>(i));
    RequestOutput output;
    output.arrival = event.at;
    CompletionOutput& failed = output.outputs.emplace_back();
    failed.finish_reason = FinishReason::kError;
    failed.error = why;
    failed.times.finished = Clock::now();
    if (addition->request.on_update) addition->request.on_update({id, output, failed, {}, true, {}});
    return;
  }
  const auto found = find(id);
  if (found == states_.end()) return;
  State& state = found->second;
  stop_unfinished(state);
  auto last = static_cast<std::size_t>(id - state.id);  // whose end has not been told
  for (std::size_t i = 0; i < state.output.outputs.size(); ++i) {
    CompletionOutput& output = state.output.outputs[i];
    if (output.finished()) continue;
    output.finish_reason = FinishReason::kError;
    output.error = why;
    output.times.finished = Clock::now();
    last = i;
  }
  if (state.request.params.best_of || state.request.params.beam_width)
    deliver_all(state);
  else
    deliver(state, last, true, {});
  states_.erase(found);
}

void OutputProcessor::end_all(FinishReason reason, const std::string& error) {
  while (!states_.empty()) {
    const auto first = states_.begin();
    const State& state = first->second;
    try {
      stop_unfinished(state);
      const auto last = state.id + state.texts.size();
      for (SequenceId id = state.id; id < last; ++id) handle(id, {Clock::now(), Ending{id, reason, error}});
    } catch (const std::exception&) {
      states_.erase(first);
    }
  }
}

void OutputProcessor::add(Addition& addition, TimePoint at) {
  State state;
  state.id = addition.id;
  state.output.arrival = at;
  const SamplingParams& params = addition.request.params;
  state.num_unfinished = num_sampled(params);
  for (int i = 0; i < state.num_unfinished; ++i) {
    state.output.outputs.emplace_back().index = i;
    Text& text = state.texts.emplace_back();
    if (tokenizer_ == nullptr || !params.detokenize) continue;
    text.detokenizer.emplace(*tokenizer_, params.skip_special_tokens).follow(*addition.prompt);
  }
  State& added = states_.emplace(state.id, std::move(state)).first->second;
  added.request = std::move(addition.request);
  added.prompt = std::move(addition.prompt);
}

// The request that a sequence is of, unless it has ended.
OutputProcessor::States::iterator OutputProcessor::find(SequenceId id) {
  auto found = states_.upper_bound(id);
  if (found == states_.begin()) return states_.end();
  --found;
  return id - found->first < found->second.texts.size() ? found : states_.end();
}

void OutputProcessor::handle(SequenceId id, Event event) {
  Item& item = event.item;
  const auto found = find(id);
  if (found == states_.end()) return;
  State& state = found->second;
  if (state.prompt) state.output.prompt_token_ids = *std::exchange(state.prompt, nullptr);
  const auto index = static_cast<std::size_t>(id - state.id);
  CompletionOutput& output = state.output.outputs[index];
  if (output.finished()) return;  // by a stop string, or by an abort that overtook this
  if (std::holds_alternative<Start>(item)) return begin(state, index, event.at);
  std::vector<float> logits;
  if (auto* update = std::get_if<SequenceUpdate>(&item)) {
    logits = std::move(update->logits);
    apply_or_fail(state, index, *update, event.at);
    if (output.finished() && update->finish == FinishReason::kNone) stop_(id);
  } else if (auto* result = std::get_if<SearchResult>(&item)) {
    state.output.num_cached_tokens = result->num_cached_tokens;
    state.output.cache_end = result->cache_end;
    for (std::size_t i = 0; i < state.texts.size(); ++i) apply_or_fail(state, i, *result, event.at);
  } else if (auto* ending = std::get_if<Ending>(&item)) {
    apply_or_fail(state, index, *ending, event.at);
  }
  const SamplingParams& params = state.request.params;
  const bool finished = state.num_unfinished == 0;
  bool delivered = true;
  if (!params.best_of && !params.beam_width)
    delivered = deliver(state, index, finished, std::move(logits));
  else if (finished)
    delivered = deliver_all(state);
  if (!delivered) stop_unfinished(state);
  if (!delivered || finished) states_.erase(found);
}

// The first step of a beam search is that of all its outputs; none of them is one of its beams.
void OutputProcessor::begin(State& state, std::size_t index, TimePoint at) {
  std::vector<CompletionOutput>& outputs = state.output.outputs;
  if (state.request.params.beam_width) {
    for (CompletionOutput& output : outputs)
      if (!output.times.scheduled) output.times.scheduled = at;
  } else if (outputs[index].times.scheduled) {
    ++outputs[index].num_preemptions;
  } else {
    outputs[index].times.scheduled = at;
  }
}

// What goes wrong with an output's text ends that output.
template <typename News>
void OutputProcessor::apply_or_fail(State& state, std::size_t index, News& news, TimePoint at) {
  CompletionOutput& output = state.output.outputs[index];
  const SequenceId id = state.id + index;
  try {
    if (fault_) fault_(EngineStage::kDetokenize, id);
    apply(state, index, news, at);
  } catch (const std::exception& e) {
    log_error("sequence {}: its output failed ({})", id, what_of(e));
    output.finish_reason = FinishReason::kError;
    output.error = what_of(e);
  }
  if (!output.finished()) return;
  output.times.finished = at;
  --state.num_unfinished;
}

void OutputProcessor::apply(State& state, std::size_t index, SequenceUpdate& update, TimePoint at) {
  CompletionOutput& output = state.output.outputs[index];
  if (index == 0) {
    state.output.num_cached_tokens = update.num_cached_tokens;
    state.output.cache_end = update.cache_end;
  }
  output.finish_reason = update.finish;
  const bool pooled = state.request.pooling != Pooling::kNone;
  const bool of_hidden = pooled && state.request.pooling != Pooling::kLogits;
  output.is_request_at_fault = update.none_left || update.is_request_at_fault;
  if (!update.error.empty())
    output.error = std::move(update.error);
  else if (update.none_left)
    output.error = describe_no_token(state.request.params, output.token_ids.size());
  else if (update.finish == FinishReason::kError)
    output.error =
        format_text("the model's {} are not finite numbers", of_hidden ? "hidden states" : "logits");
  if (pooled) {
    if (update.finish == FinishReason::kStop)
      state.output.embedding = make_embedding(std::move(update.hidden), state.request);
    return;
  }
  if (update.token) {
    output.times.last_token = at;
    if (!output.times.first_token) output.times.first_token = at;
  }
  std::ranges::move(update.prompt_logprobs, std::back_inserter(state.output.prompt_logprobs));
  const SamplingParams& params = state.request.params;
  if (params.max_tokens == 0) {  // the token is one too many
    if (update.finish == FinishReason::kStop) output.finish_reason = FinishReason::kLength;
    return;
  }
  bool stopped = false;
  if (update.token) {
    output.token_ids.push_back(*update.token);
    if (update.logprobs) {
      output.cumulative_logprob = output.cumulative_logprob.value_or(0) + update.logprobs->token.logprob;
      output.logprobs.push_back(std::move(*update.logprobs));
    }
    // The text of a token that ended the sequence is no part of the output, unless it is asked for.
    auto& detokenizer = state.texts[index].detokenizer;
    const bool has_text = update.finish != FinishReason::kStop || params.include_stop_str_in_output;
    if (has_text && detokenizer) stopped = extend_text(state, index, detokenizer->push(*update.token));
  }
  if (update.finish == FinishReason::kStop) output.stop_reason = stop_token(output, params);
  if (!stopped && update.finish != FinishReason::kNone) stopped = end_text(state, index);
  if (stopped) output.finish_reason = FinishReason::kStop;
}

void OutputProcessor::apply(State& state, std::size_t index, const SearchResult& result, TimePoint at) {
  CompletionOutput& output = state.output.outputs[index];
  output.times.first_token = result.first_token;
  if (result.first_token) output.times.last_token = at;
  output.finish_reason = result.reason;
  output.error = result.error;
  if (index >= result.best.size()) {
    if (output.finished()) return;
    output.finish_reason = FinishReason::kError;
    output.error = format_text("the search has found {} texts only", result.best.size());
    return;
  }
  const Hypothesis& found = result.best[index];
  output.token_ids = found.tokens;
  output.cumulative_logprob = found.logprob;
  output.score = found.score;
  if (!output.finished()) output.finish_reason = found.finish;
  if (output.finish_reason == FinishReason::kStop)
    output.stop_reason = stop_token(output, state.request.params);
  auto& detokenizer = state.texts[index].detokenizer;
  if (!detokenizer) return;
  const bool cuts_last =
      found.finish == FinishReason::kStop && !state.request.params.include_stop_str_in_output;
  for (std::size_t i = 0; i < found.tokens.size() - (cuts_last ? 1 : 0); ++i)
    output.text += detokenizer->push(found.tokens[i]);
  output.text += detokenizer->finish();
}

void OutputProcessor::apply(State& state, std::size_t index, Ending& ending, TimePoint) {
  CompletionOutput& output = state.output.outputs[index];
  output.finish_reason = ending.reason;
  output.error = std::move(ending.error);
  end_text(state, index);
}

bool OutputProcessor::end_text(State& state, std::size_t index) {
  auto& detokenizer = state.texts[index].detokenizer;
  return detokenizer && extend_text(state, index, detokenizer->finish());
}

bool OutputProcessor::extend_text(State& state, std::size_t index, const std::string& new_text) {
  CompletionOutput& output = state.output.outputs[index];
  const std::size_t old_size = output.text.size();
  output.text += new_text;
  if (static_cast<int>(output.token_ids.size()) <= state.request.params.min_tokens) return false;
  const auto stop = find_stop(state.request.params.stop, output.text, old_size);
  if (!stop) return false;
  output.stop_reason = output.text.substr(stop->begin, stop->end - stop->begin);
  output.text.resize(state.request.params.include_stop_str_in_output ? stop->end : stop->begin);
  return true;
}

void OutputProcessor::stop_unfinished(const State& state) {
  for (std::size_t i = 0; i < state.output.outputs.size(); ++i)
    if (!state.output.outputs[i].finished()) stop_(state.id + i);
}

// Of what was sampled, the n most likely outputs stay, the best one first. Those that were cut short come
// behind the whole ones, and those that failed last.
void OutputProcessor::choose_best(State& state) {
  const auto rank = [](const CompletionOutput& output) {
    const bool whole =
        output.finish_reason == FinishReason::kStop || output.finish_reason == FinishReason::kLength;
    const bool failed = output.finish_reason == FinishReason::kError;
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    return std::pair(whole ? 0 : failed ? 2 : 1, -output.cumulative_logprob.value_or(kNone));
  };
  std::vector<CompletionOutput>& outputs = state.output.outputs;
  std::ranges::stable_sort(outputs, {}, rank);
  outputs.resize(state.request.params.n);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].index = static_cast<int>(i);
    if (!state.request.params.logprobs) outputs[i].logprobs.clear();
  }
}

bool OutputProcessor::deliver_all(State& state) {
  if (state.request.params.best_of) choose_best(state);
  const std::size_t count = state.output.outputs.size();
  for (std::size_t i = 0; i < count; ++i)
    if (!deliver(state, i, i + 1 == count, {})) return false;
  return true;
}

bool OutputProcessor::deliver(State& state, std::size_t index, bool finished, std::vector<float> logits) {
  const CompletionOutput& output = state.output.outputs[index];
  std::size_t& delivered = state.texts[index].delivered;
  const std::string_view text(output.text);
  const SamplingParams& params = state.request.params;
  const bool holds_back = !output.finished() && !params.include_stop_str_in_output;
  const std::size_t end = text.size() - (holds_back ? num_held_back(params.stop, output.text) : 0);
  const std::string_view new_text = end > delivered ? text.substr(delivered, end - delivered) : "";
  delivered += new_text.size();
  try {
    if (fault_) fault_(EngineStage::kCallback, state.id + index);
    if (state.request.on_update)
      state.request.on_update({state.id, state.output, output, new_text, finished, std::move(logits)});
  } catch (const std::exception& e) {
    log_error("request {}: its callback threw, which ends it ({})", state.id, what_of(e));
    return false;
  } catch (...) {
    log_error("request {}: its callback threw, which ends it", state.id);
    return false;
  }
  return true;
}

}  // namespace quire
