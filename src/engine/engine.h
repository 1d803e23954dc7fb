#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/beam_rounds.h"
#include "engine/hooks.h"
#include "engine/model_files.h"
#include "engine/output_processor.h"
#include "engine/rank_group.h"
#include "engine/request.h"
#include "engine/sampling_context.h"
#include "quire/engine_config.h"
#include "scheduler/scheduler.h"

namespace quire {

// What the engine has done since it started.
struct EngineStats {
  SchedulerStats scheduler;
  std::uint64_t prefill_tokens = 0;  // computed of prompts, and again after a preemption
  std::uint64_t decode_tokens = 0;   // computed one by one, as they were sampled
  double prefill_seconds = 0;        // a step's time is shared by its tokens
  double decode_seconds = 0;
};

// One step, as it was planned and how long it took.
struct StepRecord {
  std::uint64_t tokens = 0;           // computed
  std::uint64_t prefill_tokens = 0;   // of them: of prompts, and again after a preemption
  std::uint64_t decode_tokens = 0;    // sampled
  std::uint64_t attention_pairs = 0;  // (token, token it attends to), with itself; the sum over all layers
  double seconds = 0;                 // from planned to sampled, what it waited for earlier steps apart
  std::optional<OpTimes> ops = std::nullopt;  // of a step that was profiled, whose seconds say nothing then

  double prefill_share() const {
    return tokens == 0 ? 0 : static_cast<double>(prefill_tokens) / static_cast<double>(tokens);
  }
};

// A part of the start, and how long it took.
struct StartupPhase {
  std::string name;
  double seconds = 0;
};

// A loaded model and the loop that serves it: requests come in, the scheduler plans a step, the runner
// computes it, the output processor tells the callers.
//
// Threads: submit, abort and stats may be called from any thread. Scheduler and runner belong to the engine's
// own thread, text to the output processor's.
class Engine {
 public:
  // Loads everything; Error when the model or the configuration is not usable.
  explicit Engine(const EngineConfig& config);
  // The same of a model that need not lie in files; config.model is not looked at.
  Engine(const EngineConfig& config, ModelFiles model, EngineHooks hooks = {});
  ~Engine();  // aborts what is unfinished
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Error when the parameters or token ids are wrong.
  void validate(const EngineRequest& request) const;
  // All of them, or none: Error as in validate; QueueFullError. Then the requests are left as they were, but
  // for what truncate_prompt_tokens cuts. What only the scheduler can refuse (a prompt that is empty or can
  // never fit) ends that request with FinishReason::kError.
  std::vector<RequestId> submit(std::span<EngineRequest> requests);
  RequestId submit(EngineRequest&& request);
  void abort(RequestId id);  // legal in every state, effective at the next step
  // False: a device or a rank is lost; every request will fail.
  bool healthy() const { return !lost_; }
  // Called once when that happens, with why, on any thread, or at once where it has. It must not throw, nor
  // destroy the engine.
  void on_lost(std::function<void(const std::string&)> listener);

  SamplingContext sampling_context() const;
  const RuntimeConfig& config() const { return config_; }
  const MemoryPlan& memory_plan() const { return plan_; }
  const GenerationConfig& generation_config() const { return model_.generation; }
  SamplingParams default_sampling_params() const;  // the model author's
  const Tokenizer& tokenizer() const;              // Error when the checkpoint has none
  bool has_tokenizer() const { return model_.tokenizer.has_value(); }
  // What the model's files say about chat; Error where that is broken.
  std::optional<CheckpointChatTemplate> load_chat_template() const {
    return model_.load_chat_template ? model_.load_chat_template() : std::nullopt;
  }
  const std::string& model_name() const { return model_.name; }  // as ModelFiles'
  const std::filesystem::path& model_directory() const { return model_.directory; }
  const std::vector<StartupPhase>& startup() const { return startup_; }  // in order
  EngineStats stats() const;
  // Called after every step from now on, on the engine's thread, which waits for it; what it throws is
  // logged. With profile_every, on a backend with graphs, every so many steps one has its ops timed.
  using StepObserver = std::function<void(const StepRecord&)>;
  void observe_steps(StepObserver observer, int profile_every = 0);
  bool can_profile() const { return ranks_->backend().has_graphs(); }
  // As Backend's, of rank 0. While no request is unfinished.
  std::optional<DeviceCeiling> measure_ceiling() { return ranks_->backend().measure_ceiling(); }

 private:
  struct Arrival {
    std::shared_ptr<SequenceRequest> request;
    std::optional<BeamSearch::Rules> search;  // then it is the first beam
  };
  using Arrivals = std::vector<Arrival>;  // that came together
  struct Abort {
    RequestId id;
  };
  // A stop string has ended it, as the output processor knows.
  struct Stop {
    SequenceId id;
  };
  using Message = std::variant<Arrivals, Abort, Stop>;

  struct StepInFlight {
    StepRecord record;
    std::chrono::steady_clock::time_point start;
  };

  template <typename Load>
  void naming_model(const Load& load);
  template <typename Work>
  void timed(const char* phase, const Work& work);
  void log_plan() const;
  void read_eos_token_ids();
  void post(Message message);
  Arrival make_arrival(const EngineRequest& request, const SamplingState* alike);
  void check_queue(std::int64_t num_requests, std::int64_t num_tokens) const;  // under mutex_
  void count_queue();                                                          // under mutex_
  void expire();
  void run();
  bool take_messages();
  void handle(Arrivals arrivals);
  void handle(Abort abort);
  void handle(Stop stop);

  void finish(SequenceId id, FinishReason reason, const std::string& why);
  bool finish_unplanned();
  void drop_steps();
  void publish_stats();
  void fail_step(const std::string& why);
  void lose(const std::string& why);
  bool queue_step();
  void submit_step(StepPlan plan);
  void collect_step();
  void book(const StepRecord& record);
  void add_to_stats(const StepRecord& record);  // under stats_mutex_

  std::vector<StartupPhase> startup_;
  ModelFiles model_;
  EngineHooks hooks_;
  std::vector<TokenId> eos_token_ids_;
  std::uint64_t seed_;
  int max_queued_requests_;
  std::int64_t max_queued_tokens_;
  const EngineConfig engine_config_;
  std::unique_ptr<RankGroup> ranks_;
  RuntimeConfig config_;
  MemoryPlan plan_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<OutputProcessor> outputs_;
  std::optional<BeamRounds> beams_;
  std::deque<StepInFlight> steps_;
  std::chrono::steady_clock::time_point last_collected_;

  std::atomic<RequestId> next_id_{1};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Message> messages_;  // guarded by mutex_
  // Requests that wait for their first step, and the tokens that they count as.
  std::int64_t queued_requests_ = 0;  // guarded by mutex_
  std::int64_t queued_tokens_ = 0;    // guarded by mutex_
  bool closing_ = false;              // guarded by mutex_
  mutable std::mutex stats_mutex_;
  EngineStats stats_;                                  // guarded by stats_mutex_
  std::shared_ptr<const StepObserver> step_observer_;  // guarded by stats_mutex_
  std::atomic<int> profile_every_{0};
  std::uint64_t steps_planned_ = 0;
  std::mutex lost_mutex_;
  std::atomic<bool> lost_{false};
  std::string why_lost_;                                   // guarded by lost_mutex_
  std::function<void(const std::string&)> lost_listener_;  // guarded by lost_mutex_
  std::thread thread_;
};

}  // namespace quire
