#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/invariant_checks.h"
#include "engine/mailbox.h"
#include "engine/output_processor.h"
#include "engine/ranks.h"
#include "engine/request.h"
#include "engine/sampling_context.h"
#include "engine/search_rounds.h"
#include "engine/step_masker.h"
#include "engine/step_statistics.h"
#include "engine/step_watch.h"
#include "engine/structured_outputs.h"
#include "record/recorder.h"

namespace quire {

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
  // Aborts what is unfinished. Where a step is stuck, and stays so for a second, the process ends with code
  // 1: its thread cannot be waited for.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Error when the parameters or token ids are wrong.
  void validate(const EngineRequest& request) const;
  // All of them, or none: Error as in validate; QueueFullError. Then the requests are left as they were, but
  // for what truncate_prompt_tokens cuts. What only the scheduler can refuse (a prompt that is empty or can
  // never fit) ends that request with FinishReason::kError.
  std::vector<RequestId> submit(std::span<EngineRequest> requests);
  RequestId submit(EngineRequest&& request) { return submit(std::span(&request, 1)).front(); }
  // Has it called once between two steps, on the engine's thread, which waits for it; what it throws is
  // logged. Not at all where the engine ends before.
  void look(std::function<void(Scheduler&)> at) {
    mailbox_.post([this, at = std::move(at)] { at(*scheduler_); });
  }
  void abort(RequestId id);  // legal in every state, effective at the next step
  // False: a device or a rank is lost, a step is stuck, or contents may be mixed; every request will fail.
  bool healthy() const { return !lost_; }
  // Called once when that happens, with why, on any thread, or at once where it has. It must not throw, nor
  // destroy the engine.
  void on_lost(std::function<void(const std::string&)> listener);

  SamplingContext sampling_context() const;
  const RuntimeConfig& config() const { return config_; }
  std::string_view device_name() const { return ranks_->own().backend().name(); }
  const MemoryPlan& memory_plan() const { return plan_; }
  const ModelConfig& model_config() const { return setup_.model.config; }
  const GenerationConfig& generation_config() const { return given_.generation; }
  SamplingParams default_sampling_params() const;  // the model author's
  const Tokenizer& tokenizer() const;              // Error when the checkpoint has none
  bool has_tokenizer() const { return setup_.model.tokenizer.has_value(); }
  // What the configuration says about chat, or else the model's files; Error where that is broken.
  std::optional<CheckpointChatTemplate> load_chat_template() const {
    const ModelFiles& files = setup_.model;
    const ChatTemplate* given = given_.chat_template ? &*given_.chat_template : nullptr;
    return files.load_chat_template ? files.load_chat_template(given) : std::nullopt;
  }
  // The same, with what is to be said where there is none, or a broken one.
  std::optional<CheckpointChatTemplate> find_chat_template(std::string& why_none) const;
  const std::string& model_name() const { return setup_.model.name; }  // as ModelFiles'
  const std::filesystem::path& model_directory() const { return setup_.model.directory; }
  const std::vector<StartupPhase>& startup() const { return startup_; }  // in order
  EngineStats stats() const {
    EngineStats stats = statistics_.stats();
    stats.broken_invariants = invariants_.num_broken();
    if (compiler_) stats.structured_outputs_bytes = compiler_->bytes();
    return stats;
  }
  // Called after every step from now on, on the engine's thread, which waits for it; what it throws is
  // logged. With profile_every, on a backend with graphs, every so many steps one has its ops timed.
  void observe_steps(StepStatistics::Observer observer, int profile_every = 0) {
    statistics_.observe(std::move(observer), can_profile() ? profile_every : 0);
  }
  // Called with the seconds that each compilation of a grammar took from now on, on another thread.
  void observe_compilations(std::function<void(double seconds)> observer) {
    if (compiler_) compiler_->observe(std::move(observer));
  }
  bool can_profile() const { return ranks_->own().backend().has_graphs(); }
  // As Backend's, of rank 0. While no request is unfinished.
  std::optional<DeviceCeiling> measure_ceiling() { return ranks_->own().backend().measure_ceiling(); }

 private:
  struct Arrival {
    std::shared_ptr<SequenceRequest> request;
    std::optional<SearchRules> search;                                // then it is the first beam
    std::shared_ptr<const StructuredOutputs> source;                  // null: it is not constrained
    std::shared_ptr<const GrammarCompiler::Compilation> compilation;  // of the source, that it waits for
    std::optional<ThinkingBudget> thinking = {};
  };

  static constexpr const char* kTimedOut = "its timeout has passed";

  template <typename Work>
  void timed(const char* phase, const Work& work);
  void load();
  void log_plan() const;
  void read_eos_token_ids();
  Arrival make_arrival(const EngineRequest& request, const Arrival* alike);

  void run();
  bool take_tasks();
  void begin(const Arrival& arrival);
  void hold(const Arrival& arrival);
  void release_compiled();
  bool end_held(RequestId id, FinishReason reason, const std::string& why = {},
                bool is_request_at_fault = false);
  void expire_held(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  void finish(SequenceId id, FinishReason reason, const std::string& why);
  bool finish_unplanned();
  bool queue_step();
  void submit_step(StepPlan plan);
  void collect_step();
  void sample_step();
  void fail_step(const std::string& why);
  void drop_steps();
  SchedulerStats scheduler_stats() const;
  void publish_stats();
  void lose(const std::string& why);
  void give_up(const std::string& why);
  void check_invariants();
  void save_recording();

  const EngineSetup setup_;
  const GivenDefaults given_;
  Mailbox mailbox_;
  std::vector<StartupPhase> startup_;
  std::vector<TokenId> eos_token_ids_;
  std::unique_ptr<RankGroup> ranks_;
  RuntimeConfig config_;
  MemoryPlan plan_;
  std::unique_ptr<Recorder> recorder_;
  std::once_flag saved_recording_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<OutputProcessor> outputs_;
  std::unique_ptr<SearchRounds> beams_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::map<RequestId, Arrival> held_;  // those that wait for their compilation
  std::optional<StepMasker> masker_;
  std::vector<SequenceUpdate> foreseen_;  // what the newest step brings, to be told when a step has ended
  StepStatistics statistics_;
  InvariantChecks invariants_;
  std::atomic<RequestId> next_id_{1};
  std::mutex lost_mutex_;
  std::atomic<bool> lost_{false};
  std::atomic<bool> gave_up_{false};  // lost, though ranks may still compute: nothing is begun
  std::string why_lost_;              // guarded by lost_mutex_
  std::function<void(const std::string&)> lost_listener_;  // guarded by lost_mutex_
  std::optional<StepWatch> watch_;
  std::thread thread_;
};

}  // namespace quire
