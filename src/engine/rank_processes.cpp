// Ranks in processes of their own: rank 0's end, and the others'.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "base/error.h"
#include "base/log.h"
#include "engine/ranks.h"
#include "parallel/control_listener.h"
#include "parallel/processes.h"
#include "scheduler/plan_codec.h"

namespace quire {
namespace {

// What handles an order, by the kind of its message; the last one is the end.
constexpr std::array<RankOrder::Handler, 10> kHandlers = {
    &Rank::open,   &Rank::connect, &Rank::resolve, &Rank::load, &Rank::capture_graphs,
    &Rank::submit, &Rank::sample,  &Rank::collect, &Rank::drop, nullptr};
// What ranks send to rank 0.
enum AnswerKind : std::uint16_t { kAnswer = 100, kFailed };

// What orders and answers consist of: a number, and the bytes of a step plan or masks, or a text.
struct Body {
  std::uint64_t number = 0;
  std::span<const std::byte> rest;

  std::string text() const { return {reinterpret_cast<const char*>(rest.data()), rest.size()}; }
};

std::vector<std::byte> encode_body(std::uint64_t number, std::span<const std::byte> rest) {
  std::vector<std::byte> bytes(sizeof number + rest.size());
  std::memcpy(bytes.data(), &number, sizeof number);
  std::ranges::copy(rest, bytes.begin() + sizeof number);
  return bytes;
}

Body decode_body(const ControlMessage& message) {
  Body body;
  if (message.body.size() < sizeof body.number)
    fail("a message of {} bytes is cut short; do all ranks run the same version?", message.body.size());
  std::memcpy(&body.number, message.body.data(), sizeof body.number);
  body.rest = std::span(message.body).subspan(sizeof body.number);
  return body;
}

RankOrder decode_order(const ControlMessage& message) {
  if (message.kind >= kHandlers.size())
    fail("an order of kind {} is not known; do all ranks run the same version?", message.kind);
  const Body body = decode_body(message);
  RankOrder order{.handler = kHandlers[message.kind], .argument = body.number};
  if (order.handler == &Rank::submit) order.plan = std::make_shared<const StepPlan>(decode_plan(body.rest));
  if (order.handler == &Rank::sample)
    order.masks = std::make_shared<const StepMasks>(decode_masks(body.rest));
  return order;
}

void send_answer(ControlChannel& channel, AnswerKind kind, std::uint64_t number, std::string_view text) {
  channel.send(0, kind, encode_body(number, std::as_bytes(std::span(text))));
}

class RankProcesses : public RankGroup {
 public:
  RankProcesses(const EngineSetup& setup, Processes& processes)
      : RankGroup(setup, device_options(setup.config, processes.place_on_host()),
                  [this](Backend&) { return processes_.connect([this] { channel_->check(); }); }),
        processes_(processes) {
    ControlListener listener(processes.num_on_host() == processes.size());
    processes.broadcast(listener.invitation(), 0);
    channel_ = listener.accept(processes.size(), setup.config.watchdog);
  }

  ~RankProcesses() override {
    try {
      if (!broken_.empty()) fail("{}", broken_);
      send({});
      own_.reset();  // as the others do now; GPUs' ranks part together
      if (channel_->end()) {
        processes_.finish();
        return;
      }
    } catch (const std::exception& e) {
      log_info("the other ranks are left alone: {}", e.what());
    }
    // To the others this one is lost, too. MPI may still write to its tensors.
    channel_.reset();
    [[maybe_unused]] const Rank* const left = own_.release();
  }

  void on_lost(Listener listener) override {
    channel_->on_loss([listener = std::move(listener)](const Loss& loss) { listener(loss.text()); });
  }

 protected:
  void send(const RankOrder& order) override {
    if (order.plan) channel_->set_progress(order.plan->id);
    const auto kind = std::ranges::find(kHandlers, order.handler) - kHandlers.begin();
    const std::vector<std::byte> rest = order.plan    ? encode(*order.plan)
                                        : order.masks ? encode(*order.masks)
                                                      : std::vector<std::byte>();
    channel_->broadcast(static_cast<std::uint16_t>(kind), encode_body(order.argument, rest));
  }

  RankAnswer answer(int rank, double patience) override {
    const std::optional<ControlMessage> message = channel_->receive(rank, patience);
    if (!message) fail("{}", of_rank(rank, size(), "it has ended"));
    const Body body = decode_body(*message);
    if (message->kind == kFailed) return {.error = of_rank(rank, size(), body.text())};
    if (message->kind != kAnswer)
      fail("{}", of_rank(rank, size(), "its answer is not known; do all ranks run the same version?"));
    return {.cache_bytes = body.number, .common = body.text()};
  }

  std::string abandon(const std::string& why) override {
    const std::optional<Loss> loss = channel_->loss();
    return loss ? loss->text() : in_its_step(why);
  }

  // What else fails, each rank says itself.
  bool breaks_ranks(const RankOrder& order) const override {
    return order.handler == &Rank::submit || order.handler == &Rank::sample ||
           order.handler == &Rank::collect;
  }
  // What waits in MPI, or for another rank on a GPU, cannot be taken back.
  bool can_repeat_steps() const override { return false; }

 private:
  Processes& processes_;
  std::unique_ptr<ControlChannel> channel_;
};

}  // namespace

std::unique_ptr<RankGroup> meet_rank_processes(const EngineSetup& setup) {
  check_processes(setup.config);
  Processes& processes = *started_processes();
  if (processes.rank() != 0)
    fail("this process is rank {} of {}, which follows rank 0 and has no engine of its own", processes.rank(),
         processes.size());
  return std::make_unique<RankProcesses>(setup, processes);
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
  auto channel = join_control(processes.broadcast({}, 0), processes.rank());
  const auto connect = [&](Backend&) { return processes.connect([own = channel.get()] { own->check(); }); };
  std::unique_ptr<EngineSetup> setup;  // made with the first order, which is answered
  std::unique_ptr<Rank> rank;
  try {
    while (const std::optional<ControlMessage> message = channel->receive(0)) {
      bool answered = false;
      try {
        const RankOrder order = decode_order(*message);
        if (order.handler == nullptr) break;
        answered = order.is_answered();
        if (order.plan) channel->set_progress(order.plan->id);
        if (!rank) {
          setup = std::make_unique<EngineSetup>(EngineSetup{config, open_model()});
          rank = std::make_unique<Rank>(*setup, device_options(config, processes.place_on_host()), connect);
        }
        RankAnswer answer;
        rank->execute(order, answer);
        if (answered) send_answer(*channel, kAnswer, answer.cache_bytes, answer.common);
      } catch (const std::exception& e) {
        if (!answered) {
          channel->give_up(e.what());
          throw;
        }
        send_answer(*channel, kFailed, 0, e.what());
      }
    }
  } catch (...) {
    // GPUs and MPI may still be at work in what would be freed, and hold up who frees it.
    if (rank) rank->abandon();
    [[maybe_unused]] const void* const kept[] = {rank.release(), setup.release(), channel.release()};
    throw;
  }
  rank.reset();
  if (channel->end()) processes.finish();
}

}  // namespace quire
