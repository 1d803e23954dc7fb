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

// A struct's members in the order of their declaration, for writing and reading alike. A binding must name
// all members, so that a struct with a new one does not compile here until the member is sent, too.
template <typename Archive, typename Struct>
constexpr void members(Archive& archive, Struct& object) {
  using Type = std::remove_const_t<Struct>;
  if constexpr (std::same_as<Type, BlockCopy> || std::same_as<Type, SamplingState::Bias>) {
    auto& [a, b] = object;
    archive(a, b);
  } else if constexpr (std::same_as<Type, StepPlan>) {
    auto& [a, b, c, d, e, f] = object;
    archive(a, b, c, d, e, f);
  } else {  // SequencePlan, SamplingState
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = object;
    archive(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  }
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

// Writes values to `out`, or only counts their bytes where that is null.
class Writer {
 public:
  constexpr explicit Writer(std::byte* out) : out_(out) {}

  template <typename... T>
  constexpr void operator()(const T&... values) {
    (write(values), ...);
  }

  constexpr std::size_t size() const { return size_; }

 private:
  constexpr void add(const void* data, std::size_t bytes) {
    if (out_ != nullptr) std::memcpy(out_ + size_, data, bytes);
    size_ += bytes;
  }

  constexpr void write(const Scalar auto& value) { add(&value, sizeof value); }

  template <typename T>
  constexpr void write(const std::vector<T>& values) {
    QUIRE_CHECK(values.size() <= std::numeric_limits<std::uint32_t>::max());
    write(static_cast<std::uint32_t>(values.size()));
    if constexpr (Number<T>) {
      if (!values.empty()) add(values.data(), values.size() * sizeof(T));
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
    members(*this, value);
  }

  std::byte* out_;
  std::size_t size_ = 0;
};

template <typename... T>
constexpr std::size_t encoded_bytes(const T&... values) {
  Writer count(nullptr);
  count(values...);
  return count.size();
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
      fail("step plan: cut short: byte {} begins a value of {} bytes, of {} in all", at_, bytes,
           message_.size());
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
      fail("step plan: a size of {} before byte {}: that takes {} bytes or more, {} are left", size, at_,
           size * kElementBytes, num_left());
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
    members(*this, value);
  }

  std::span<const std::byte> message_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::byte> encode(const StepPlan& plan) {
  std::vector<std::byte> message(encoded_bytes(kMagic, kVersion, plan));
  Writer write(message.data());
  write(kMagic, kVersion, plan);
  QUIRE_CHECK(write.size() == message.size());
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
