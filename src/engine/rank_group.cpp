#include "engine/rank_group.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "parallel/control_listener.h"
#include "parallel/patience.h"
#include "parallel/single_rank.h"

namespace quire {
namespace {

constexpr int kMaxRanks = 1024;
// For a rank that is lost to end its thread.
constexpr std::chrono::seconds kLeavePatience{2};

BackendOptions device_options(const EngineConfig& config, const Processes* processes) {
  const int place = processes == nullptr ? 0 : processes->place_on_host();
  return {config.device, config.cpu_isa, config.cpu_threads, config.deterministic, place};
}

}  // namespace

void check_rank_count(const EngineConfig& config) {
  const int size = config.tensor_parallel_size;
  if (size < 1 || size > kMaxRanks)
    fail("tensor-parallel-size is {}; it must be from 1 to {}", size, kMaxRanks);
}

RankGroup::RankGroup(const EngineConfig& config, const ModelFiles& model, const EngineHooks& hooks)
    : config_(config),
      size_(config.tensor_parallel_size),
      processes_(size_ > 1 ? started_processes() : nullptr) {
  check_rank_count(config);
  BackendOptions device = device_options(config, processes_);
  if (processes_ != nullptr) {
    meet_processes();
  } else if (size_ > 1) {
    if (device.cpu_threads == 0) device.cpu_threads = std::max(1, usable_cores() / size_);
    start_threads(model, device, hooks);
  }
  const auto connect = [this](Backend& backend) -> std::unique_ptr<Communicator> {
    if (channel_) return processes_->connect([this] { channel_->check(); });
    if (meeting_) return meeting_->connect(0);
    return std::make_unique<SingleRank>(backend);
  };
  own_ = std::make_unique<Rank>(config, model, device, connect, hooks.poison_blocks);
}

// GPUs are taken one after the other.
void RankGroup::start_threads(const ModelFiles& model, BackendOptions device, const EngineHooks& hooks) {
  meeting_ = std::make_unique<ThreadRanks>(size_);
  for (int rank = 1; rank < size_; ++rank) {
    device.place = rank;
    const auto connect = [this, rank](Backend&) { return meeting_->connect(rank); };
    std::function<void()> before_step;
    if (hooks.fault)
      before_step =
          std::bind_front(std::cref(hooks.fault), EngineStage::kRank, static_cast<SequenceId>(rank));
    threads_.push_back(std::make_unique<ThreadLink>(
        rank, size_, std::make_unique<Rank>(config_, model, device, connect, hooks.poison_blocks),
        std::move(before_step), [this](const std::string& why) { on_thread_failure(why); }));
  }
}

void RankGroup::meet_processes() {
  check_processes(config_);
  if (processes_->rank() != 0)
    fail("this process is rank {} of {}, which follows rank 0 and has no engine of its own",
         processes_->rank(), processes_->size());
  ControlListener listener;
  processes_->broadcast(listener.invitation(), 0);
  channel_ = listener.accept(processes_->size(), config_.watchdog);
}

// Nobody waits for that rank. Where steps cannot be computed again, the ranks are lost.
void RankGroup::on_thread_failure(const std::string& why) {
  meeting_->fail(why);
  if (!survives_failures_ && on_lost_) on_lost_(in_its_step(why));
}

std::string RankGroup::in_its_step(const std::string& why) const {
  return format_text("{} (step {})", why.starts_with("rank ") ? why : of_rank(0, size_, why), step_.load());
}

RankGroup::~RankGroup() {
  if (meeting_) meeting_->fail("the engine ends");  // for a rank that waits in a step that was never whole
  if (meeting_ && !broken_.empty()) leave_threads();
  if (channel_ == nullptr) return;
  try {
    if (!broken_.empty()) fail("{}", broken_);
    tell({.kind = RankOrder::Kind::kStop});
    own_.reset();  // as the others do now; GPUs' ranks part together
    if (channel_->end()) {
      processes_->finish();
      return;
    }
  } catch (const std::exception& e) {
    log_info("the other ranks are left alone: {}", e.what());
  }
  // To the others this one is lost, too. MPI may still write to its tensors.
  channel_.reset();
  [[maybe_unused]] const Rank* const left = own_.release();
}

// GPUs may still be at work in what would be freed, and hold up who frees it.
void RankGroup::leave_threads() {
  for (auto& thread : threads_) {
    if (thread->leave(kLeavePatience)) continue;
    [[maybe_unused]] const ThreadLink* const link = thread.release();
    [[maybe_unused]] const ThreadRanks* const meeting = meeting_.release();
  }
  [[maybe_unused]] const Rank* const own = own_.release();
}

void RankGroup::tell(const RankOrder& order) {
  if (channel_) send_order(*channel_, order);
  for (const auto& thread : threads_) thread->send(order);
}

// Ranks end a step together, since they meet in it, or drop it; what else they do may take any time.
RankAnswer RankGroup::answer_of(int rank, RankOrder::Kind kind) {
  const bool of_step = kind == RankOrder::Kind::kCollect || kind == RankOrder::Kind::kDrop;
  const double patience = of_step && !survives_failures_ ? config_.watchdog : kForever;
  return channel_ ? receive_answer(*channel_, rank, patience)
                  : threads_[static_cast<std::size_t>(rank - 1)]->answer(patience);
}

// Some rank in a thread cannot go on, so none waits for it.
void RankGroup::fail_threads(const std::string& why) {
  meeting_->fail(why);
  if (!survives_failures_ && broken_.empty()) broken_ = in_its_step(why);
}

// Has every rank do its part; the first error comes out when all have. The answers are by rank.
std::vector<RankAnswer> RankGroup::together(const RankOrder& order) {
  tell(order);
  std::vector<RankAnswer> answers(1);
  std::exception_ptr failure;
  bool lost = false;  // it is another's failure
  try {
    answers[0] = own_->execute(order);
  } catch (const std::exception& e) {
    failure = std::current_exception();
    lost = dynamic_cast<const LostRank*>(&e) != nullptr;
    own_->abandon();
    if (meeting_) fail_threads(e.what());
  }
  for (int rank = 1; rank < size_; ++rank) answers.push_back(answer_of(rank, order.kind));
  if (failure && !lost) std::rethrow_exception(failure);
  for (const RankAnswer& answer : answers) {
    if (answer.error.empty()) continue;
    if (meeting_) fail_threads(answer.error);
    fail("{}", answer.error);
  }
  if (failure) std::rethrow_exception(failure);
  return answers;
}

void RankGroup::open() {
  check_common(together({.kind = RankOrder::Kind::kOpen}));
  together({.kind = RankOrder::Kind::kConnect});
}

const RuntimeConfig& RankGroup::resolve() {
  std::vector<RankAnswer> answers = together({.kind = RankOrder::Kind::kResolve});
  const auto [least, most] = std::minmax_element(
      answers.begin(), answers.end(), [](auto& a, auto& b) { return a.num_blocks < b.num_blocks; });
  if (least->num_blocks != most->num_blocks) {
    const std::size_t bytes = least->num_blocks * own_->config().block_bytes();
    answers = together({.kind = RankOrder::Kind::kResolve, .kv_cache_memory = bytes});
  }
  check_common(answers);
  own_->warn_of_small_cache();
  return own_->config();
}

// Ranks that were started with different flags, or have different models, would compute something else.
void RankGroup::check_common(const std::vector<RankAnswer>& answers) const {
  for (std::size_t i = 1; i < answers.size(); ++i) {
    std::istringstream here(answers[0].common), there(answers[i].common);
    for (std::string line, other; std::getline(here, line);) {
      std::getline(there, other);
      if (other != line)
        fail("{}", of_rank(static_cast<int>(i), size_, format_text("{}; rank 0 has {}", other, line)));
    }
  }
}

void RankGroup::load() {
  together({.kind = RankOrder::Kind::kLoad});
  survives_failures_ = size_ == 1 || (meeting_ && own_->backend().device() == DeviceKind::kCpu);
}

// Where this rank cannot go on, the others do not wait for it.
template <typename Work>
auto RankGroup::in_step(const Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    own_->abandon();
    if (meeting_) fail_threads(e.what());
    if (channel_ && broken_.empty()) {
      const std::optional<Loss> loss = channel_->loss();
      broken_ = loss ? loss->text() : in_its_step(e.what());
    }
    throw;
  }
}

std::optional<OpTimes> RankGroup::submit(StepPlan plan, bool profiled) {
  const RankOrder order{.kind = profiled ? RankOrder::Kind::kSubmitProfiled : RankOrder::Kind::kSubmit,
                        .plan = std::make_shared<const StepPlan>(std::move(plan))};
  step_ = order.plan->id;
  if (channel_) channel_->set_progress(step_);
  tell(order);
  return in_step([&] { return own_->execute(order).ops; });
}

StepResult RankGroup::collect() {
  return in_step([&] { return std::move(together({.kind = RankOrder::Kind::kCollect})[0].result); });
}

void RankGroup::drop_in_flight() {
  if (!broken_.empty()) fail("{}", broken_);
  together({.kind = RankOrder::Kind::kDrop});
  if (meeting_) meeting_->reset();
}

void RankGroup::on_lost(std::function<void(const std::string&)> callback) {
  on_lost_ = std::move(callback);
  if (channel_) channel_->on_loss([this](const Loss& loss) { on_lost_(loss.text()); });
}

int num_processes() {
  const Processes* processes = started_processes();
  return processes == nullptr ? 1 : processes->size();
}

void check_processes(const EngineConfig& config) {
  if (const int n = num_processes(); n > 1 && n != config.tensor_parallel_size)
    fail("mpirun started {} processes, and --tensor-parallel-size is {}; it is the number of processes", n,
         config.tensor_parallel_size);
}

bool is_follower() {
  const Processes* processes = started_processes();
  return processes != nullptr && processes->rank() != 0;
}

void follow(const EngineConfig& config, const std::function<ModelFiles()>& open_model) {
  Processes& processes = *started_processes();
  check_rank_count(config);
  const auto channel = join_control(processes.broadcast({}, 0), processes.rank());
  std::optional<ModelFiles> model;
  follow_orders(*channel, [&] {
    model.emplace(open_model());
    return std::make_unique<Rank>(config, *model, device_options(config, &processes), [&](Backend&) {
      return processes.connect([&channel] { channel->check(); });
    });
  });
  if (channel->end()) processes.finish();
}

}  // namespace quire
