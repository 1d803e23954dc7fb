#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_object.h"

struct pcre2_real_code_8;

namespace quire {

// The modules that an entry of a quantization_config means. Such a configuration is untrusted: a pattern has
// at most 4,096 bytes, and PCRE2 matches it within a number of steps and on the heap, where std::regex would
// recurse on the stack as deeply as the name is long.
class ModulePattern {
 public:
  // A regular expression that matches from a name's beginning, as Python's re.match; else whole components of
  // a name, one after the other: "lm_head", "layers.0.mlp", where * stands for any text. Error that names the
  // key of the configuration where it cannot be used.
  ModulePattern(std::string_view text, bool is_regex, const ConfigObject& config, std::string_view key);

  bool is_regex() const { return code_ != nullptr; }
  bool matches(std::string_view name) const;

 private:
  std::string text_;
  std::shared_ptr<const pcre2_real_code_8> code_;  // null: components
};

// A list of modules' names; entries that begin with "re:" are regular expressions.
class ModuleList {
 public:
  ModuleList() = default;
  ModuleList(const ConfigObject& config, std::string_view key);

  enum class Match { kNone, kRegex, kName };
  // The nearest way in which an entry means the module, which is called by any of these names.
  Match match(std::span<const std::string> spellings) const;
  bool contains(std::span<const std::string> spellings) const { return match(spellings) != Match::kNone; }

 private:
  std::vector<ModulePattern> patterns_;
};

}  // namespace quire
