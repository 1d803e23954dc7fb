// How requests come in.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/thinking_limit.h"
#include "ops/philox.h"

namespace quire {
namespace {

OutputKind prompt_output(const EngineRequest& request) {
  if (request.pooling == Pooling::kLast) return OutputKind::kLastHidden;
  if (request.pooling == Pooling::kLogits) return OutputKind::kLastLogits;
  if (request.pooling == Pooling::kMean) return OutputKind::kHiddenMean;
  if (request.prompt_logits) return OutputKind::kAll;
  return request.params.prompt_logprobs ? OutputKind::kLogprobs : OutputKind::kLast;
}

// The seed of a request that brings none: a function of the engine's seed and the request's number.
std::uint64_t request_seed(std::uint64_t engine_seed, RequestId id) {
  const auto bits =
      philox4x32(engine_seed, {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 1});
  return std::uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace

std::vector<RequestId> Engine::submit(std::span<EngineRequest> requests) {
  const SamplingContext context = sampling_context();
  // Prompts of one list mostly have the same parameters; to read their bad words takes time.
  const auto same_params = [&](std::size_t i) {
    return i > 0 && requests[i].params == requests[i - 1].params;
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!same_params(i)) quire::validate(requests[i].params, context);
    validate_without_params(requests[i], context);
  }
  std::vector<Arrival> arrivals;
  std::vector<RequestId> ids;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EngineRequest& request = requests[i];
    truncate_prompt(request.prompt, request.params, config_.max_model_len);
    arrivals.push_back(make_arrival(request, same_params(i) ? &arrivals.back() : nullptr));
    ids.push_back(arrivals.back().request->id);
    num_tokens += std::ssize(request.prompt) + arrivals.back().request->num_queued_tokens();
  }
  mailbox_.post({std::ssize(requests), num_tokens}, [&] {
    std::vector<OutputProcessor::Addition> additions;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::shared_ptr<SequenceRequest>& made = arrivals[i].request;
      made->prompt = std::move(requests[i].prompt);
      additions.push_back({made->id, std::move(requests[i]), {made, &made->prompt}});
    }
    Mailbox::Task task = [this, arrivals = std::move(arrivals)] {
      for (const Arrival& arrival : arrivals) begin(arrival);
    };
    outputs_->add(std::move(additions));
    return task;
  });
  if (watch_->is_stuck()) outputs_->fail_all("the engine is stuck");  // nobody will begin them
  return ids;
}

// Its prompt stays with the request until the queue has taken it. alike: a request of equal parameters, or
// null.
Engine::Arrival Engine::make_arrival(const EngineRequest& request, const Arrival* alike) {
  const int n = num_sequences(request.params);
  const RequestId id = next_id_.fetch_add(static_cast<RequestId>(n), std::memory_order_relaxed);
  Arrival arrival{std::make_shared<SequenceRequest>(), std::nullopt, request.params.structured_outputs,
                  nullptr};
  arrival.thinking = request.params.thinking_budget;
  SequenceRequest& made = *arrival.request;
  made.id = id;
  made.num_outputs = n;
  made.first_sibling = n > 1 ? id : 0;
  const std::uint64_t seed = request_seed(setup_.config.seed, id);
  made.sampling = alike != nullptr ? alike->request->sampling
                                   : make_sampling_state(request.params, sampling_context(), seed);
  made.sampling.seed = request.params.seed.value_or(seed);
  made.max_tokens = std::max(request.params.max_tokens, 1);  // one is sampled all the same, and dropped
  made.min_tokens = request.params.min_tokens;
  made.prompt_output = prompt_output(request);
  made.priority = request.priority;
  made.cache_salt = request.cache_salt;
  made.held_bytes = request.held_bytes;
  if (request.params.beam_width) {
    arrival.search = {.width = n,
                      .length_penalty = request.params.length_penalty,
                      .early_stopping = request.params.early_stopping,
                      .max_tokens = request.params.max_tokens,
                      .min_tokens = request.params.min_tokens,
                      .stop_ids = made.sampling.stop_ids};
    made.num_outputs = 1;
    made.first_sibling = id;
    made.beam_width = n;
    made.min_tokens = 0;  // the search sees to it
  }
  if (arrival.source) {
    const SamplingState& sampling = made.sampling;
    made.held_bytes = std::max(made.held_bytes, arrival.source->source.size());
    made.may_jump = !setup_.config.disable_jump_forward && !sampling.needs_history() &&
                    sampling.allowed_ids.empty() && made.min_tokens == 0 &&
                    sampling.num_logprobs == SamplingState::kNoLogprobs &&
                    made.prompt_output == OutputKind::kLast;
  }
  if (request.timeout)
    made.deadline = TimePoint::clock::now() + std::chrono::duration_cast<TimePoint::duration>(
                                                  std::chrono::duration<double>(*request.timeout));
  return arrival;
}

void Engine::begin(const Arrival& arrival) {
  const SequenceRequest& request = *arrival.request;
  try {
    if (gave_up_) fail("the engine has given up");
    if (arrival.source && !request.make_constraint) return hold(arrival);
    if (arrival.thinking)
      arrival.request->make_constraint = [budget = *arrival.thinking,
                                          tokenizer = sampling_context().tokenizer,
                                          make = std::move(arrival.request->make_constraint)] {
        return std::make_shared<ThinkingLimit>(budget, *tokenizer, make ? make() : nullptr);
      };
    if (arrival.search) return beams_->add(arrival.request, *arrival.search);
    scheduler_->add(arrival.request);
  } catch (const std::exception& e) {  // too long, say, or no memory for all its outputs, or no thread
    held_.erase(request.id);
    scheduler_->abort_with_siblings(request.id);
    const auto last = request.id + static_cast<SequenceId>(std::max(request.num_outputs, request.beam_width));
    for (SequenceId id = request.id; id < last; ++id) outputs_->finish(id, FinishReason::kError, what_of(e));
  }
}

// It waits for its source to be compiled. Others go on.
void Engine::hold(const Arrival& arrival) {
  const RequestId id = arrival.request->id;
  Arrival& held = held_.emplace(id, arrival).first->second;
  setup_.hooks.visit(EngineStage::kHold, id);
  held.compilation = compiler_->compile(arrival.source);
}

// Begins those that are compiled.
void Engine::release_compiled() {
  for (auto next = held_.begin(); next != held_.end();) {
    const auto held = next++;
    const RequestId id = held->first;
    try {
      std::optional<GrammarCompiler::Result> result = held->second.compilation->result();
      if (!result) continue;
      if (!result->make) {
        end_held(id, FinishReason::kError, result->error, result->is_request_at_fault);
        continue;
      }
      held->second.request->make_constraint = std::move(result->make);
      begin(held_.extract(held).mapped());
    } catch (const std::exception& e) {  // no memory
      mailbox_.wake();                   // to come here again, should there be none for its end either
      end_held(id, FinishReason::kError, what_of(e));
    }
  }
}

bool Engine::end_held(RequestId id, FinishReason reason, const std::string& why, bool is_request_at_fault) {
  const auto held = held_.find(id);
  if (held == held_.end()) return false;
  std::vector<SequenceUpdate> ends;
  for (int i = 0; i < held->second.request->num_outputs; ++i)
    ends.push_back({.id = id + static_cast<SequenceId>(i),
                    .finish = reason,
                    .error = why,
                    .is_request_at_fault = is_request_at_fault});
  held_.erase(held);
  outputs_->push(std::move(ends), TimePoint::clock::now());
  return true;
}

// Ends those whose deadlines have passed.
void Engine::expire_held(TimePoint now) {
  std::vector<RequestId> late;
  for (const auto& [id, arrival] : held_)
    if (arrival.request->deadline && *arrival.request->deadline <= now) late.push_back(id);
  for (const RequestId id : late) end_held(id, FinishReason::kTimeout, kTimedOut);
}

// The first of their deadlines.
std::optional<TimePoint> Engine::next_deadline() const {
  std::optional<TimePoint> next;
  for (const auto& [id, arrival] : held_)
    if (const auto& deadline = arrival.request->deadline)
      next = std::min(next.value_or(*deadline), *deadline);
  return next;
}

}  // namespace quire
