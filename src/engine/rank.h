#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backends/registry.h"
#include "engine/model_files.h"
#include "ops/communicator.h"
#include "quire/engine_config.h"
#include "runner/memory_plan.h"
#include "runner/model_runner.h"

namespace quire {

// What rank 0 has all ranks do. They do it in the order they are told, and rank 0 does the same at the same
// time, so that the collectives of all ranks meet.
struct RankOrder {
  enum class Kind : std::uint16_t {
    kOpen,     // the device
    kConnect,  // to the other ranks
    kResolve,  // the configuration
    kLoad,     // the rank's shard of the weights
    kCaptureGraphs,
    kCollect,  // the oldest plan's result
    kDrop,     // what is in flight
    kSubmit,
    kSubmitProfiled,
    kStop,  // the others end
  };

  Kind kind = Kind::kStop;
  std::uint64_t kv_cache_memory = 0;          // kResolve: bytes; 0: as the configuration says
  std::shared_ptr<const StepPlan> plan = {};  // kSubmit, kSubmitProfiled

  // Where another fails, it is said in answer to the next one that is answered.
  bool is_answered() const { return kind <= Kind::kDrop; }
  bool has_plan() const { return kind == Kind::kSubmit || kind == Kind::kSubmitProfiled; }
};

struct RankAnswer {
  std::string error = {};        // empty: it is done
  std::uint64_t num_blocks = 0;  // kResolve: of the KV cache
  // kOpen, kResolve: what must be the same on all ranks, a line each: "block_size 16".
  std::string common = {};
  // Of rank 0 alone.
  StepResult result = {};           // kCollect
  std::optional<OpTimes> ops = {};  // kSubmitProfiled
};

// One rank of an engine: a device, its shard of the model, and what runs plans on it. Thread contract: one
// thread.
class Rank {
 public:
  // What connects the ranks for tensors in host memory.
  using Connect = std::function<std::unique_ptr<Communicator>(Backend& backend)>;

  // `config` and `model` must outlive it. poison_blocks: as EngineHooks'.
  Rank(const EngineConfig& config, const ModelFiles& model, BackendOptions device, Connect connect,
       bool poison_blocks = false)
      : config_(config),
        model_(model),
        device_(std::move(device)),
        connect_(std::move(connect)),
        poison_blocks_(poison_blocks) {}

  // Any order but kStop; those to start with in the order of their kinds. Error where it cannot be done.
  RankAnswer execute(const RankOrder& order);

  // Other ranks and this one wait no longer for each other; it cannot go on.
  void abandon() {
    if (comm_) comm_->abandon();
  }

  // From kOpen on.
  Backend& backend() { return *backend_; }
  // From kResolve on.
  const RuntimeConfig& config() const { return runtime_; }
  MemoryPlan plan_memory() {
    return quire::plan_memory(*backend_, *comm_, runtime_, model_.config, model_.open_formats().get());
  }
  // Where no sequence can have the context that was asked for, or else the model's.
  void warn_of_small_cache() const;

 private:
  void resolve(std::size_t kv_cache_memory);
  std::string common() const;  // of what is known by now
  void load();
  void poison_new_blocks(const StepPlan& plan);

  const EngineConfig& config_;
  const ModelFiles& model_;
  const BackendOptions device_;
  const Connect connect_;
  const bool poison_blocks_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> comm_;
  RuntimeConfig runtime_;
  std::unique_ptr<ModelRunner> runner_;
};

}  // namespace quire
