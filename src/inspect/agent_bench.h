// The load of agents: conversations with one system prompt. A turn's prompt is all before it, outputs too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model_files.h"
#include "tokenizer/token_id.h"

namespace quire {

struct AgentSizes {
  int system_tokens = 8192;              // that all conversations begin with
  int turns = 20;                        // of a conversation
  std::pair<int, int> input{200, 2000};  // least and most tokens that a turn adds to the prompt, drawn evenly
  std::pair<int, int> output{100, 400};  // of its output
  int conversations = 16;
  int vocab_size = 4096;  // tokens are random ones below that
  std::uint64_t seed = 0;
};

// A request of a conversation, and what came of it.
struct AgentTurn {
  int conversation = 0;
  int number = 0;               // in it, from 0
  std::vector<TokenId> prompt;  // of a workload: what is new in it; once it has ended: empty
  int prompt_tokens = 0;
  // Of the prompt, the longest prefix that requests which ended before had computed: prompts, and outputs but
  // for their last token.
  int reusable_tokens = 0;
  int output_tokens = 0;                  // asked for, EOS ignored; then those that came
  std::vector<TokenId> output = {};       // empty: not told
  std::optional<int> cached_tokens = {};  // of the prompt; unset: not told
  double first_token_ms = 0;              // since submission, as the caller sees it
  double end_s = 0;                       // since the load began
  std::string error = {};                 // why there is no output
};

struct AgentWorkload {
  std::vector<TokenId> system;
  std::vector<AgentTurn> turns;  // one conversation after the other
  int num_turns = 0;             // of each
  int longest = 0;               // tokens of a conversation at its end
};
// Error where a least length is above the most.
AgentWorkload make_agent_workload(const AgentSizes& sizes);

// What answers turns, for one thread.
class TurnRunner {
 public:
  virtual ~TurnRunner() = default;  // cancels those under way
  virtual void start(AgentTurn turn) = 0;
  // Those that have ended since the last call, waited for; perhaps none, after 100 ms.
  virtual std::vector<AgentTurn> wait() = 0;
};

// An engine in this process. max_model_len 0: what the workload needs; Error where it is less than that.
std::unique_ptr<TurnRunner> engine_turns(EngineConfig config, ModelFiles model, const AgentWorkload& workload,
                                         float temperature);

// The turns, as they ended, until `interrupted`, asked often, is true. One that fails ends its conversation.
// Where an output is not told, the prompt's last token stands in for its tokens in the prompts that follow.
std::vector<AgentTurn> run_agents(TurnRunner& runner, const AgentWorkload& workload, int concurrency,
                                  const std::function<bool()>& interrupted = {},
                                  const std::function<void(std::size_t, std::size_t)>& on_progress = {});

}  // namespace quire
