#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/hooks.h"
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
  // All must outlive it. Error where the ranks asked for cannot be had.
  // Of the hooks, for ranks in threads: poison_blocks, and fault at kRank, which is no stage of rank 0.
  RankGroup(const EngineConfig& config, const ModelFiles& model, const EngineHooks& hooks);
  ~RankGroup();  // the other ranks end
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // In this order. Error that names the rank where it is not this one.
  void open();
  const RuntimeConfig& resolve();  // with the cache that every rank has room for
  MemoryPlan plan_memory() { return own_->plan_memory(); }
  void load();
  void capture_graphs() { together({.kind = RankOrder::Kind::kCaptureGraphs}); }

  // As ModelRunner's. Where a rank fails, all do.
  std::optional<OpTimes> submit(StepPlan plan, bool profiled = false);
  StepResult collect();
  // Error where there is no way back: a rank is lost, or one on a GPU or of several processes failed in a
  // step.
  void drop_in_flight();

  int size() const { return size_; }
  Backend& backend() { return own_->backend(); }
  // Has it called once a rank is lost, with why, on a thread of its own, or at once. Set once, before any
  // step.
  void on_lost(std::function<void(const std::string&)> callback);

 private:
  void start_threads(const ModelFiles& model, BackendOptions device, const EngineHooks& hooks);
  void meet_processes();
  void tell(const RankOrder& order);
  RankAnswer answer_of(int rank, RankOrder::Kind kind);
  std::vector<RankAnswer> together(const RankOrder& order);
  template <typename Work>
  auto in_step(const Work& work);
  void check_common(const std::vector<RankAnswer>& answers) const;
  void on_thread_failure(const std::string& why);  // on that rank's thread
  void fail_threads(const std::string& why);
  std::string in_its_step(const std::string& why) const;
  void leave_threads();

  const EngineConfig& config_;
  const int size_;
  Processes* const processes_;               // null: ranks are threads
  std::unique_ptr<ThreadRanks> meeting_;     // of ranks in threads
  std::unique_ptr<ControlChannel> channel_;  // to ranks in processes
  std::unique_ptr<Rank> own_;
  std::function<void(const std::string&)> on_lost_;
  std::atomic<std::uint64_t> step_ = 0;  // that was told last
  // Ranks on CPUs in one process compute a step again. What waits for another rank on a GPU, or in MPI,
  // cannot be taken back. Set by load().
  bool survives_failures_ = true;
  std::string broken_;                                // why a step cannot be computed again; empty: all can
  std::vector<std::unique_ptr<ThreadLink>> threads_;  // ranks 1, 2, …; last, for they report to what is above
};

int num_processes();  // that mpirun started together; 1: this one alone
// Error where there are several, and not one for each rank.
void check_processes(const EngineConfig& config);
// Whether another process leads: then this one follows it, with the same model and configuration, until it
// ends. Error as RankGroup's; and where a step fails or a rank is lost, which end this process.
bool is_follower();
void follow(const EngineConfig& config, const std::function<ModelFiles()>& open_model);

}  // namespace quire
