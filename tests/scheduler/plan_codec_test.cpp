#include "scheduler/plan_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

using Message = std::vector<std::byte>;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kMagicAt = 0, kVersionAt = 4, kSequencesAt = 20;
constexpr std::size_t kVectorsOfAPlan = 6;

auto members(const SamplingState::Bias& bias) {
  const auto& [a, b] = bias;
  return std::tie(a, b);
}
auto members(const SamplingState& state) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = state;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
}
auto members(const SequencePlan& plan) {
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = plan;
  return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
}
auto members(const StateCopies& copies) {
  const auto& [a, b] = copies;
  return std::tie(a, b);
}
auto members(const StepPlan& plan) {
  const auto& [a, b, c, d, e, f, g, decisions] = plan;  // which stay where they are made
  return std::tie(a, b, c, d, e, f, g);
}

template <typename T>
concept HasMembers = requires(const T& value) {
  members(value);
};

template <typename T>
bool same(const T& a, const T& b);

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(a, b, [](const T& x, const T& y) { return same(x, y); });
}

template <typename T>
bool same(const std::optional<T>& a, const std::optional<T>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}

// Calls f with the pairs of members of two structs.
template <typename T, typename F>
void for_members(const T& a, const T& b, F&& f) {
  std::apply([&](const auto&... x) { std::apply([&](const auto&... y) { (f(x, y), ...); }, members(b)); },
             members(a));
}

template <typename T>
bool same(const T& a, const T& b) {
  if constexpr (HasMembers<T>) {
    bool all = true;
    for_members(a, b, [&](const auto& x, const auto& y) { all = all && same(x, y); });
    return all;
  } else {
    return a == b;
  }
}

// Fails for a struct with a member that is as in a new one: a test that means to set all does not.
template <typename T>
void expect_all_set(const T& value) {
  int index = 0;
  for_members(value, T{}, [&](const auto& x, const auto& y) {
    EXPECT_FALSE(same(x, y)) << "member " << index << " of " << typeid(T).name();
    ++index;
  });
}

SamplingState sampling_with_all() {
  return {.temperature = 0.7F,
          .top_p = 0.9F,
          .min_p = 0.05F,
          .top_k = 40,
          .seed = 0xFEDC'BA98'7654'3210,
          .stop_ids = {2, 128'001},
          .presence_penalty = 0.5F,
          .frequency_penalty = -0.25F,
          .repetition_penalty = 1.1F,
          .biases = {{.id = 17, .value = -100.0F}, {.id = 18, .value = 2.5F}},
          .allowed_ids = {5, 6, 7},
          .bad_words = {{1, 2, 3}, {}, {9}},
          .num_logprobs = 5,
          .num_prompt_logprobs = 0,
          .logprob_ids = {4, 9, 2, 7, 6}};
}

SequencePlan sequence_with_all() {
  return {.sequence = (std::uint64_t{1} << 40) + 3,
          .seat = 11,
          .start = sampling_with_all(),
          .history = {1, 50, 51, 52},
          .num_prompt = 3,
          .first_position = 2,
          .num_tokens = 2,
          .tokens = {51, 52},
          .first_new_row = 1,
          .new_blocks = {8, kNoBlock, 9},
          .state_from = 3,
          .state_to = 5,
          .output = OutputKind::kLogprobs,
          .next_token = 53,
          .sample = true,
          .mask_stop = true,
          .constrained = true};
}

StepPlan plan_with_all() {
  SequencePlan decode;
  decode.sequence = 4;
  decode.num_tokens = 1;
  decode.sample = true;
  return {.id = 0x0102'0304'0506'0708,
          .num_tokens = 3,
          .sequences = {sequence_with_all(), decode},
          .saves = {{1, 2}},
          .block_copies = {{3, 4}, {4, 5}},
          .restores = {{6, 7}, {8, 9}, {10, 11}},
          .state_copies = {.saves = {{1, 0}}, .restores = {{2, 3}, {0, 1}}},
          .decisions = {}};
}

class RandomPlans {
 public:
  explicit RandomPlans(unsigned seed) : random_(seed) {}

  StepPlan next() {
    StepPlan plan;
    plan.id = random_();
    plan.num_tokens = number();
    plan.sequences = list<SequencePlan>([&] { return sequence(); });
    for (auto* copies : {&plan.saves, &plan.block_copies, &plan.restores, &plan.state_copies.saves,
                         &plan.state_copies.restores})
      *copies = list<BlockCopy>([&] { return BlockCopy{number(), number()}; });
    return plan;
  }

 private:
  int number() { return static_cast<int>(static_cast<std::uint32_t>(random_())); }
  bool coin() { return random_() % 2 == 0; }
  float real() { return std::uniform_real_distribution<float>(-10, 10)(random_); }

  template <typename T, typename F>
  std::vector<T> list(F&& element) {
    std::vector<T> values(coin() ? 0 : random_() % 6);
    std::ranges::generate(values, element);
    return values;
  }
  std::vector<TokenId> numbers() {
    return list<TokenId>([&] { return number(); });
  }

  SamplingState sampling() {
    return {.temperature = real(),
            .top_p = real(),
            .min_p = real(),
            .top_k = number(),
            .seed = random_(),
            .stop_ids = numbers(),
            .presence_penalty = real(),
            .frequency_penalty = real(),
            .repetition_penalty = real(),
            .biases = list<SamplingState::Bias>([&] {
              return SamplingState::Bias{number(), real()};
            }),
            .allowed_ids = numbers(),
            .bad_words = list<std::vector<TokenId>>([&] { return numbers(); }),
            .num_logprobs = number(),
            .num_prompt_logprobs = number(),
            .logprob_ids = numbers()};
  }

  SequencePlan sequence() {
    return {.sequence = random_(),
            .seat = number(),
            .start = coin() ? std::optional(sampling()) : std::nullopt,
            .history = numbers(),
            .num_prompt = number(),
            .first_position = number(),
            .num_tokens = number(),
            .tokens = numbers(),
            .first_new_row = number(),
            .new_blocks = numbers(),
            .state_from = number(),
            .state_to = number(),
            .output = static_cast<OutputKind>(random_() % 7),
            .next_token = number(),
            .sample = coin(),
            .mask_stop = coin(),
            .constrained = coin()};
  }

  std::mt19937_64 random_;
};

// Why a message is refused; empty where it is not.
std::string refusal(const Message& message) {
  try {
    decode_plan(message);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// What is taken is the message that encode makes of it.
void expect_refused_or_canonical(const Message& message) {
  try {
    ASSERT_EQ(encode(decode_plan(message)), message);
  } catch (const Error&) {
  }
}

Message with_word(Message message, std::size_t at, std::uint32_t word) {
  std::memcpy(message.data() + at, &word, sizeof word);
  return message;
}

Message with_byte(Message message, std::size_t at, int byte) {
  message[at] = static_cast<std::byte>(byte);
  return message;
}

// Where the messages of two plans begin to differ.
std::size_t difference(const StepPlan& a, const StepPlan& b) {
  const Message x = encode(a), y = encode(b);
  return static_cast<std::size_t>(std::ranges::mismatch(x, y).in1 - x.begin());
}

// A plan of one sequence that is new but for what `change` does to it.
template <typename F>
StepPlan plan_of(F&& change) {
  StepPlan plan;
  change(plan.sequences.emplace_back());
  return plan;
}

// `change` gives one vector of a sequence's an element; its size is then the first that differs.
template <typename F>
void expect_size_is_checked(F&& change) {
  const StepPlan plan = plan_of([](auto& s) { s.start = SamplingState{}; });
  StepPlan other = plan;
  change(other.sequences[0]);
  const std::size_t at = difference(plan, other);
  for (const std::uint32_t size : {0xFFFF'FFFFU, 1000U})
    EXPECT_THAT(refusal(with_word(encode(other), at, size)), HasSubstr("a size of"));
}

TEST(PlanCodecTest, APlanWithEverythingSetComesBack) {
  const StepPlan plan = plan_with_all();
  expect_all_set(plan);
  expect_all_set(plan.state_copies);
  expect_all_set(plan.sequences[0]);
  expect_all_set(*plan.sequences[0].start);
  EXPECT_TRUE(same(decode_plan(encode(plan)), plan));
}

TEST(PlanCodecTest, AnEmptyPlanComesBack) {
  EXPECT_TRUE(same(decode_plan(encode(StepPlan{})), {}));
  EXPECT_EQ(encode(StepPlan{}).size(), kSequencesAt + kVectorsOfAPlan * 4);
}

TEST(PlanCodecTest, RandomPlansComeBack) {
  RandomPlans plans(1);
  for (int i = 0; i < 2000; ++i) {
    const StepPlan plan = plans.next();
    ASSERT_TRUE(same(decode_plan(encode(plan)), plan)) << i;
  }
}

// Those of other versions are refused at once, so that a fuzzer would learn nothing of them.
TEST(PlanCodecTest, TheFuzzersSeedsArePlans) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(QUIRE_SOURCE_DIR "/tests/fuzz/corpus/plan_codec")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string seed{std::istreambuf_iterator<char>(file), {}};
    const auto bytes = std::as_bytes(std::span(seed));
    EXPECT_TRUE(std::ranges::equal(encode(decode_plan(bytes)), bytes)) << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(PlanCodecTest, MasksComeBack) {
  const StepMasks masks{.rows = {1, 1, 0}, .bits = {0xFFFF'FFFF, 0, 7, 0x8000'0000}};
  const StepMasks back = decode_masks(encode(masks));
  EXPECT_EQ(back.rows, masks.rows);
  EXPECT_EQ(back.bits, masks.bits);
  Message cut = encode(masks);
  cut.pop_back();
  try {
    decode_masks(cut);
    FAIL() << "it is taken";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), StartsWith("step data: "));
  }
}

TEST(PlanCodecTest, FloatsKeepTheirBits) {
  SamplingState state;
  state.temperature = std::numeric_limits<float>::denorm_min();
  state.top_p = -0.0F;
  state.biases = {{1, -std::numeric_limits<float>::infinity()}};
  const StepPlan back = decode_plan(encode(plan_of([&](auto& s) { s.start = state; })));
  EXPECT_TRUE(same(back.sequences[0].start, std::optional(state)));
  EXPECT_TRUE(std::signbit(back.sequences[0].start->top_p));
}

// Other programs of the same version read these bytes. Where this fails the fields have changed: then
// kVersion of plan_codec.cpp goes up, and the new checksum (FNV-1a) comes here.
TEST(PlanCodecTest, AVersionHasOneLayout) {
  const Message message = encode(plan_with_all());
  std::uint64_t checksum = 0xCBF2'9CE4'8422'2325;
  for (const std::byte byte : message)
    checksum = (checksum ^ std::to_integer<unsigned>(byte)) * 0x100'0000'01B3;
  EXPECT_EQ(checksum, 2123713649648984234U);
}

TEST(PlanCodecTest, AMessageBeginsWithMagicVersionAndId) {
  const Message message = encode(plan_with_all());
  const std::string head(reinterpret_cast<const char*>(message.data()), 20);
  EXPECT_EQ(head, std::string("QPLN\5\0\0\0\x08\7\6\5\4\3\2\1\3\0\0\0", 20));
}

TEST(PlanCodecTest, EveryCutOffMessageIsRefused) {
  const Message message = encode(plan_with_all());
  for (std::size_t size = 0; size < message.size(); ++size) {
    // Of its own size, so that sanitizers see a read behind it.
    const Message cut(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_THROW(decode_plan(cut), Error) << size;
  }
}

TEST(PlanCodecTest, ALongerMessageIsRefused) {
  for (const StepPlan& plan : {StepPlan{}, plan_with_all()}) {
    Message message = encode(plan);
    message.push_back(std::byte{0});
    EXPECT_THAT(refusal(message), HasSubstr("1 bytes are left over"));
  }
}

TEST(PlanCodecTest, OtherMagicNumbersAndVersionsAreRefused) {
  const Message message = encode(plan_with_all());
  EXPECT_THAT(refusal(with_byte(message, kMagicAt, 'R')), HasSubstr("begins with"));
  EXPECT_THAT(refusal(with_word(message, kVersionAt, 0)), HasSubstr("version 0"));
  EXPECT_THAT(refusal(with_word(message, kVersionAt, 1)), HasSubstr("version 1"));
  EXPECT_THAT(refusal(with_word(message, kVersionAt, 1U << 31)), HasSubstr("version 2147483648"));
}

TEST(PlanCodecTest, ASizeBeyondTheMessageIsRefusedBeforeMemoryIsTaken) {
  const Message empty = encode(StepPlan{});
  for (std::size_t i = 0; i < kVectorsOfAPlan; ++i) {
    for (const std::uint32_t size : {0xFFFF'FFFFU, 0x8000'0000U, 1000U})
      EXPECT_THAT(refusal(with_word(empty, kSequencesAt + 4 * i, size)), HasSubstr("a size of"));
  }
  for (const auto member : {&SequencePlan::history, &SequencePlan::tokens, &SequencePlan::new_blocks})
    expect_size_is_checked([&](auto& s) { (s.*member).resize(1); });
  expect_size_is_checked([](auto& s) { s.start->stop_ids.resize(1); });
  expect_size_is_checked([](auto& s) { s.start->biases.resize(1); });
  expect_size_is_checked([](auto& s) { s.start->allowed_ids.resize(1); });
  expect_size_is_checked([](auto& s) { s.start->bad_words.resize(1); });
}

TEST(PlanCodecTest, ASizeIsTakenUpToWhatFillsTheMessage) {
  StepPlan plan;
  plan.state_copies.restores = {{1, 2}, {3, 4}};
  const Message message = encode(plan);
  const std::size_t size_at = kSequencesAt + 4 * (kVectorsOfAPlan - 1);
  EXPECT_EQ(refusal(with_word(message, size_at, 2)), "");
  EXPECT_THAT(refusal(with_word(message, size_at, 3)), HasSubstr("takes 24 bytes or more, 16 are left"));
}

TEST(PlanCodecTest, ABoolIsZeroOrOne) {
  const StepPlan plan = plan_of([](auto&) {});
  for (const StepPlan& other :
       {plan_of([](auto& s) { s.start = SamplingState{}; }), plan_of([](auto& s) { s.sample = true; }),
        plan_of([](auto& s) { s.mask_stop = true; }), plan_of([](auto& s) { s.constrained = true; })}) {
    const std::size_t at = difference(plan, other);
    EXPECT_THAT(refusal(with_byte(encode(other), at, 2)), HasSubstr("must be a bool"));
    EXPECT_THAT(refusal(with_byte(encode(other), at, 255)), HasSubstr("must be a bool"));
  }
}

TEST(PlanCodecTest, AnOutputKindIsOneThatThereIs) {
  const std::size_t at =
      difference(plan_of([](auto&) {}), plan_of([](auto& s) { s.output = OutputKind::kLast; }));
  const int last = static_cast<int>(OutputKind::kLogprobs);
  const Message message = encode(plan_of([](auto&) {}));
  for (int kind = 0; kind <= last; ++kind) {
    const StepPlan plan = decode_plan(with_byte(message, at, kind));
    EXPECT_EQ(plan.sequences[0].output, static_cast<OutputKind>(kind));
  }
  for (int kind = last + 1; kind < 256; ++kind)
    EXPECT_THAT(refusal(with_byte(message, at, kind)), HasSubstr("must be an output kind")) << kind;
}

TEST(PlanCodecTest, FlippedBitsAreRefusedOrAnotherPlan) {
  const Message message = encode(plan_with_all());
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    Message flipped = message;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    expect_refused_or_canonical(flipped);
  }
  std::mt19937 random(2);
  RandomPlans plans(3);
  for (int i = 0; i < 2000; ++i) {
    Message flipped = encode(plans.next());
    for (unsigned n = 1 + random() % 8; n > 0; --n)
      flipped[random() % flipped.size()] ^= static_cast<std::byte>(1U << random() % 8);
    expect_refused_or_canonical(flipped);
  }
}

}  // namespace
}  // namespace quire
