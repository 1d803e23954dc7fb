#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"

namespace quire {

// A key of a configuration file in all its spellings: "hidden_size", or {"n_embd", "hidden_size"}. The first
// one that stands in the file counts. Refers to the caller's text: a parameter type only.
class ConfigKey {
 public:
  ConfigKey(const char* spelling) : spellings_{spelling} {}         // NOLINT: converts on purpose
  ConfigKey(const std::string& spelling) : spellings_{spelling} {}  // NOLINT
  ConfigKey(std::initializer_list<std::string_view> spellings) : spellings_(spellings) {}
  const std::vector<std::string_view>& spellings() const { return spellings_; }

 private:
  std::vector<std::string_view> spellings_;
};

struct IntRange {
  int min = 1;
  int max = std::numeric_limits<int>::max();
};

struct DoubleRange {  // both ends belong to it
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};
inline constexpr DoubleRange kNonNegative{.min = 0.0};
inline constexpr DoubleRange kPositive{.min = std::numeric_limits<double>::min()};
inline constexpr DoubleRange kFraction{.min = kPositive.min, .max = 1.0};

// Typed access to one JSON object of an untrusted configuration file. A null counts as absent. A value of the
// wrong type or out of range is an Error that names file and key and says what would be right; so is a
// required key that is absent.
class ConfigObject {
 public:
  // `where` names the file in errors. Error when the text is no JSON object.
  ConfigObject(std::string_view text, std::string where);
  // path: of this object in the file, with a dot behind it.
  ConfigObject(std::shared_ptr<const Json> object, std::string where, std::string path = {});
  static ConfigObject read_file(const std::filesystem::path& path);

  bool empty() const;
  bool contains(const ConfigKey& key) const { return find(key).value != nullptr; }
  bool is_null(const std::string& key) const;  // it stands in the file, as null
  std::vector<std::string> keys() const;       // sorted

  std::optional<int> find_int(const ConfigKey& key, IntRange range = {}) const;
  std::optional<double> find_double(const ConfigKey& key, DoubleRange range = {}) const;
  std::optional<float> find_float(const ConfigKey& key, DoubleRange range = {}) const;
  std::optional<bool> find_bool(const ConfigKey& key) const;
  std::optional<std::string> find_string(const ConfigKey& key) const;
  std::optional<ConfigObject> find_object(const ConfigKey& key) const;
  std::vector<int> get_ints(const ConfigKey& key, IntRange range = {}) const;           // absent: empty
  std::vector<double> get_doubles(const ConfigKey& key, DoubleRange range = {}) const;  // absent: empty
  std::vector<std::string> get_strings(const ConfigKey& key) const;                     // absent: empty
  std::vector<std::int32_t> get_token_ids(const ConfigKey& key) const;                  // an id or a list

  int get_int(const ConfigKey& key, int fallback, IntRange range = {}) const {
    return find_int(key, range).value_or(fallback);
  }
  double get_double(const ConfigKey& key, double fallback, DoubleRange range = {}) const {
    return find_double(key, range).value_or(fallback);
  }
  float get_float(const ConfigKey& key, float fallback, DoubleRange range = {}) const {
    return find_float(key, range).value_or(fallback);
  }
  bool get_bool(const ConfigKey& key, bool fallback) const { return find_bool(key).value_or(fallback); }
  std::string get_string(const ConfigKey& key, std::string_view fallback) const {
    return find_string(key).value_or(std::string(fallback));
  }

  int require_int(const ConfigKey& key, IntRange range = {}) const {
    return required(key, find_int(key, range));
  }
  double require_double(const ConfigKey& key, DoubleRange range = {}) const {
    return required(key, find_double(key, range));
  }
  std::string require_string(const ConfigKey& key) const { return required(key, find_string(key)); }

  // Throws an Error that names file and key: "FILE: KEY PROBLEM".
  [[noreturn]] void fail_at(std::string_view key, std::string_view problem) const;

 protected:
  struct Found {
    std::string_view key;  // the spelling in the file
    const Json* value;     // nullptr: absent
  };

  Found find(const ConfigKey& key) const;
  int to_int(std::string_view key, const Json& value, IntRange range) const;
  template <typename T>
  T required(const ConfigKey& key, std::optional<T> value) const {
    if (!value) fail_absent(key);
    return *std::move(value);
  }

 private:
  [[noreturn]] void fail_absent(const ConfigKey& key) const;
  [[noreturn]] void fail_type(std::string_view key, std::string_view expected, const Json& value) const;
  double to_double(std::string_view key, const Json& value, DoubleRange range) const;

  std::shared_ptr<const Json> json_;  // this object, kept with the whole file
  std::string where_;
  std::string path_;  // of this object in the file, such as "rope_scaling."
};

}  // namespace quire
