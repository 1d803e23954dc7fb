#include "simulate/step_costs.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "base/json.h"
#include "inspect/bench.h"

namespace quire {
namespace {

constexpr int kVersion = 1;
constexpr double kClock = 1e-6;  // what recordings tell apart
constexpr std::array<const char*, StepShape::kNumTerms> kTermNames = {"step", "sequence", "decode_pair",
                                                                      "chunk_pair", "copy"};

// How often each cost counts.
std::vector<double> terms_of(const StepShape& shape, const std::vector<double>& from) {
  std::vector<double> terms(shape.counts.begin(), shape.counts.end());
  for (std::size_t i = 0; i < from.size(); ++i) {
    const double to = i + 1 < from.size() ? from[i + 1] : HUGE_VAL;
    terms.push_back(std::clamp(shape.tokens, from[i], to) - from[i]);
  }
  return terms;
}

// The x of least |rows x - targets|² with no element below 0, by coordinate descent.
std::vector<double> least_squares(const std::vector<std::vector<double>>& rows,
                                  const std::vector<double>& targets) {
  constexpr int kRounds = 20'000;
  const std::size_t n = rows.front().size();
  std::vector<std::vector<double>> gram(n, std::vector<double>(n));
  std::vector<double> target(n), x(n);
  for (std::size_t k = 0; k < rows.size(); ++k) {
    for (std::size_t i = 0; i < n; ++i) {
      target[i] += rows[k][i] * targets[k];
      for (std::size_t j = 0; j < n; ++j) gram[i][j] += rows[k][i] * rows[k][j];
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < n; ++i) {
      if (gram[i][i] == 0) continue;
      const double rest = target[i] - std::inner_product(x.begin(), x.end(), gram[i].begin(), 0.0);
      x[i] = std::max(0.0, x[i] + rest / gram[i][i]);
    }
  }
  return x;
}

// Takes the time of each step of a recording.
class StepTimer final : public SchedulerObserver {
 public:
  explicit StepTimer(const Recording& recording)
      : reader_(recording), layout_(recording.info().scheduler.layout) {
    while (reader_.next(*this)) {
    }
  }

  std::vector<MeasuredStep> steps;
  std::size_t most_in_flight = 0;

  void added(const SequenceRequest& request) override { alive_ += request.num_outputs; }
  void aborted(SequenceId /*id*/) override { --alive_; }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override {
    alive_ -= static_cast<int>(failures.size());
    if (plan == nullptr) return;
    StepPlan whole = *plan;
    for (SequencePlan& sequence : whole.sequences) {
      int& position = positions_[sequence.sequence];
      if (!sequence.start && sequence.num_tokens == 1)
        sequence.first_position = position;  // it is not recorded
      const std::int64_t end = std::int64_t{sequence.first_position} + sequence.num_tokens;
      if (!std::in_range<int>(end)) fail("sequence {} has {} tokens", sequence.sequence, end);
      position = static_cast<int>(end);
    }
    in_flight_.emplace_back(StepShape(whole, layout_), reader_.seconds());
    most_in_flight = std::max(most_in_flight, in_flight_.size());
  }
  void applied(const StepResult& /*result*/, std::span<const SequenceUpdate> updates) override {
    foreseen(0, updates);
    if (in_flight_.empty()) return;
    const auto [shape, start] = in_flight_.front();
    in_flight_.pop_front();
    const double now = reader_.seconds();
    steps.push_back({shape, std::max(now - (was_busy_ ? ended_ : start), kClock)});
    ended_ = now;
    was_busy_ = alive_ > 0;
  }
  void foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> updates) override {
    for (const SequenceUpdate& update : updates) alive_ -= update.finish == FinishReason::kNone ? 0 : 1;
  }
  void forked(SequenceId first, std::span<const BeamFork> forks) override {
    int& num_beams = num_beams_.try_emplace(first, 1).first->second;
    alive_ += static_cast<int>(forks.size()) - std::exchange(num_beams, static_cast<int>(forks.size()));
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override {
    in_flight_.clear();
    was_busy_ = false;
  }

 private:
  RecordingReader reader_;
  const CacheLayout& layout_;
  std::deque<std::pair<StepShape, double>> in_flight_;  // and when each was planned
  std::map<SequenceId, int> positions_;                 // behind what was planned
  std::map<SequenceId, int> num_beams_;                 // of each search that was forked
  std::int64_t alive_ = 0;                              // sequences
  bool was_busy_ = false;                               // when the last step ended, there was more to do
  double ended_ = 0;
};

const Json& member(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) fail("{} is missing", key);
  return *found;
}

double number(const Json& value, const char* what, double least = 0, double most = 1e12) {
  if (!value.is_number() || !(value >= least) || value > most)
    fail("{} must be a number from {} to {}", what, least, most);
  return value.get<double>();
}

StepCosts read_costs(const Json& seconds, const Json& tokens) {
  StepCosts costs{.from = {}, .each = {}};
  for (const char* const name : kTermNames) costs.each.push_back(number(member(seconds, name), name));
  for (const Json& pair : tokens) {
    if (!pair.is_array() || pair.size() != 2)
      fail("tokens must be a list of pairs: from how many tokens on, and what each costs");
    costs.from.push_back(number(pair[0], "what tokens begin with"));
    costs.each.push_back(number(pair[1], "what a token costs"));
  }
  if (costs.from.empty() || costs.from.front() != 0 ||
      std::ranges::adjacent_find(costs.from, std::ranges::greater_equal()) != costs.from.end())
    fail("tokens must begin with 0 and rise");
  return costs;
}

MachineCosts to_machine(const Json& object) {
  number(member(object, "version"), "version", kVersion, kVersion);
  for (const char* const key : {"model", "device"})
    if (!member(object, key).is_string()) fail("{} must be a text", key);
  return {
      .model = object["model"],
      .device = object["device"],
      .steps_in_flight = static_cast<int>(number(member(object, "steps_in_flight"), "steps_in_flight", 1, 2)),
      .block_bytes = number(member(object, "block_bytes"), "block_bytes"),
      .costs = read_costs(member(object, "seconds"), member(object, "tokens")),
      .scheduler = read_scheduler_config(member(object, "scheduler"))};
}

using Round = std::vector<RequestSize>;  // requests that come at once

std::int64_t num_tokens(const Round& round) {
  std::int64_t sum = 0;
  for (const RequestSize& size : round) sum += size.prompt_tokens + size.output_tokens;
  return sum;
}

// Those that the engine can hold, the shortest first: each length alone, short prompts and long ones in each
// number, and mixtures, whose prompts are computed beside others' decoding.
std::vector<Round> make_rounds(const RuntimeConfig& config) {
  constexpr int kOutput = 8;
  std::vector<Round> rounds;
  for (int prompt = 1; prompt < config.max_model_len; prompt = prompt * 3 / 2 + 1)
    rounds.push_back({{prompt, kOutput}});
  for (const int prompt : {8, 64, 256, 1024, 4096})
    for (int batch = 2; batch <= config.max_num_seqs; batch = batch * 3 / 2 + 1)
      rounds.emplace_back(static_cast<std::size_t>(batch), RequestSize{prompt, kOutput});
  for (int batch = 4; batch <= 2 * config.max_num_seqs; batch *= 2)
    rounds.push_back(random_sizes({batch, 256, 2 * kOutput, 1}, 0));
  std::erase_if(rounds, [&](const Round& round) {
    const auto is_too_long = [&](const RequestSize& size) {
      return size.prompt_tokens + size.output_tokens > config.max_model_len;
    };
    return std::ranges::any_of(round, is_too_long) || num_tokens(round) > config.cached_tokens();
  });
  std::ranges::stable_sort(rounds, {}, num_tokens);
  return rounds;
}

// Twice at least; those that take long only where there is time.
void run_rounds(Engine& engine, const CostsOptions& options) {
  const auto passed = [start = BenchClock::now()] { return seconds_between(start, BenchClock::now()); };
  const auto total = static_cast<std::size_t>(std::ceil(options.seconds));
  std::vector<Round> rounds = make_rounds(engine.config());
  std::mt19937_64 random(0);
  for (int pass = 0; pass < 2 || passed() < options.seconds; ++pass) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      if (pass > 1 && passed() > options.seconds) return;
      answer_requests(engine, rounds[i], random);
      if (options.on_progress)
        options.on_progress(std::clamp(static_cast<std::size_t>(passed()), std::size_t{1}, total), total);
      if (pass == 0 && passed() > options.seconds / 2) rounds.resize(i + 1);
    }
  }
}

}  // namespace

StepShape::StepShape(const StepPlan& plan, const CacheLayout& layout) : tokens(plan.num_tokens) {
  counts[kSequence] = static_cast<double>(plan.sequences.size());
  counts[kCopy] = static_cast<double>(plan.saves.size() + plan.restores.size());
  for (const SequencePlan& sequence : plan.sequences)
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      counts[sequence.num_tokens == 1 ? kDecodePair : kChunkPair] +=
          static_cast<double>(layout.attention_pairs(lane, sequence.first_position, sequence.num_tokens));
}

double StepCosts::seconds(const StepShape& shape) const {
  const std::vector<double> terms = terms_of(shape, from);
  return std::inner_product(terms.begin(), terms.end(), each.begin(), 0.0);
}

StepCosts fit_costs(std::span<const MeasuredStep> steps) {
  std::set<StepShape> shapes;
  for (const MeasuredStep& step : steps) shapes.insert(step.shape);
  if (shapes.size() < kFewestShapes)
    fail("{} different steps are too few to fit costs to; there must be {}", shapes.size(), kFewestShapes);
  StepCosts costs;
  for (double from = 1; from < shapes.rbegin()->tokens; from *= 2) costs.from.push_back(from);
  // An error counts as a share of what is expected: as one of what was measured, steps that something held up
  // would count less than those that came through, and all would seem quicker than they are on average.
  constexpr int kRounds = 6;
  constexpr double kMostHeldUp = 3;  // times what is expected; beyond, it says nothing of the step
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::vector<double>> rows;
    std::vector<double> targets;
    for (const auto& [shape, seconds] : steps) {
      const double expected = round == 0 ? seconds : std::max(costs.seconds(shape), seconds / kMostHeldUp);
      for (double& term : rows.emplace_back(terms_of(shape, costs.from))) term /= expected;
      targets.push_back(seconds / expected);
    }
    costs.each = least_squares(rows, targets);
  }
  return costs;
}

MachineCosts fit_machine(const Recording& recording) {
  const RecordingInfo& info = recording.info();
  if (!info.from_start)
    fail("the recording is the last part of one, and does not say how far its first sequences were");
  const StepTimer timer(recording);
  MachineCosts machine{.model = info.model,
                       .device = info.device,
                       .steps_in_flight = static_cast<int>(timer.most_in_flight),
                       .costs = fit_costs(timer.steps),
                       .scheduler = info.scheduler};
  machine.costs.each[StepShape::kCopy] = info.scheduler.preemption.block_copied / 2;  // there and back
  std::vector<double> errors;
  for (const MeasuredStep& step : timer.steps)
    errors.push_back(std::abs(machine.costs.seconds(step.shape) / step.seconds - 1));
  machine.num_steps = static_cast<double>(errors.size());
  machine.median_error = percentile(errors, 0.5);
  machine.p90_error = percentile(errors, 0.9);
  return machine;
}

std::string to_json(const MachineCosts& machine) {
  const StepCosts& costs = machine.costs;
  OrderedJson seconds = OrderedJson::object(), tokens = OrderedJson::array();
  for (std::size_t i = 0; i < kTermNames.size(); ++i) seconds[kTermNames[i]] = costs.each[i];
  for (std::size_t i = 0; i < costs.from.size(); ++i)
    tokens.push_back({costs.from[i], costs.each[kTermNames.size() + i]});
  const OrderedJson object = {{"version", kVersion},
                              {"model", machine.model},
                              {"device", machine.device},
                              {"steps_in_flight", machine.steps_in_flight},
                              {"block_bytes", machine.block_bytes},
                              {"seconds", seconds},
                              {"tokens", tokens},
                              {"steps_measured", machine.num_steps},
                              {"median_error", machine.median_error},
                              {"p90_error", machine.p90_error},
                              {"scheduler", to_json(machine.scheduler)}};
  return object.dump(1) + "\n";
}

MachineCosts read_machine(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = 1 << 20;
  const std::string text = read_text_file(path, kMostBytes);
  try {
    return to_machine(parse_json(text, "costs"));
  } catch (const Error& e) {
    fail("{}: {}", path.string(), e.what());
  }
}

MachineCosts measure_costs(const CostsOptions& options, ModelFiles model) {
  constexpr double kSomeSwapSpace = 0.5;  // GiB, so that the costs of preemption are measured
  EngineConfig config = options.engine;
  if (config.swap_space == 0) config.swap_space = kSomeSwapSpace;
  double block_bytes = 0;
  {
    Engine engine(config, std::move(model));
    block_bytes = static_cast<double>(engine.config().block_bytes());
    run_rounds(engine, options);
  }
  MachineCosts machine = fit_machine(Recording(std::filesystem::path(config.record)));
  machine.block_bytes = block_bytes;
  if (options.engine.swap_space == 0)
    machine.scheduler.num_host_blocks = machine.scheduler.num_host_state_slots = 0;
  return machine;
}

}  // namespace quire
