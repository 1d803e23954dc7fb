#include "base/json.h"

#include <fstream>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

// Passes every event of the parser and refuses what the library would let pass: repeated keys, unbounded
// nesting, and objects too large for ordered JSON, whose look-up is linear.
template <typename J>
class StrictFilter {
 public:
  StrictFilter(const JsonLimits& limits, std::string_view where) : limits_(limits), where_(where) {}

  bool operator()(int depth, typename J::parse_event_t event, J& parsed) {
    switch (event) {
      case J::parse_event_t::value:
        count_value();
        break;
      case J::parse_event_t::object_start:
        count_value();
        keys_.emplace_back();
        check_depth(depth);
        break;
      case J::parse_event_t::array_start:
        count_value();
        check_depth(depth);
        break;
      case J::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case J::parse_event_t::key:
        add_key(parsed.template get_ref<const std::string&>());
        break;
      default:
        break;
    }
    return true;
  }

 private:
  static constexpr std::size_t kMaxKeys =
      std::is_same_v<J, OrderedJson> ? 4096 : std::numeric_limits<std::size_t>::max();

  void add_key(const std::string& key) {
    if (!keys_.back().insert(key).second)
      fail("{}: the key {} stands twice in one object", where_, in_quotes(key));
    if (keys_.back().size() > kMaxKeys) fail("{}: an object of more than {} keys", where_, kMaxKeys);
  }
  void count_value() {
    if (++values_ > limits_.max_values) fail("{}: more than {} JSON values", where_, limits_.max_values);
  }
  void check_depth(int depth) const {
    if (static_cast<std::size_t>(depth) >= limits_.max_depth) {
      fail("{}: JSON nested deeper than {} levels", where_, limits_.max_depth);
    }
  }

  const JsonLimits& limits_;
  std::string_view where_;
  std::size_t values_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of each open object
};

template <typename J>
J parse_strict(std::string_view text, std::string_view where, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    fail("{}: {} bytes of JSON, more than the limit of {}", where, text.size(), limits.max_bytes);
  }
  // The library takes a NUL byte for the end of its input and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) fail("{}: not valid JSON (a NUL byte)", where);
  StrictFilter<J> filter(limits, where);
  try {
    return J::parse(text.begin(), text.end(), std::ref(filter));
  } catch (const nlohmann::json::exception& e) {
    fail("{}: not valid JSON ({})", where, e.what());
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return parse_strict<Json>(text, where, limits);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return parse_strict<OrderedJson>(text, where, limits);
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
