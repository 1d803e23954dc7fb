#include "engine/rank_link.h"

#include <cstring>

#include "base/error.h"
#include "base/thread_name.h"
#include "parallel/patience.h"
#include "scheduler/plan_codec.h"

namespace quire {
namespace {

// What ranks send to rank 0; orders' kinds come before.
enum AnswerKind : std::uint16_t { kAnswer = 100, kFailed };

// What orders and answers consist of: a number, and a step plan's bytes or a text.
struct Body {
  std::uint64_t number = 0;
  std::span<const std::byte> rest;
};

std::vector<std::byte> encode_body(const Body& body) {
  const auto number = std::as_bytes(std::span(&body.number, 1));
  std::vector<std::byte> bytes(number.begin(), number.end());
  bytes.insert(bytes.end(), body.rest.begin(), body.rest.end());
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
  if (message.kind > static_cast<std::uint16_t>(RankOrder::Kind::kStop))
    fail("an order of kind {} is not known; do all ranks run the same version?", message.kind);
  const Body body = decode_body(message);
  RankOrder order{.kind = static_cast<RankOrder::Kind>(message.kind), .kv_cache_memory = body.number};
  if (order.has_plan()) order.plan = std::make_shared<const StepPlan>(decode_plan(body.rest));
  return order;
}

void send_answer(ControlChannel& channel, AnswerKind kind, std::uint64_t number, std::string_view text) {
  channel.send(0, kind, encode_body({number, std::as_bytes(std::span(text))}));
}

std::string text_of(const ControlMessage& message) {
  const std::span<const std::byte> text = decode_body(message).rest;
  return {reinterpret_cast<const char*>(text.data()), text.size()};
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

void ThreadLink::run() {
  name_thread("quire-rank");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !orders_.empty(); });
    const RankOrder order = std::move(orders_.front());
    orders_.pop_front();
    if (order.kind == RankOrder::Kind::kStop) break;
    lock.unlock();
    RankAnswer answer = execute(order);
    lock.lock();
    if (order.is_answered()) answers_.push_back(std::move(answer));
    changed_.notify_all();
  }
  ended_ = true;
  changed_.notify_all();
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
  const std::vector<std::byte> plan = order.plan ? encode(*order.plan) : std::vector<std::byte>();
  const std::vector<std::byte> body = encode_body({order.kv_cache_memory, plan});
  if (body.size() > ControlChannel::kMaxBody)
    fail("a step plan of {} bytes; other processes take {}", body.size(), ControlChannel::kMaxBody);
  channel.broadcast(static_cast<std::uint16_t>(order.kind), body);
}

RankAnswer receive_answer(ControlChannel& channel, int rank, double patience) {
  const auto named = [&](const std::string& why) { return of_rank(rank, channel.size(), why); };
  const std::optional<ControlMessage> message = channel.receive(rank, patience);
  if (!message) fail("{}", named("it has ended"));
  if (message->kind == kFailed) return {.error = named(text_of(*message))};
  if (message->kind != kAnswer)
    fail("{}", named("its answer is not known; do all ranks run the same version?"));
  return {.num_blocks = decode_body(*message).number, .common = text_of(*message)};
}

void follow_orders(ControlChannel& channel, const std::function<std::unique_ptr<Rank>()>& make) {
  std::unique_ptr<Rank> rank;
  while (const std::optional<ControlMessage> message = channel.receive(0)) {
    bool answered = false;
    try {
      const RankOrder order = decode_order(*message);
      if (order.kind == RankOrder::Kind::kStop) return;
      answered = order.is_answered();
      if (order.plan) channel.set_progress(order.plan->id);
      if (rank == nullptr) rank = make();
      const RankAnswer answer = rank->execute(order);
      if (answered) send_answer(channel, kAnswer, answer.num_blocks, answer.common);
    } catch (const std::exception& e) {
      if (!answered) {
        channel.give_up(e.what());
        throw;
      }
      send_answer(channel, kFailed, 0, e.what());
    }
  }
}

}  // namespace quire
