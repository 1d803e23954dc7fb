#include "simulate/simulation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr TokenId kEndToken = std::numeric_limits<TokenId>::max();  // ends every sequence

class ArrivalReader final : public SchedulerObserver {
 public:
  std::vector<Arrival> arrivals;

  explicit ArrivalReader(const Recording& recording) : reader_(recording) {
    while (reader_.next(*this)) {
    }
    // Those that have not ended do so with the next token.
    for (const auto& [id, tokens] : outputs_) tokens->push_back(kEndToken);
  }

  void added(const SequenceRequest& request) override {
    if (request.beam_width > 0) fail("sequence {} is a beam search, which is not simulated", request.id);
    auto copy = std::make_shared<SequenceRequest>(request);
    copy->sampling.stop_ids.push_back(kEndToken);
    arrivals.push_back({.seconds = reader_.seconds(), .request = std::move(copy)});
    arrivals.back().outputs.resize(static_cast<std::size_t>(request.num_outputs));
    for (SequenceId id = request.id; auto& tokens : arrivals.back().outputs) outputs_[id++] = &tokens;
  }
  void aborted(SequenceId id) override {
    if (outputs_.erase(id) > 0) arrivals.push_back({.seconds = reader_.seconds(), .aborted = id});
  }
  void planned(const StepPlan* /*plan*/, std::span<const PlanningFailure> failures) override {
    for (const PlanningFailure& failure : failures) aborted(failure.id);
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override {
    for (const SequenceResult& sequence : result.sequences)
      if (sequence.token >= 0 && foreseen_.erase(sequence.sequence) == 0)
        append(sequence.sequence, sequence.token);
    for (const SequenceUpdate& update : updates) end(update);
  }
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override {
    foreseen_.insert(id);
    for (const SequenceUpdate& update : updates) {
      append(id, *update.token);
      end(update);
    }
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { foreseen_.clear(); }

 private:
  void append(SequenceId id, TokenId token) {
    if (const auto output = outputs_.find(id); output != outputs_.end()) output->second->push_back(token);
  }
  // What broke off without a token ends at the next one.
  void end(const SequenceUpdate& update) {
    if (update.finish == FinishReason::kError) append(update.id, kEndToken);
    if (update.finish != FinishReason::kNone) outputs_.erase(update.id);
  }

  RecordingReader reader_;
  std::map<SequenceId, std::vector<TokenId>*> outputs_;  // of those that have not ended; none moves
  std::set<SequenceId> foreseen_;                        // what their newest step samples
};

std::shared_ptr<SequenceRequest> make_request(const GeneratedLoad& load, std::size_t index, SequenceId id) {
  auto request = std::make_shared<SequenceRequest>();
  request->id = id;
  request->num_outputs = load.num_outputs;
  request->first_sibling = load.num_outputs > 1 ? id : 0;
  const auto prefix_len = static_cast<std::size_t>(load.prefix_len);
  const auto num_prefixes = static_cast<std::size_t>(load.num_prefixes);
  request->prompt.resize(prefix_len + static_cast<std::size_t>(load.sizes[index].prompt_tokens));
  // Different first tokens make different prefixes, whatever follows.
  if (prefix_len > 0) request->prompt.front() = static_cast<TokenId>(1 + index % num_prefixes);
  request->prompt[prefix_len] = static_cast<TokenId>(1 + num_prefixes + index);
  request->max_tokens = load.sizes[index].output_tokens;
  return request;
}

// Of a double's bits those that count: the exponent, and so much of the fraction as makes a thousandth.
constexpr int kDroppedBits = 42;
constexpr double kLeast = 1e-9;

std::size_t bin_of(double seconds) {
  const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value) >> kDroppedBits; };
  return static_cast<std::size_t>(bits(std::max(seconds, kLeast)) - bits(kLeast));
}

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const Arrivals& arrivals)
      : options_(options),
        arrivals_(arrivals),
        scheduler_([&] {
          SchedulerConfig config = options.scheduler;
          config.hash_seed = config.hash_seed.value_or(0);  // no run differs from another
          return config;
        }()),
        seats_(static_cast<std::size_t>(options.scheduler.max_num_seqs)),
        next_(arrivals()) {}

  SimulationResult run() {
    while (true) {
      take_arrivals();
      if (!scheduler_.has_unfinished() && in_flight_.empty()) {
        if (!next_) break;
        now_ = std::max(now_, next_->seconds);
        continue;
      }
      const bool has_room = scheduler_.num_in_flight() < options_.steps_in_flight;
      if (has_room && queue_step()) continue;
      QUIRE_CHECK(!in_flight_.empty(), "nothing can be planned");
      collect_step();
    }
    result_.seconds = now_;
    result_.scheduler = scheduler_.stats();
    return std::move(result_);
  }

 private:
  struct Output {
    double came = 0;             // when its request did
    std::optional<double> last;  // when its last token was there
    std::size_t num_sampled = 0;
    std::vector<TokenId> tokens;
  };
  struct Step {
    StepResult result;
    std::vector<std::pair<SequenceId, Output*>> outputs;  // of the result's sequences
    double end = 0;
  };

  // Those that have come by now.
  void take_arrivals() {
    for (; next_ && next_->seconds <= now_; next_ = arrivals_()) {
      if (!next_->request) {
        if (scheduler_.abort(next_->aborted)) end(next_->aborted, result_.num_aborted);
        continue;
      }
      if (outputs_.size() >= options_.max_concurrency) {
        waits_for_room_ = true;
        return;
      }
      if (static_cast<std::size_t>(scheduler_.stats().num_waiting) >= options_.max_waiting) return;
      add(*next_, std::exchange(waits_for_room_, false) ? now_ : next_->seconds);
    }
  }

  void add(Arrival& arrival, double came) {
    const SequenceRequest& request = *arrival.request;
    try {
      scheduler_.add(arrival.request);
    } catch (const Error&) {
      ++result_.num_refused;
      return;
    }
    result_.prompt_tokens += request.prompt.size();
    arrival.outputs.resize(request.num_outputs);
    for (SequenceId id = request.id; std::vector<TokenId> & tokens : arrival.outputs)
      outputs_[id++] = {.came = came, .last = {}, .tokens = std::move(tokens)};
  }

  // False: there is nothing to plan.
  bool queue_step() {
    const std::optional<StepPlan> plan = scheduler_.schedule();
    if (!plan) return false;
    Step& step = in_flight_.emplace_back();
    step.result.id = plan->id;
    step.result.sequences.reserve(plan->sequences.size());
    step.outputs.reserve(plan->sequences.size());
    for (const SequencePlan& sequence : plan->sequences) {
      Output*& output = seats_[sequence.seat];
      if (sequence.start) output = &outputs_.at(sequence.sequence);
      step.outputs.emplace_back(sequence.sequence, output);
      step.result.sequences.push_back({.sequence = sequence.sequence});
      if (sequence.sample) step.result.sequences.back().token = next_token(*output);
    }
    const double seconds = options_.seconds(*plan);
    step.end = std::max(now_, last_end_) + seconds;
    last_end_ = step.end;
    if (options_.steps_in_flight == 1) now_ = step.end;  // it is computed as it is submitted
    ++result_.num_steps;
    result_.computed_tokens += static_cast<std::uint64_t>(plan->num_tokens);
    result_.busy_seconds += seconds;
    return true;
  }

  static TokenId next_token(Output& output) {
    const std::size_t at = output.num_sampled++;
    return at < output.tokens.size() ? output.tokens[at] : 0;
  }

  void collect_step() {
    Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    now_ = std::max(now_, step.end);
    auto next = step.outputs.begin();
    for (const SequenceUpdate& update : scheduler_.apply(std::move(step.result))) {
      while (next->first != update.id) ++next;
      if (update.token) book_token(*next->second);
      if (update.finish == FinishReason::kNone) continue;
      result_.e2e.add(now_ - next->second->came);
      end(update.id, result_.num_done);
    }
  }

  void book_token(Output& output) {
    ++result_.output_tokens;
    if (output.last)
      result_.itl.add(now_ - *output.last);
    else
      result_.ttft.add(now_ - output.came);
    output.last = now_;
  }

  void end(SequenceId id, std::uint64_t& count) {
    outputs_.erase(id);
    ++count;
    if (options_.on_progress) options_.on_progress(result_.num_done + result_.num_aborted);
  }

  const SimulationOptions& options_;
  const Arrivals& arrivals_;
  Scheduler scheduler_;
  std::unordered_map<SequenceId, Output> outputs_;  // of those that have not ended; addresses are stable
  std::vector<Output*> seats_;                      // who has each seat, or had it
  std::deque<Step> in_flight_;
  std::optional<Arrival> next_;
  bool waits_for_room_ = false;  // the next one
  double now_ = 0, last_end_ = 0;
  SimulationResult result_;
};

}  // namespace

std::vector<Arrival> recorded_arrivals(const Recording& recording, int block_size) {
  const RecordingInfo& info = recording.info();
  if (!info.from_start)
    fail("the recording is the last part of one, and has no beginning to be simulated from");
  const int recorded = info.scheduler.layout.block_size;
  if (!info.with_tokens && block_size % recorded != 0)
    fail("the recording knows which blocks of {} tokens are equal, and nothing of blocks of {}", recorded,
         block_size);
  return std::move(ArrivalReader(recording).arrivals);
}

Arrivals replay(std::span<const Arrival> arrivals) {
  return [arrivals, next = std::size_t{0}]() mutable -> std::optional<Arrival> {
    return next < arrivals.size() ? std::optional(arrivals[next++]) : std::nullopt;
  };
}

Arrivals generate(const GeneratedLoad& load) {
  return [&load, next = std::size_t{0}]() mutable -> std::optional<Arrival> {
    if (next == load.sizes.size()) return std::nullopt;
    const auto id = 1 + static_cast<SequenceId>(next) * static_cast<SequenceId>(load.num_outputs);
    Arrival arrival{.seconds = load.times[next], .request = make_request(load, next, id)};
    ++next;
    return arrival;
  };
}

void Times::add(double seconds) {
  const std::size_t at = bin_of(seconds);
  if (at >= bins_.size()) bins_.resize(at + 1);
  ++bins_[at].count;
  bins_[at].sum += seconds;
  ++count_;
  sum_ += seconds;
}

double Times::percentile(double fraction) const {
  const auto rank = static_cast<std::uint64_t>(std::round(fraction * static_cast<double>(count_ - 1)));
  std::uint64_t below = 0;
  for (const Bin& bin : bins_) {
    below += bin.count;
    if (below > rank) return bin.sum / static_cast<double>(bin.count);
  }
  return std::nan("");
}

SimulationResult simulate(const SimulationOptions& options, const Arrivals& arrivals) {
  return Simulation(options, arrivals).run();
}

}  // namespace quire
