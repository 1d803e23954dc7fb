#include "inspect/plain_loops.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// Each sequence has a second seat, for its padding.
EngineConfig with_padding_seats(EngineConfig config, int batch) {
  config.max_num_seqs = 2 * batch;
  return config;
}

}  // namespace

PlainLoops::PlainLoops(EngineConfig config, ModelFiles model, int batch, EngineHooks hooks)
    : setup_{with_padding_seats(std::move(config), batch), std::move(model), std::move(hooks)},
      batch_(batch),
      ranks_(make_rank_group(setup_)),
      num_rows_(static_cast<std::size_t>(2 * batch)) {
  ranks_->open();
  const RuntimeConfig& runtime = ranks_->resolve();
  QUIRE_CHECK(runtime.num_state_slots == 0);
  QUIRE_CHECK(runtime.num_blocks >= batch * runtime.max_table_rows() * runtime.cache.layout.num_lanes());
  ranks_->load();
  ranks_->capture_graphs();
}

Round PlainLoops::begin(std::size_t num_requests) {
  Round round;
  round.outputs.resize(num_requests);
  for (TimedOutput& output : round.outputs) output.times.push_back(BenchClock::now());
  return round;
}

Round PlainLoops::run_without_cache(std::span<const TokenRequest> requests,
                                    const std::function<void()>& on_token) {
  Round round = begin(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    TimedOutput& output = round.outputs[i];
    std::vector<TokenId> tokens = requests[i].prompt;
    for (int n = 0; n < requests[i].output_tokens; ++n) {
      PlainStep step;
      add_span(step, 0, 0, 0, tokens, &output);
      submit(std::move(step), on_token);
      collect(on_token);
      tokens.push_back(output.tokens.back());
    }
  }
  round.seconds = seconds_between(round.outputs.front().times.front(), BenchClock::now());
  return round;
}

Round PlainLoops::run_in_batches(std::span<const TokenRequest> requests,
                                 const std::function<void()>& on_token) {
  Round round = begin(requests.size());
  for (std::size_t first = 0; first < requests.size(); first += static_cast<std::size_t>(batch_)) {
    const std::size_t count = std::min(requests.size() - first, static_cast<std::size_t>(batch_));
    const auto members = requests.subspan(first, count);
    const auto outputs = std::span(round.outputs).subspan(first, count);
    submit(prompt_step(members, outputs), on_token);
    const int longest = std::ranges::max(members, {}, &TokenRequest::output_tokens).output_tokens;
    for (int n = 1; n < longest; ++n) {
      PlainStep step;
      for (std::size_t i = 0; i < count; ++i) {
        // Who is done goes on in place, for nobody.
        const bool wanted = n < members[i].output_tokens;
        const int last = std::min(n, members[i].output_tokens);
        add_span(step, static_cast<int>(i), static_cast<int>(i),
                 static_cast<int>(members[i].prompt.size()) + last - 1, {}, wanted ? &outputs[i] : nullptr);
      }
      submit(std::move(step), on_token);
    }
    while (!in_flight_.empty()) collect(on_token);
  }
  round.seconds = seconds_between(round.outputs.front().times.front(), BenchClock::now());
  return round;
}

// A span is sampled from behind its last token, so the padding of a prompt is a span behind it. What it
// writes lies where the output's tokens will write.
PlainLoops::PlainStep PlainLoops::prompt_step(std::span<const TokenRequest> requests,
                                              std::span<TimedOutput> outputs) {
  const auto length = [](const TokenRequest& request) { return request.prompt.size(); };
  const std::size_t longest = std::ranges::max(requests, {}, length).prompt.size();
  PlainStep step;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::vector<TokenId>& prompt = requests[i].prompt;
    const int seat = static_cast<int>(i);
    add_span(step, seat, seat, 0, prompt, &outputs[i]);
    num_rows_[i + static_cast<std::size_t>(batch_)] = 0;
    if (prompt.size() < longest)
      add_span(step, seat + batch_, seat, static_cast<int>(prompt.size()),
               std::vector<TokenId>(longest - prompt.size()), nullptr);
  }
  return step;
}

void PlainLoops::add_span(PlainStep& step, int seat, int place, int first_position,
                          std::vector<TokenId> tokens, TimedOutput* output) {
  const CacheLayout& layout = config().cache.layout;
  SequencePlan& span = step.plan.sequences.emplace_back();
  span.sequence = static_cast<SequenceId>(seat + 1);
  span.seat = seat;
  span.first_position = first_position;
  span.num_tokens = tokens.empty() ? 1 : static_cast<int>(tokens.size());
  span.tokens = std::move(tokens);
  int& num_rows = num_rows_[static_cast<std::size_t>(seat)];
  if (first_position == 0) {
    span.start.emplace();  // greedy
    num_rows = 0;
  }
  span.first_new_row = num_rows;
  const int most_rows = config().max_table_rows();
  for (; num_rows < layout.rows_for(first_position + span.num_tokens); ++num_rows)
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      span.new_blocks.push_back((place * most_rows + num_rows) * layout.num_lanes() + lane);
  // Who waits for the batch is sampled, too: one does not tell apart.
  const bool is_padding = seat != place;
  span.sample = !is_padding;
  span.output = is_padding ? OutputKind::kNone : OutputKind::kLast;
  step.plan.num_tokens += span.num_tokens;
  step.outputs.push_back(output);
}

void PlainLoops::submit(PlainStep step, const std::function<void()>& on_token) {
  // As many as an engine has, on a device that computes behind the caller's back.
  if (in_flight_.size() == ModelRunner::kMaxInFlight) collect(on_token);
  step.plan.id = ++num_steps_;
  ranks_->submit(std::move(step.plan));
  in_flight_.push_back(std::move(step.outputs));
}

void PlainLoops::collect(const std::function<void()>& on_token) {
  const StepResult result = ranks_->collect();
  const BenchClock::time_point now = BenchClock::now();
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    TimedOutput* const output = in_flight_.front()[i];
    if (output == nullptr) continue;
    const TokenId token = result.sequences[i].token;
    if (token < 0) fail("bench: the model's logits are not finite");
    output->tokens.push_back(token);
    output->times.push_back(now);
    if (on_token) on_token();
  }
  in_flight_.erase(in_flight_.begin());
}

}  // namespace quire
