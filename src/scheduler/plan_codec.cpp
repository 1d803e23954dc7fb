#include "scheduler/plan_codec.h"

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/error.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "messages hold numbers as memory does");
static_assert(sizeof(int) == 4 && sizeof(bool) == 1 && std::numeric_limits<float>::is_iec559);

constexpr std::uint32_t kMagic = 0x4E'4C'50'51;  // the bytes QPLN
constexpr std::uint32_t kVersion = 2;            // of the fields below: any change of them takes a new one

// What is sent as its bytes in memory.
template <typename T>
concept Scalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// Of these, what any bytes are a value of: a vector is copied as a whole.
template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

template <typename T, typename Struct>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Struct>;

// The fields of each struct in their order, for writing and reading alike. A binding must name all members,
// so that a struct with a new one does not compile here until the member is sent, too.
template <typename Archive>
constexpr void fields(Archive& archive, MaybeConst<BlockCopy> auto& copy) {
  auto& [from, to] = copy;
  archive(from, to);
}

template <typename Archive>
constexpr void fields(Archive& archive, MaybeConst<SamplingState::Bias> auto& bias) {
  auto& [id, value] = bias;
  archive(id, value);
}

template <typename Archive>
constexpr void fields(Archive& archive, MaybeConst<SamplingState> auto& state) {
  auto& [temperature, top_p, min_p, top_k, seed, stop_ids, presence_penalty, frequency_penalty,
         repetition_penalty, biases, allowed_ids, bad_words, num_logprobs, num_prompt_logprobs] = state;
  archive(temperature, top_p, min_p, top_k, seed, stop_ids, presence_penalty, frequency_penalty,
          repetition_penalty, biases, allowed_ids, bad_words, num_logprobs, num_prompt_logprobs);
}

template <typename Archive>
constexpr void fields(Archive& archive, MaybeConst<SequencePlan> auto& plan) {
  auto& [sequence, seat, start, history, num_prompt, first_position, num_tokens, tokens, first_new_row,
         new_blocks, output, next_token, sample, mask_stop] = plan;
  archive(sequence, seat, start, history, num_prompt, first_position, num_tokens, tokens, first_new_row,
          new_blocks, output, next_token, sample, mask_stop);
}

template <typename Archive>
constexpr void fields(Archive& archive, MaybeConst<StepPlan> auto& plan) {
  auto& [id, num_tokens, sequences, saves, block_copies, restores] = plan;
  archive(id, num_tokens, sequences, saves, block_copies, restores);
}

constexpr bool is_known(OutputKind kind) {
  switch (kind) {  // without a default: the compiler asks for a new kind
    case OutputKind::kNone:
    case OutputKind::kLast:
    case OutputKind::kLastHidden:
    case OutputKind::kHiddenSum:
    case OutputKind::kHiddenMean:
    case OutputKind::kAll:
    case OutputKind::kLogprobs:
      return true;
  }
  return false;
}

// Counts the bytes of a message, which is then allocated at once.
class Counter {
 public:
  constexpr void add(const void* /*data*/, std::size_t bytes) { size_ += bytes; }
  constexpr std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

// Fills a message that a Counter has measured.
class Filler {
 public:
  explicit Filler(std::byte* out) : out_(out) {}
  void add(const void* data, std::size_t bytes) {
    std::memcpy(out_, data, bytes);
    out_ += bytes;
  }
  const std::byte* end() const { return out_; }

 private:
  std::byte* out_;
};

template <typename Sink>
class Writer {
 public:
  constexpr explicit Writer(Sink& sink) : sink_(sink) {}

  template <typename... T>
  constexpr void operator()(const T&... values) {
    (write(values), ...);
  }

 private:
  constexpr void write(const Scalar auto& value) { sink_.add(&value, sizeof value); }

  template <typename T>
  constexpr void write(const std::vector<T>& values) {
    QUIRE_CHECK(values.size() <= std::numeric_limits<std::uint32_t>::max());
    write(static_cast<std::uint32_t>(values.size()));
    if constexpr (Number<T>) {
      if (!values.empty()) sink_.add(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) write(value);
    }
  }

  template <typename T>
  constexpr void write(const std::optional<T>& value) {
    write(value.has_value());
    if (value) write(*value);
  }

  template <typename T>
  constexpr void write(const T& value) {
    fields(*this, value);
  }

  Sink& sink_;
};

template <typename... T>
constexpr std::size_t encoded_bytes(const T&... values) {
  Counter counter;
  Writer<Counter> write(counter);
  write(values...);
  return counter.size();
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : message_(message) {}

  template <typename... T>
  void operator()(T&... values) {
    (read(values), ...);
  }

  std::size_t num_left() const { return message_.size() - at_; }

 private:
  void copy(void* to, std::size_t bytes) {
    if (bytes > num_left()) [[unlikely]]
      fail_cut_short(bytes);
    std::memcpy(to, message_.data() + at_, bytes);
    at_ += bytes;
  }

  void read(Number auto& value) { copy(&value, sizeof value); }

  void read(bool& value) {
    std::uint8_t byte = 0;
    read(byte);
    if (byte > 1) fail("step plan: byte {} must be a bool, 0 or 1, not {}", at_ - 1, byte);
    value = byte == 1;
  }

  void read(OutputKind& kind) {
    std::uint8_t byte = 0;
    read(byte);
    kind = OutputKind{byte};
    if (!is_known(kind)) fail("step plan: byte {} must be an output kind, not {}", at_ - 1, byte);
  }

  template <typename T>
  void read(std::vector<T>& values) {
    std::uint32_t size = 0;
    read(size);
    if (size == 0) return;
    // An element takes no less than one that holds nothing.
    constexpr std::size_t kElementBytes = encoded_bytes(T{});
    if (size > num_left() / kElementBytes) [[unlikely]]
      fail_size(size, kElementBytes);
    values.resize(size);
    if constexpr (Number<T>) {
      copy(values.data(), size * sizeof(T));
    } else {
      for (T& value : values) read(value);
    }
  }

  template <typename T>
  void read(std::optional<T>& value) {
    bool set = false;
    read(set);
    if (set) read(value.emplace());
  }

  template <typename T>
  void read(T& value) {
    fields(*this, value);
  }

  [[noreturn]] void fail_cut_short(std::size_t bytes) const {
    fail("step plan: cut short: byte {} begins a value of {} bytes, of {} in all", at_, bytes,
         message_.size());
  }

  [[noreturn]] void fail_size(std::uint32_t size, std::size_t element_bytes) const {
    fail("step plan: a size of {} before byte {}: that takes {} bytes or more, {} are left", size, at_,
         size * element_bytes, num_left());
  }

  std::span<const std::byte> message_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::byte> encode(const StepPlan& plan) {
  std::vector<std::byte> message(encoded_bytes(kMagic, kVersion, plan));
  Filler filler(message.data());
  Writer<Filler> write(filler);
  write(kMagic, kVersion, plan);
  QUIRE_CHECK(filler.end() == message.data() + message.size());
  return message;
}

StepPlan decode_plan(std::span<const std::byte> message) {
  Reader read(message);
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  read(magic);
  if (magic != kMagic) fail("step plan: begins with {:#010x}, not with {:#010x}", magic, kMagic);
  read(version);
  if (version != kVersion)
    fail("step plan: version {}, but this program reads version {}; all ranks must run the same Quire",
         version, kVersion);
  StepPlan plan;
  read(plan);
  if (read.num_left() != 0) fail("step plan: {} bytes are left over of {}", read.num_left(), message.size());
  return plan;
}

}  // namespace quire
