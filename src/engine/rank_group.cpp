#include "engine/rank_group.h"

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "parallel/control_listener.h"
#include "parallel/single_rank.h"

namespace quire {
namespace {

constexpr int kMaxRanks = 1024;

int check_size(const EngineConfig& config, const Processes* processes) {
  check_rank_count(config);
  const int size = config.tensor_parallel_size;
  if (processes != nullptr && processes->size() != size) {
    fail("tensor-parallel-size is {}, and mpirun started {} processes; there is one for each rank", size,
         processes->size());
  }
  return size;
}

BackendOptions device_options(const EngineConfig& config) {
  return {config.device, config.cpu_isa, config.cpu_threads, config.deterministic};
}

}  // namespace

void check_rank_count(const EngineConfig& config) {
  const int size = config.tensor_parallel_size;
  if (size < 1 || size > kMaxRanks)
    fail("tensor-parallel-size is {}; it must be from 1 to {}", size, kMaxRanks);
}

RankGroup::RankGroup(const EngineConfig& config, const ModelFiles& model) : processes_(started_processes()) {
  const int size = check_size(config, processes_);
  const BackendOptions device = device_options(config);
  if (processes_ != nullptr) {
    start_processes(config, model, device);
  } else if (size > 1) {
    start_threads(config, model, device);
  } else {
    own_ = std::make_unique<Rank>(config, model, device,
                                  [](Backend& backend) { return std::make_unique<SingleRank>(backend); });
  }
}

// The cores are shared out.
void RankGroup::start_threads(const EngineConfig& config, const ModelFiles& model,
                              const BackendOptions& device) {
  const int size = config.tensor_parallel_size;
  BackendOptions share = device;
  if (share.cpu_threads == 0) share.cpu_threads = std::max(1, usable_cores() / size);
  meeting_ = std::make_unique<ThreadRanks>(size);
  const auto make = [&](int rank) {
    return std::make_unique<Rank>(config, model, share,
                                  [this, rank](Backend&) { return meeting_->connect(rank); });
  };
  own_ = make(0);
  for (int rank = 1; rank < size; ++rank)
    links_.push_back(std::make_unique<ThreadLink>(rank, size, make(rank), *meeting_));
}

void RankGroup::start_processes(const EngineConfig& config, const ModelFiles& model,
                                const BackendOptions& device) {
  if (processes_->rank() != 0)
    fail("this process is rank {} of {}, which follows rank 0 and has no engine of its own",
         processes_->rank(), processes_->size());
  ControlListener listener;
  processes_->broadcast(listener.invitation(), 0);
  channel_ = listener.accept(processes_->size(), config.watchdog);
  own_ = std::make_unique<Rank>(
      config, model, device, [this](Backend&) { return processes_->connect([this] { channel_->check(); }); });
  for (int rank = 1; rank < processes_->size(); ++rank)
    links_.push_back(std::make_unique<ProcessLink>(rank, *channel_));
}

RankGroup::~RankGroup() {
  if (channel_ == nullptr) {
    if (meeting_) meeting_->fail("the engine ends");  // for a rank that waits in a step that was never whole
    links_.clear();
    return;
  }
  try {
    tell({.kind = RankOrder::Kind::kStop});
    if (channel_->end()) processes_->finish();
  } catch (const std::exception& e) {
    log_error("ending the other ranks: {}", e.what());
  }
}

void RankGroup::tell(const RankOrder& order) {
  for (const auto& link : links_) link->send(order);
}

// Has every rank do its part; the first error comes out when all have.
template <typename Work>
std::vector<RankAnswer> RankGroup::together(const RankOrder& order, const Work& work) {
  tell(order);
  std::exception_ptr failure;
  try {
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<RankAnswer> answers;
  for (const auto& link : links_) answers.push_back(link->answer());
  if (failure) std::rethrow_exception(failure);
  for (const RankAnswer& answer : answers)
    if (!answer.error.empty()) fail("{}", answer.error);
  return answers;
}

void RankGroup::open() {
  together({.kind = RankOrder::Kind::kOpen}, [this] { own_->open(); });
}

const RuntimeConfig& RankGroup::resolve() {
  const auto resolve_with = [this](std::size_t bytes) {
    return together({.kind = RankOrder::Kind::kResolve, .kv_cache_memory = bytes},
                    [this, bytes] { own_->resolve(bytes); });
  };
  const std::vector<RankAnswer> answers = resolve_with(0);
  std::vector<std::uint64_t> blocks{static_cast<std::uint64_t>(own_->config().num_blocks)};
  for (const RankAnswer& answer : answers) blocks.push_back(answer.num_blocks);
  const auto [least, most] = std::minmax_element(blocks.begin(), blocks.end());
  if (*least != *most) resolve_with(*least * own_->config().block_bytes());
  return own_->config();
}

void RankGroup::load() {
  together({.kind = RankOrder::Kind::kLoad}, [this] { own_->load(); });
}

void RankGroup::capture_graphs() {
  together({.kind = RankOrder::Kind::kCaptureGraphs}, [this] { own_->runner().capture_graphs(); });
}

// Where this rank cannot go on, the others do not wait for it.
template <typename Work>
auto RankGroup::in_step(const Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    if (meeting_) meeting_->fail(e.what());
    broken_ = channel_ != nullptr;
    throw;
  }
}

void RankGroup::submit(StepPlan plan) {
  if (links_.empty()) return own_->runner().submit(plan);
  const auto shared = std::make_shared<const StepPlan>(std::move(plan));
  if (channel_) channel_->set_progress(shared->id);
  in_step([&] {
    tell({.kind = RankOrder::Kind::kSubmit, .plan = shared});
    own_->runner().submit(*shared);
  });
}

OpTimes RankGroup::submit_profiled(StepPlan plan) {
  const auto shared = std::make_shared<const StepPlan>(std::move(plan));
  return in_step([&] {
    tell({.kind = RankOrder::Kind::kSubmitProfiled, .plan = shared});
    return own_->runner().submit_profiled(*shared);
  });
}

StepResult RankGroup::collect() {
  if (links_.empty()) return own_->runner().collect();
  StepResult result;
  in_step([&] { together({.kind = RankOrder::Kind::kCollect}, [&] { result = own_->runner().collect(); }); });
  return result;
}

void RankGroup::drop_in_flight() {
  if (broken_) fail("a rank of several processes did not end its step");
  together({.kind = RankOrder::Kind::kDrop}, [this] { own_->runner().drop_in_flight(); });
  if (meeting_) meeting_->reset();
}

void RankGroup::poison(std::vector<BlockId> blocks) {
  tell({.kind = RankOrder::Kind::kPoison, .blocks = blocks});
  own_->runner().poison(std::move(blocks));
}

void RankGroup::on_lost(std::function<void(const std::string&)> callback) {
  if (channel_ == nullptr) return;
  channel_->on_loss(
      [this, callback = std::move(callback)](const Loss& loss) { callback(describe(loss, *channel_)); });
}

int num_processes() {
  const Processes* processes = started_processes();
  return processes == nullptr ? 1 : processes->size();
}

bool is_follower() {
  const Processes* processes = started_processes();
  return processes != nullptr && processes->rank() != 0;
}

void follow(const EngineConfig& config, const std::function<ModelFiles()>& open_model) {
  Processes& processes = *started_processes();
  check_size(config, &processes);
  const auto channel = join_control(processes.broadcast({}, 0), processes.rank());
  const ModelFiles model = open_model();
  Rank rank(config, model, device_options(config),
            [&](Backend&) { return processes.connect([&channel] { channel->check(); }); });
  follow_orders(rank, *channel);
  if (channel->end()) processes.finish();
}

}  // namespace quire
