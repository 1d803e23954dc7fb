#include "inspect/plain_loops.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

Round begin_round(std::size_t num_requests) {
  Round round;
  round.outputs.assign(num_requests, {{}, {BenchClock::now()}});
  return round;
}

void end_round(Round& round) {
  round.seconds = seconds_between(round.outputs.front().times.front(), BenchClock::now());
}

void add_token(TimedOutput& output, TokenId token) {
  output.tokens.push_back(token);
  output.times.push_back(BenchClock::now());
}

}  // namespace

PlainLoops::PlainLoops(EngineConfig config, ModelFiles model, int batch, EngineHooks hooks)
    : setup_{std::move(config), std::move(model), std::move(hooks)},
      batch_(batch),
      num_rows_(static_cast<std::size_t>(2 * batch)) {
  setup_.config.max_num_seqs = 2 * batch;  // each sequence has a second seat, for its padding
  ranks_ = make_rank_group(setup_);
  ranks_->open();
  const RuntimeConfig& runtime = ranks_->resolve();
  QUIRE_CHECK(runtime.num_blocks >= batch * runtime.max_table_rows() * runtime.cache.layout.num_lanes());
  ranks_->load();
}

Round PlainLoops::run_without_cache(std::span<const EngineRequest> requests) {
  Round round = begin_round(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::vector<TokenId> tokens = requests[i].prompt;
    for (int n = 0; n < requests[i].params.max_tokens; ++n) {
      StepPlan plan;
      add_span(plan, 0, 0, 0, tokens);
      tokens.push_back(run(std::move(plan)).front());
      add_token(round.outputs[i], tokens.back());
    }
  }
  end_round(round);
  return round;
}

Round PlainLoops::run_in_batches(std::span<const EngineRequest> requests) {
  Round round = begin_round(requests.size());
  const auto length = [](const EngineRequest& request) { return static_cast<int>(request.prompt.size()); };
  const auto output_length = [](const EngineRequest& request) { return request.params.max_tokens; };
  for (std::size_t first = 0; first < requests.size(); first += static_cast<std::size_t>(batch_)) {
    const auto members = requests.subspan(first, std::min(requests.size() - first, num_rows_.size() / 2));
    const int longest_prompt = length(std::ranges::max(members, {}, length));
    const int longest_output = output_length(std::ranges::max(members, {}, output_length));
    for (int n = 0; n < longest_output; ++n) {
      StepPlan plan;
      for (int i = 0; i < static_cast<int>(members.size()); ++i) {
        const EngineRequest& member = members[i];
        // Who is done goes on in place, for nobody.
        if (n > 0) add_span(plan, i, i, length(member) + std::min(n, output_length(member)) - 1, {});
        if (n > 0) continue;
        add_span(plan, i, i, 0, member.prompt);
        // A span is sampled behind its last token, so padding is a span behind it: in another seat, on the
        // same blocks, where the output's tokens will be written.
        num_rows_[batch_ + i] = 0;
        if (const int padding = longest_prompt - length(member); padding > 0)
          add_span(plan, batch_ + i, i, length(member), std::vector<TokenId>(padding));
      }
      const std::vector<TokenId> sampled = run(std::move(plan));
      for (std::size_t i = 0; i < members.size(); ++i)
        if (n < output_length(members[i])) add_token(round.outputs[first + i], sampled[i]);
    }
  }
  end_round(round);
  return round;
}

void PlainLoops::add_span(StepPlan& plan, int seat, int place, int first_position,
                          std::vector<TokenId> tokens) {
  const RuntimeConfig& config = ranks_->own().config();
  const CacheLayout& layout = config.cache.layout;
  SequencePlan& span = plan.sequences.emplace_back();
  span.sequence = static_cast<SequenceId>(seat + 1);
  span.seat = seat;
  span.first_position = first_position;
  span.num_tokens = tokens.empty() ? 1 : static_cast<int>(tokens.size());
  span.tokens = std::move(tokens);
  plan.num_tokens += span.num_tokens;
  int& num_rows = num_rows_[seat];
  if (first_position == 0) {
    span.start.emplace();  // greedy
    num_rows = 0;
  }
  span.first_new_row = num_rows;
  for (; num_rows < layout.rows_for(first_position + span.num_tokens); ++num_rows)
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      span.new_blocks.push_back((place * config.max_table_rows() + num_rows) * layout.num_lanes() + lane);
  span.sample = seat == place;  // padding is not
  span.output = span.sample ? OutputKind::kLast : OutputKind::kNone;
}

std::vector<TokenId> PlainLoops::run(StepPlan plan) {
  plan.id = ++num_steps_;
  ranks_->submit(std::move(plan));
  std::vector<TokenId> sampled;
  for (const SequenceResult& result : ranks_->collect().sequences) {
    if (result.token == SequenceResult::kInvalidLogits) fail("bench: the model's logits are not finite");
    if (result.token != SequenceResult::kNoToken) sampled.push_back(result.token);
  }
  return sampled;
}

}  // namespace quire
