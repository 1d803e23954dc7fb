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
  // A regular expression that matches from a name's beginning, as Python's re.match. `where` begins errors.
  static ModulePattern regex(std::string_view pattern, const std::string& where);
  // Whole components of a name, one after the other: "lm_head", "layers.0.mlp"; * stands for any text.
  static ModulePattern components(std::string_view pattern, const std::string& where);

  bool matches(std::string_view name) const;
  const std::string& text() const { return text_; }

 private:
  explicit ModulePattern(std::string text) : text_(std::move(text)) {}

  std::string text_;
  std::shared_ptr<const pcre2_real_code_8> code_;  // null: components
};

// A list of modules' names; entries that begin with "re:" are regular expressions.
class ModuleList {
 public:
  ModuleList() = default;
  ModuleList(const ConfigObject& config, std::string_view key);

  // Whether an entry means the module, which is called by any of these names.
  bool contains(std::span<const std::string> spellings) const;

 private:
  std::vector<ModulePattern> patterns_;
};

}  // namespace quire
