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
constexpr std::uint32_t kVersion = 5;            // of the fields below: any change of them takes a new one

// Of what is sent as its bytes in memory, what any bytes are a value of: a vector is copied as a whole.
template <typename T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// The walk over a value, for writing and reading alike: a struct's members in the order of their declaration.
// A binding must name all members, so that a struct with a new one does not compile here until it is sent,
// too.
template <typename Archive, typename T>
constexpr void walk(Archive& archive, T& value) {
  using Type = std::remove_const_t<T>;
  const auto walk_all = [&archive](auto&... members) { (walk(archive, members), ...); };
  if constexpr (std::is_arithmetic_v<Type> || std::is_enum_v<Type>) {
    archive.scalar(value);
  } else if constexpr (requires { value.capacity(); }) {  // a vector
    archive.size_of(value);
    if constexpr (Number<typename Type::value_type>) {
      if (!value.empty()) archive.bytes(value.data(), value.size() * sizeof value[0]);
    } else {
      for (auto& element : value) walk(archive, element);
    }
  } else if constexpr (requires { value.has_value(); }) {  // an optional
    archive.presence_of(value);
    if (value) walk(archive, *value);
  } else if constexpr (std::same_as<Type, BlockCopy> || std::same_as<Type, SamplingState::Bias> ||
                       std::same_as<Type, StepMasks> || std::same_as<Type, StateCopies>) {
    auto& [a, b] = value;
    walk_all(a, b);
  } else if constexpr (std::same_as<Type, StepPlan>) {
    auto& [a, b, c, d, e, f, g, decisions] = value;  // which ranks have no use for
    walk_all(a, b, c, d, e, f, g);
  } else if constexpr (std::same_as<Type, SamplingState>) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = value;
    walk_all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else {  // SequencePlan
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = value;
    walk_all(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
  }
}

// Writes to `out`, or only counts the bytes where that is null.
class Writer {
 public:
  constexpr explicit Writer(std::byte* out) : out_(out) {}
  constexpr std::size_t size() const { return size_; }

  constexpr void bytes(const void* data, std::size_t count) {
    if (out_ != nullptr) std::memcpy(out_ + size_, data, count);
    size_ += count;
  }
  constexpr void scalar(const auto& value) { bytes(&value, sizeof value); }
  constexpr void size_of(const auto& values) {
    QUIRE_CHECK(values.size() <= std::numeric_limits<std::uint32_t>::max());
    scalar(static_cast<std::uint32_t>(values.size()));
  }
  constexpr void presence_of(const auto& value) { scalar(value.has_value()); }

 private:
  std::byte* out_;
  std::size_t size_ = 0;
};

template <typename T>
constexpr std::size_t encoded_bytes(const T& value) {
  Writer count(nullptr);
  walk(count, value);
  return count.size();
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> message) : message_(message) {}
  std::size_t num_left() const { return message_.size() - at_; }

  void bytes(void* to, std::size_t count) {
    if (count > num_left()) [[unlikely]]
      fail("step data: cut short: byte {} begins a value of {} bytes, of {} in all", at_, count,
           message_.size());
    std::memcpy(to, message_.data() + at_, count);
    at_ += count;
  }
  void scalar(Number auto& value) { bytes(&value, sizeof value); }
  void scalar(bool& value) {
    const std::uint8_t byte = next_byte();
    if (byte > 1) fail("step data: byte {} must be a bool, 0 or 1, not {}", at_ - 1, byte);
    value = byte == 1;
  }
  void scalar(OutputKind& kind) {
    const std::uint8_t byte = next_byte();
    kind = OutputKind{byte};
    if (byte >= kNumOutputKinds) fail("step data: byte {} must be an output kind, not {}", at_ - 1, byte);
  }
  template <typename T>
  void size_of(std::vector<T>& values) {
    std::uint32_t size = 0;
    scalar(size);
    // An element takes no less than one that holds nothing.
    constexpr std::size_t kElementBytes = encoded_bytes(T{});
    if (size > num_left() / kElementBytes) [[unlikely]]
      fail("step data: a size of {} before byte {}: that takes {} bytes or more, {} are left", size, at_,
           size * kElementBytes, num_left());
    values.resize(size);
  }
  template <typename T>
  void presence_of(std::optional<T>& value) {
    bool set = false;
    scalar(set);
    if (set) value.emplace();
  }

 private:
  std::uint8_t next_byte() {
    std::uint8_t byte = 0;
    scalar(byte);
    return byte;
  }

  std::span<const std::byte> message_;
  std::size_t at_ = 0;
};

template <typename T>
std::vector<std::byte> encode_message(const T& value) {
  std::vector<std::byte> message(sizeof kMagic + sizeof kVersion + encoded_bytes(value));
  Writer writer(message.data());
  writer.scalar(kMagic);
  writer.scalar(kVersion);
  walk(writer, value);
  QUIRE_CHECK(writer.size() == message.size());
  return message;
}

template <typename T>
T decode_message(std::span<const std::byte> message) {
  Reader reader(message);
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  reader.scalar(magic);
  if (magic != kMagic) fail("step data: begins with {:#010x}, not with {:#010x}", magic, kMagic);
  reader.scalar(version);
  if (version != kVersion)
    fail("step data: version {}, but this program reads version {}; all ranks must run the same Quire",
         version, kVersion);
  T value;
  walk(reader, value);
  if (reader.num_left() != 0)
    fail("step data: {} bytes are left over of {}", reader.num_left(), message.size());
  return value;
}

}  // namespace

std::vector<std::byte> encode(const StepPlan& plan) { return encode_message(plan); }
std::vector<std::byte> encode(const SamplingState& sampling) { return encode_message(sampling); }
std::vector<std::byte> encode(const StepMasks& masks) { return encode_message(masks); }

StepPlan decode_plan(std::span<const std::byte> message) { return decode_message<StepPlan>(message); }
SamplingState decode_sampling(std::span<const std::byte> message) {
  return decode_message<SamplingState>(message);
}
StepMasks decode_masks(std::span<const std::byte> message) { return decode_message<StepMasks>(message); }

}  // namespace quire
