#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/registry.h"
#include "engine/model_files.h"
#include "ops/communicator.h"
#include "parallel/patience.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"
#include "scheduler/scheduler.h"

namespace quire {

class Rank;
struct RankAnswer;

// What rank 0 has all ranks do. They do it in the order they are told, and rank 0 does the same at the same
// time, so that the collectives of all ranks meet.
struct RankOrder {
  using Handler = void (Rank::*)(const RankOrder&, RankAnswer&);

  Handler handler = nullptr;                    // null: the others end
  std::uint64_t argument = 0;                   // of resolve and submit
  std::shared_ptr<const StepPlan> plan = {};    // of submit
  std::shared_ptr<const StepMasks> masks = {};  // of sample

  // Where a plan's submission fails on another rank, it is said in answer to the next order.
  bool is_answered() const { return plan == nullptr; }
};

struct RankAnswer {
  std::string error = {};         // empty: it is done
  std::uint64_t cache_bytes = 0;  // of resolve
  // Of open and resolve: what must be the same on all ranks, a line each: "block_size 16".
  std::string common = {};
  // Of rank 0 alone.
  StepResult result = {};           // of collect
  std::optional<OpTimes> ops = {};  // of submit, profiled
};

// Of the rank that has this place among those of its host.
BackendOptions device_options(const EngineConfig& config, int place = 0);

// One rank of an engine: a device, its shard of the model, and what runs plans on it. Thread contract: one
// thread.
class Rank {
 public:
  // What connects the ranks for tensors in host memory.
  using MakeCommunicator = std::function<std::unique_ptr<Communicator>(Backend& backend)>;

  // `setup` must outlive it. Of its hooks: poison_blocks.
  Rank(const EngineSetup& setup, BackendOptions device, MakeCommunicator make_communicator)
      : setup_(setup), device_(std::move(device)), make_communicator_(std::move(make_communicator)) {}

  void execute(const RankOrder& order, RankAnswer& answer) { (this->*order.handler)(order, answer); }

  // What handles orders. The first five start the rank, in this order. Error where it cannot be done.
  void open(const RankOrder&, RankAnswer& answer);  // the device
  void connect(const RankOrder&, RankAnswer&);      // to the other ranks
  // The configuration. argument: bytes of the KV cache; 0: as configured.
  void resolve(const RankOrder& order, RankAnswer& answer);
  void load(const RankOrder&, RankAnswer&);  // its shard of the weights
  void capture_graphs(const RankOrder&, RankAnswer&) { runner_->capture_graphs(); }
  // A step, as ModelRunner does. argument: 1: profiled.
  void submit(const RankOrder& order, RankAnswer& answer);
  void sample(const RankOrder& order, RankAnswer&) { runner_->sample(*order.masks); }
  void collect(const RankOrder&, RankAnswer& answer) { answer.result = runner_->collect(); }
  void drop(const RankOrder&, RankAnswer&) { runner_->drop_in_flight(); }

  // Other ranks and this one wait no longer for each other; it cannot go on.
  void abandon() {
    if (comm_) comm_->abandon();
  }

  Backend& backend() { return *backend_; }                  // from open on
  const RuntimeConfig& config() const { return runtime_; }  // from resolve on
  MemoryPlan plan_memory() {
    return quire::plan_memory(*backend_, *comm_, runtime_, setup_.model.config,
                              setup_.model.open_formats().get());
  }

 private:
  void poison_new_blocks(const StepPlan& plan);

  const EngineSetup& setup_;
  const BackendOptions device_;
  const MakeCommunicator make_communicator_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> comm_;
  RuntimeConfig runtime_;
  std::unique_ptr<ModelRunner> runner_;
};

// Error where EngineConfig::tensor_parallel_size is no number of ranks.
void check_rank_count(const EngineConfig& config);
// "rank 1 of 4: WHY"
std::string of_rank(int rank, int size, const std::string& why);

// The ranks that share the engine's model, as rank 0 has them: itself, and the others in threads of this
// process or in processes of their own. What it is told to do, all do. This class is what all groups have in
// common, and a group of one. Thread contract: one thread at a time, but as is said.
class RankGroup {
 public:
  using Listener = std::function<void(const std::string& why)>;

  // `setup` must outlive it. device, make_communicator: rank 0's.
  RankGroup(const EngineSetup& setup, const BackendOptions& device, Rank::MakeCommunicator make_communicator)
      : setup_(setup), own_(std::make_unique<Rank>(setup, device, std::move(make_communicator))) {}
  virtual ~RankGroup() = default;  // the other ranks end
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // In this order. Error that names the rank where it is not this one.
  void open();
  const RuntimeConfig& resolve();  // with the cache that every rank has room for
  void load() {
    together({&Rank::load});
    survives_failures_ = can_repeat_steps();
  }
  void capture_graphs() { together({&Rank::capture_graphs}); }

  // As ModelRunner's. Where a rank fails, all do.
  std::optional<OpTimes> submit(StepPlan plan, bool profiled = false);
  void sample(std::shared_ptr<const StepMasks> masks) {
    together({.handler = &Rank::sample, .masks = std::move(masks)}, step_patience());
  }
  StepResult collect() { return std::move(together({&Rank::collect}, step_patience())[0].result); }
  // Error where there is no way back: a rank is lost, or one on a GPU or of several processes failed in a
  // step.
  void drop_in_flight();

  int size() const { return setup_.config.tensor_parallel_size; }
  Rank& own() { return *own_; }  // rank 0
  // Has it called once a rank is lost, with why, on a thread of its own, or at once. Set once, before any
  // step.
  virtual void on_lost(Listener) {}

 protected:
  // To all other ranks, without waiting for them. Error where a rank is lost.
  virtual void send(const RankOrder&) {}
  // Another rank's, to its oldest order not yet answered; waits for it. Its error names the rank. Error where
  // it takes longer than `patience` seconds, not counting those in which this process did not run, or a rank
  // is lost.
  virtual RankAnswer answer(int /*rank*/, double /*patience*/) { return {}; }
  // Some rank cannot go on, so none waits for it until reset(). Returns what to say where that is the end.
  virtual std::string abandon(const std::string& why) { return why; }
  virtual void reset() {}
  // Whether ranks are lost where this order fails, and cannot be told to end.
  virtual bool breaks_ranks(const RankOrder&) const { return true; }
  // Whether they compute a step again in which one has failed.
  virtual bool can_repeat_steps() const { return true; }

  std::string in_its_step(const std::string& why) const;

  const EngineSetup& setup_;
  std::unique_ptr<Rank> own_;
  std::atomic<std::uint64_t> step_ = 0;  // that was told last
  bool survives_failures_ = true;        // set by load()
  std::string broken_;                   // why a step cannot be computed again; empty: all can

 private:
  std::vector<RankAnswer>& together(const RankOrder& order, double patience = kForever);
  void check_common() const;
  // Ranks end a step together, since they meet in it, or drop it; what else they do may take any time.
  double step_patience() const { return survives_failures_ ? kForever : setup_.config.watchdog; }

  std::vector<RankAnswer> answers_;
};

// A group of as many ranks as the configuration asks for; Error where they cannot be had. Of the hooks, for
// ranks in threads: poison_blocks, and fault at kRank, which is no stage of rank 0.
std::unique_ptr<RankGroup> make_rank_group(const EngineSetup& setup);
// Of several ranks.
std::unique_ptr<RankGroup> start_rank_threads(const EngineSetup& setup);
std::unique_ptr<RankGroup> meet_rank_processes(const EngineSetup& setup);

int num_processes();  // that mpirun started together; 1: this one alone
// Error where there are several, and not one for each rank.
void check_processes(const EngineConfig& config);
// Whether another process leads: then this one follows it, with the same model and configuration, until it
// ends. Error as RankGroup's; and where a step fails or a rank is lost, which end this process.
bool is_follower();
void follow(const EngineConfig& config, const std::function<ModelFiles()>& open_model);

// Measured with plans of their own: copies of up to 256 blocks to host memory and back, and a prompt's part
// with nothing before it and with as much as the cache holds. Nothing may be in flight; seat 0 and the
// cache's contents are lost. There must be swap space.
PreemptionCosts measure_preemption_costs(RankGroup& ranks, const RuntimeConfig& config);

}  // namespace quire
