#include "base/json.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <mutex>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/json_builder.h"

namespace quire {
namespace {

static_assert(JsonPart<Json::object_t> && JsonPart<Json::array_t> && JsonPart<OrderedJson::object_t> &&
              JsonPart<OrderedJson::array_t>);

// For people: columns are characters.
std::string place_of(std::string_view text, std::size_t position) {
  const std::string_view before = text.substr(0, position);
  const auto line = std::ranges::count(before, '\n') + 1;
  const std::string_view its_begin = before.substr(before.rfind('\n') + 1);  // npos + 1 is 0
  const auto column = std::ranges::count_if(its_begin, [](char c) { return (c & 0xC0) != 0x80; });
  return format_text("line {}, column {}", line, column + 1);
}

template <typename J>
J parse_strict(std::string_view text, std::string_view where, const JsonLimits& limits) {
  JsonBuilder<J> builder(text, where, limits);
  J::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

// Where the system has no memory for what may not fail.
constinit std::mutex reserve_mutex;
constinit std::size_t reserve_used = 0;
constinit std::size_t reserve_count = 0;  // of parts that are taken
alignas(std::max_align_t) constinit std::byte reserve[std::size_t{64} << 20] = {};

std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t kAlignment = alignof(std::max_align_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename J>
bool is_text(const J& value, std::string_view text) {
  const auto* const own = value.template get_ptr<const std::string*>();
  return own != nullptr && *own == text;
}

}  // namespace

void* allocate_json(std::size_t bytes) {
  if (void* const memory = ::operator new(bytes, std::nothrow)) return memory;
  const std::scoped_lock lock(reserve_mutex);
  if (aligned(bytes) > sizeof(reserve) - reserve_used) throw std::bad_alloc();
  ++reserve_count;
  return reserve + std::exchange(reserve_used, reserve_used + aligned(bytes));
}

void free_json(void* memory, std::size_t bytes) noexcept {
  const std::less<const void*> is_before;
  if (is_before(memory, reserve) || !is_before(memory, reserve + sizeof(reserve)))
    return ::operator delete(memory);
  const std::scoped_lock lock(reserve_mutex);
  if (static_cast<std::byte*>(memory) + aligned(bytes) == reserve + reserve_used)
    reserve_used -= aligned(bytes);
  if (--reserve_count == 0) reserve_used = 0;
}

void check_json_text(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    fail("{}: {} bytes of JSON, more than the limit of {}", where, text.size(), limits.max_bytes);
  if (const std::size_t nul = text.find('\0'); nul != text.npos)
    fail("{}: not valid JSON: a NUL byte at {}", where, place_of(text, nul));
}

void fail_syntax(std::string_view text, std::string_view where, std::size_t position,
                 const nlohmann::json::exception& error) {
  constexpr int kOutOfRange = 406;  // the library's number of it
  if (position > text.size())
    fail("{}: not valid JSON: it ends too early, at {}", where, place_of(text, text.size()));
  const std::string place = place_of(text, position - 1);
  if (error.id == kOutOfRange) fail("{}: not valid JSON: a number too large, up to {}", where, place);
  std::size_t end = position;  // of the character that begins there
  while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
  fail("{}: not valid JSON: unexpected {} at {}", where,
       in_quotes(text.substr(position - 1, end - position + 1)), place);
}

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return parse_strict<Json>(text, where, limits);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return parse_strict<OrderedJson>(text, where, limits);
}

bool erase_key(OrderedJson& object, std::string_view key) {
  if (!object.contains(key)) return false;
  auto& members = object.get_ref<OrderedJson::object_t&>();
  OrderedJson::object_t kept;
  kept.reserve(members.size());
  for (auto& [name, value] : members)
    if (name != key) kept.emplace_back(name, std::move(value));
  members.swap(kept);
  return true;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kMaxBytes = 200;
  const Json shown = std::string(text.substr(0, kMaxBytes)) + (text.size() > kMaxBytes ? "..." : "");
  return shown.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string describe(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  return value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : value.dump();
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code ec;
  const auto status = std::filesystem::status(path, ec);
  if (!std::filesystem::exists(status)) fail("{}: no such file", path.string());
  if (!std::filesystem::is_regular_file(status)) fail("{}: not a regular file", path.string());
  const auto size = std::filesystem::file_size(path, ec);
  if (ec) fail("{}: cannot read ({})", path.string(), ec.message());
  if (size > max_bytes) fail("{}: {} bytes, more than the limit of {}", path.string(), size, max_bytes);
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) fail("{}: cannot read", path.string());
  return text;
}

}  // namespace quire

namespace nlohmann {

bool operator==(const quire::Json& value, const char* text) noexcept { return quire::is_text(value, text); }
bool operator==(const quire::OrderedJson& value, const char* text) noexcept {
  return quire::is_text(value, text);
}

}  // namespace nlohmann
