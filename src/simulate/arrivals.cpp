#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "simulate/simulation.h"

namespace quire {
namespace {

constexpr TokenId kEndToken = std::numeric_limits<TokenId>::max();  // ends every sequence

class ArrivalReader final : public SchedulerObserver {
 public:
  std::vector<Arrival> arrivals;

  // An event has been told, and was then.
  void at(double time) {
    for (; timed_ < arrivals.size(); ++timed_) arrivals[timed_].seconds = time;
  }

  void added(const SequenceRequest& request) override {
    if (request.beam_width > 0) fail("sequence {} is a beam search, which is not simulated", request.id);
    const auto num_outputs = static_cast<std::size_t>(request.num_outputs);
    for (std::size_t i = 0; i < num_outputs; ++i) places_[request.id + i] = {arrivals.size(), i};
    auto copy = std::make_shared<SequenceRequest>(request);
    copy->sampling.stop_ids.push_back(kEndToken);
    arrivals.emplace_back().request = std::move(copy);
    arrivals.back().outputs.resize(num_outputs);
  }
  void aborted(SequenceId id) override {
    if (places_.erase(id) > 0) arrivals.emplace_back().aborted = id;
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
    for (const SequenceUpdate& update : updates) append(id, *update.token);
    end(updates.back());
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { foreseen_.clear(); }

  // Those that have not ended do so with the next token.
  void close() {
    for (const auto& [id, place] : places_) append(id, kEndToken);
  }

 private:
  struct Place {
    std::size_t arrival = 0, output = 0;
  };

  void append(SequenceId id, TokenId token) {
    const auto place = places_.find(id);
    if (place == places_.end()) return;
    arrivals[place->second.arrival].outputs[place->second.output].push_back(token);
  }
  // What broke off without a token ends at the next one.
  void end(const SequenceUpdate& update) {
    if (update.finish == FinishReason::kError) append(update.id, kEndToken);
    if (update.finish != FinishReason::kNone) places_.erase(update.id);
  }

  std::map<SequenceId, Place> places_;  // of those that have not ended
  std::set<SequenceId> foreseen_;       // what their newest step samples
  std::size_t timed_ = 0;
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

}  // namespace

std::vector<Arrival> recorded_arrivals(const Recording& recording, int block_size) {
  const RecordingInfo& info = recording.info();
  if (!info.from_start)
    fail("the recording is the last part of one, and has no beginning to be simulated from");
  const int recorded = info.scheduler.layout.block_size;
  if (!info.with_tokens && block_size % recorded != 0)
    fail("the recording knows which blocks of {} tokens are equal, and nothing of blocks of {}", recorded,
         block_size);
  ArrivalReader reader;
  recording.read(reader, [&reader](std::uint64_t time) {
    reader.at(1e-6 * static_cast<double>(time));
    return true;
  });
  reader.close();
  return std::move(reader.arrivals);
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

}  // namespace quire
