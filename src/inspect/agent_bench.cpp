#include "inspect/agent_bench.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <span>
#include <unordered_set>

#include "base/error.h"
#include "base/threads.h"
#include "inspect/bench.h"

namespace quire {
namespace {

// Gives `take` 64 bits for each prefix, the shortest first, until it is false; how many it took.
template <typename Take>
int take_prefixes(std::span<const TokenId> tokens, const Take& take) {
  std::uint64_t hash = 0;
  int taken = 0;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 0x9e3779b97f4a7c15U;
    if (!take(hash ^= hash >> 32U)) break;
    ++taken;
  }
  return taken;
}

class EngineTurns final : public TurnRunner {
 public:
  EngineTurns(const EngineConfig& config, ModelFiles model, float temperature)
      : temperature_(temperature), engine_(config, std::move(model)) {}

  void start(AgentTurn turn) override {
    EngineRequest request = sized_request(turn.prompt, turn.output_tokens, temperature_);
    request.on_update = [this, turn = std::move(turn),
                         sent = BenchClock::now()](const RequestUpdate& update) mutable {
      if (turn.first_token_ms == 0 && !update.output.token_ids.empty())
        turn.first_token_ms = 1e3 * seconds_between(sent, BenchClock::now());
      if (!update.finished) return;
      turn.output = update.output.token_ids;
      turn.output_tokens = static_cast<int>(turn.output.size());
      turn.cached_tokens = update.request.num_cached_tokens;
      turn.error = update.output.error;
      change_and_wake(mutex_, changed_, [&] { ended_.push_back(std::move(turn)); });
    };
    engine_.submit(std::move(request));
  }

  std::vector<AgentTurn> wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return !ended_.empty(); });
    return std::exchange(ended_, {});
  }

 private:
  const float temperature_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<AgentTurn> ended_;  // guarded by mutex_
  Engine engine_;                 // the last member: its callbacks use the others
};

}  // namespace

AgentWorkload make_agent_workload(const AgentSizes& sizes) {
  for (const auto& [least, most] : {sizes.input, sizes.output})
    if (least > most) fail("lengths from {} to {}: give the least, then the most", least, most);
  std::mt19937_64 random(sizes.seed);
  const auto between = [&](std::pair<int, int> range) {
    return std::uniform_int_distribution(range.first, range.second)(random);
  };
  const auto draw = [&](int count) { return random_tokens(count, sizes.vocab_size, random, kFirstTokenId); };
  AgentWorkload workload{.system = draw(sizes.system_tokens), .turns = {}, .num_turns = sizes.turns};
  for (int i = 0; i < sizes.conversations; ++i) {
    int tokens = sizes.system_tokens;
    for (int j = 0; j < sizes.turns; ++j) {
      const int input_tokens = between(sizes.input), output_tokens = between(sizes.output);
      workload.turns.push_back({i, j, draw(input_tokens), 0, 0, output_tokens});
      tokens += input_tokens + output_tokens;
    }
    workload.longest = std::max(workload.longest, tokens);
  }
  return workload;
}

std::unique_ptr<TurnRunner> engine_turns(EngineConfig config, ModelFiles model, const AgentWorkload& workload,
                                         float temperature) {
  if (config.max_model_len == 0) config.max_model_len = workload.longest;
  if (config.max_model_len < workload.longest)
    fail("max-model-len is {}; a conversation has {} tokens", config.max_model_len, workload.longest);
  return std::make_unique<EngineTurns>(config, std::move(model), temperature);
}

std::vector<AgentTurn> run_agents(TurnRunner& runner, const AgentWorkload& workload, int concurrency,
                                  const std::function<bool()>& interrupted,
                                  const std::function<void(std::size_t, std::size_t)>& on_progress) {
  const auto start = BenchClock::now();
  const int num_conversations = static_cast<int>(workload.turns.size()) / workload.num_turns;
  int num_begun = 0, num_running = 0;
  std::unordered_set<std::uint64_t> computed;  // prefixes
  std::vector<AgentTurn> turns;
  const auto send = [&](int index, std::vector<TokenId> text) {
    AgentTurn turn = workload.turns[index];
    text.insert(text.end(), turn.prompt.begin(), turn.prompt.end());
    turn.reusable_tokens = take_prefixes(text, [&](std::uint64_t hash) { return computed.contains(hash); });
    turn.prompt_tokens = static_cast<int>(text.size());
    turn.prompt = std::move(text);
    runner.start(std::move(turn));
  };
  const auto take = [&](AgentTurn& turn) {
    turn.end_s = seconds_between(start, BenchClock::now());
    std::vector<TokenId> text = std::exchange(turn.prompt, {});
    text.insert(text.end(), turn.output.begin(), turn.output.end());
    if (turn.error.empty())
      take_prefixes(std::span(text).first(text.size() - (turn.output.empty() ? 0 : 1)),
                    [&](std::uint64_t hash) { return computed.insert(hash), true; });
    if (turn.output.empty())
      text.insert(text.end(), static_cast<std::size_t>(turn.output_tokens), text.back());
    const bool goes_on = turn.error.empty() && turn.number + 1 < workload.num_turns;
    if (goes_on) send(turn.conversation * workload.num_turns + turn.number + 1, std::move(text));
    if (!goes_on) --num_running;
    turns.push_back(std::move(turn));
    if (on_progress) on_progress(turns.size(), workload.turns.size());
  };
  while ((num_running > 0 || num_begun < num_conversations) && !(interrupted && interrupted())) {
    for (; num_running < concurrency && num_begun < num_conversations; ++num_running)
      send(workload.num_turns * num_begun++, workload.system);
    for (AgentTurn& turn : runner.wait()) take(turn);
  }
  return turns;
}

}  // namespace quire
