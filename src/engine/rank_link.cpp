#include "engine/rank_link.h"

#include <cstring>

#include "base/error.h"
#include "base/thread_name.h"
#include "parallel/patience.h"
#include "scheduler/plan_codec.h"

namespace quire {
namespace {

// What ranks send to rank 0; orders' kinds come before.
constexpr std::uint16_t kAnswer = 100;
constexpr std::uint16_t kStepFailed = 101;

template <typename T>
std::vector<std::byte> to_bytes(const T* values, std::size_t count) {
  const auto bytes = std::as_bytes(std::span(values, count));
  return {bytes.begin(), bytes.end()};
}

std::uint64_t read_number(std::span<const std::byte> body) {
  std::uint64_t number = 0;
  if (body.size() != sizeof number)
    fail("an order of {} bytes has no number of {}", body.size(), sizeof number);
  std::memcpy(&number, body.data(), sizeof number);
  return number;
}

std::vector<BlockId> read_blocks(std::span<const std::byte> body) {
  if (body.size() % sizeof(BlockId) != 0) fail("an order of {} bytes has no list of blocks", body.size());
  std::vector<BlockId> blocks(body.size() / sizeof(BlockId));
  if (!blocks.empty()) std::memcpy(blocks.data(), body.data(), body.size());
  return blocks;
}

std::vector<std::byte> encode_body(const RankOrder& order) {
  const std::uint64_t memory = order.kv_cache_memory;
  switch (order.kind) {
    case RankOrder::Kind::kResolve:
      return to_bytes(&memory, 1);
    case RankOrder::Kind::kSubmit:
    case RankOrder::Kind::kSubmitProfiled:
      return encode(*order.plan);
    case RankOrder::Kind::kPoison:
      return to_bytes(order.blocks.data(), order.blocks.size());
    default:
      return {};
  }
}

RankOrder decode_order(const ControlMessage& message) {
  if (message.kind > static_cast<std::uint16_t>(RankOrder::Kind::kStop))
    fail("an order of kind {} is not known; do all ranks run the same version?", message.kind);
  RankOrder order;
  order.kind = static_cast<RankOrder::Kind>(message.kind);
  if (order.kind == RankOrder::Kind::kResolve) order.kv_cache_memory = read_number(message.body);
  if (order.kind == RankOrder::Kind::kPoison) order.blocks = read_blocks(message.body);
  if (order.kind == RankOrder::Kind::kSubmit || order.kind == RankOrder::Kind::kSubmitProfiled)
    order.plan = std::make_shared<const StepPlan>(decode_plan(message.body));
  return order;
}

// A number; then whether it failed, and the error's text or what is common.
void send_answer(ControlChannel& channel, const RankAnswer& answer) {
  std::vector<std::byte> body = to_bytes(&answer.num_blocks, 1);
  const bool failed = !answer.error.empty();
  body.push_back(std::byte{failed});
  const std::string& said = failed ? answer.error : answer.common;
  const auto text = to_bytes(said.data(), said.size());
  body.insert(body.end(), text.begin(), text.end());
  channel.send(0, kAnswer, body);
}

std::string read_text(std::span<const std::byte> body) {
  return {reinterpret_cast<const char*>(body.data()), body.size()};
}

}  // namespace

std::string of_rank(int rank, int size, const std::string& why) {
  return format_text("rank {} of {}: {}", rank, size, why);
}

ThreadLink::ThreadLink(int rank, int size, std::unique_ptr<Rank> it, std::function<void()> before_step,
                       std::function<void(const std::string&)> on_failure)
    : rank_(rank),
      size_(size),
      it_(std::move(it)),
      before_step_(std::move(before_step)),
      on_failure_(std::move(on_failure)),
      thread_([this] { run(); }) {}

ThreadLink::~ThreadLink() {
  send({.kind = RankOrder::Kind::kStop});
  thread_.join();
}

bool ThreadLink::leave(std::chrono::milliseconds patience) {
  send({.kind = RankOrder::Kind::kStop});
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience, [this] { return ended_; })) {
    [[maybe_unused]] const Rank* const left = it_.release();
    return true;
  }
  lock.unlock();
  const std::lock_guard calling(calling_);
  on_failure_ = {};
  return false;
}

void ThreadLink::send(const RankOrder& order) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(order);
  }
  changed_.notify_all();
}

RankAnswer ThreadLink::answer(double patience) {
  std::unique_lock lock(mutex_);
  if (!wait_patiently(changed_, lock, patience, [this] { return !answers_.empty(); }))
    fail("rank {} of {} is lost: no answer for {:g} s", rank_, size_, patience);
  RankAnswer answer = std::move(answers_.front());
  answers_.pop_front();
  return answer;
}

RankOrder ThreadLink::next_order() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !orders_.empty(); });
  RankOrder order = std::move(orders_.front());
  orders_.pop_front();
  return order;
}

void ThreadLink::run() {
  name_thread("quire-rank");
  for (;;) {
    const RankOrder order = next_order();
    const bool ends = order.kind == RankOrder::Kind::kStop;
    RankAnswer answer = ends ? RankAnswer{} : execute(order);
    {
      const std::lock_guard lock(mutex_);
      if (order.is_answered()) answers_.push_back(std::move(answer));
      ended_ = ends;
    }
    changed_.notify_all();
    if (ends) return;
  }
}

// A step that failed stays so until it is dropped.
RankAnswer ThreadLink::execute(const RankOrder& order) {
  if (order.kind == RankOrder::Kind::kDrop) failure_.clear();
  if (!failure_.empty()) return {.error = failure_};
  try {
    if (before_step_ && order.plan) before_step_();
    return it_->execute(order);
  } catch (const std::exception& e) {
    RankAnswer failed{.error = of_rank(rank_, size_, e.what())};
    if (!order.is_answered()) failure_ = failed.error;
    it_->abandon();
    const std::lock_guard calling(calling_);
    if (on_failure_) on_failure_(failed.error);
    return failed;
  }
}

void send_order(ControlChannel& channel, const RankOrder& order) {
  const std::vector<std::byte> body = encode_body(order);
  if (body.size() > ControlChannel::kMaxBody)
    fail("a step plan of {} bytes; other processes take {}", body.size(), ControlChannel::kMaxBody);
  channel.broadcast(static_cast<std::uint16_t>(order.kind), body);
}

RankAnswer receive_answer(ControlChannel& channel, int rank, double patience) {
  const std::optional<ControlMessage> message = channel.receive(rank, patience);
  if (!message) fail("{}", of_rank(rank, channel.size(), "it has ended"));
  if (message->kind == kStepFailed) fail("{}", of_rank(rank, channel.size(), read_text(message->body)));
  constexpr std::size_t kHead = sizeof(std::uint64_t) + 1;
  const std::span<const std::byte> body = message->body;
  if (message->kind != kAnswer || body.size() < kHead)
    fail("{}", of_rank(rank, channel.size(), "its answer is not known; do all ranks run the same version?"));
  RankAnswer answer{.num_blocks = read_number(body.first(sizeof(std::uint64_t)))};
  const bool failed = body[kHead - 1] != std::byte{0};
  const std::string said = read_text(body.subspan(kHead));
  if (failed)
    answer.error = of_rank(rank, channel.size(), said);
  else
    answer.common = said;
  return answer;
}

std::string describe(const Loss& loss, ControlChannel& channel) {
  try {
    while (const auto message = channel.try_receive(loss.rank))
      if (message->kind == kStepFailed) return of_rank(loss.rank, loss.size, read_text(message->body));
  } catch (const Error&) {  // the loss itself: there is no message
  }
  return loss.text();
}

void follow_orders(ControlChannel& channel, const std::function<std::unique_ptr<Rank>()>& make) {
  std::unique_ptr<Rank> rank;
  std::uint64_t step = 0;
  while (const std::optional<ControlMessage> message = channel.receive(0)) {
    if (message->kind == static_cast<std::uint16_t>(RankOrder::Kind::kStop)) return;
    RankAnswer answer;
    bool answered = false;
    try {
      const RankOrder order = decode_order(*message);
      answered = order.is_answered();
      if (order.plan) channel.set_progress(step = order.plan->id);
      if (rank == nullptr) rank = make();
      answer = rank->execute(order);
    } catch (const std::exception& e) {
      answer.error = e.what();
      if (!answered) {
        answer.error = format_text("step {}: {}", step, answer.error);
        channel.send(0, kStepFailed, to_bytes(answer.error.data(), answer.error.size()));
        throw;
      }
    }
    if (answered) send_answer(channel, answer);
  }
}

}  // namespace quire
