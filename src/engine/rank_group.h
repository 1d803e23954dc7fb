#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/rank_link.h"
#include "parallel/processes.h"
#include "parallel/thread_ranks.h"

namespace quire {

// Error where EngineConfig::tensor_parallel_size is no number of ranks.
void check_rank_count(const EngineConfig& config);

// The ranks that share the engine's model, as rank 0 has them: itself, and the others in threads of this
// process or in processes of their own. What it is told to do, all do. Thread contract: one thread at a time,
// but as is said.
class RankGroup {
 public:
  // `config` and `model` must outlive it. Error where the ranks asked for cannot be had.
  // before_step, for tests: called by each rank in a thread but rank 0, with its number, before each step;
  // what it throws is that rank's failure.
  RankGroup(const EngineConfig& config, const ModelFiles& model,
            const std::function<void(int)>& before_step = {});
  ~RankGroup();  // the other ranks end
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // In this order. Error that names the rank where it is not this one.
  void open();
  const RuntimeConfig& resolve();  // with the cache that every rank has room for
  MemoryPlan plan_memory() { return own_->plan_memory(); }
  void load();
  void capture_graphs();

  // As ModelRunner's. Where a rank fails, all do.
  void submit(StepPlan plan);
  OpTimes submit_profiled(StepPlan plan);
  StepResult collect();
  // Error where there is no way back: a rank is lost, or one on a GPU or of several processes failed in a
  // step.
  void drop_in_flight();
  void poison(std::vector<BlockId> blocks);

  int size() const { return size_; }
  Backend& backend() { return own_->backend(); }
  // Has it called once a rank is lost, with why, on a thread of its own, or at once. Set once, before any
  // step.
  void on_lost(std::function<void(const std::string&)> callback);

 private:
  void start_threads(const EngineConfig& config, const ModelFiles& model, BackendOptions device,
                     const std::function<void(int)>& before_step);
  void start_processes(const EngineConfig& config, const ModelFiles& model, const BackendOptions& device);
  void tell(const RankOrder& order);
  std::shared_ptr<const StepPlan> tell_step(RankOrder::Kind kind, StepPlan plan);
  std::vector<RankAnswer> answers(RankOrder::Kind kind);
  template <typename Work>
  std::vector<RankAnswer> together(const RankOrder& order, const Work& work);
  template <typename Work>
  auto in_step(const Work& work);
  void check_common(const std::vector<RankAnswer>& others) const;
  void on_thread_failure(const std::string& why);  // on that rank's thread
  void fail_threads(const std::string& why);
  std::string in_its_step(const std::string& why) const;
  void leave_threads();

  const int size_;
  const double watchdog_;
  Processes* const processes_;               // null: ranks are threads
  std::unique_ptr<ThreadRanks> meeting_;     // of ranks in threads
  std::unique_ptr<ControlChannel> channel_;  // to ranks in processes
  std::unique_ptr<Rank> own_;
  std::vector<std::unique_ptr<ThreadLink>> threads_;  // ranks 1, 2, …
  std::function<void(const std::string&)> on_lost_;
  std::atomic<std::uint64_t> step_ = 0;  // that was told last
  // Ranks on CPUs in one process compute a step again. What waits for another rank on a GPU, or in MPI,
  // cannot be taken back. Set by load().
  bool survives_failures_ = true;
  std::string broken_;  // why a step cannot be computed again; empty: all can
};

int num_processes();  // that mpirun started together; 1: this one alone
// Error where there are several, and not one for each rank.
void check_processes(const EngineConfig& config);
// Whether another process leads: then this one follows it, with the same model and configuration, until it
// ends. Error as RankGroup's; and where a step fails or a rank is lost, which end this process.
bool is_follower();
void follow(const EngineConfig& config, const std::function<ModelFiles()>& open_model);

}  // namespace quire
