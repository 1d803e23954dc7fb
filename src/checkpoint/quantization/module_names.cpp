#include "checkpoint/quantization/module_names.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <new>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::size_t kMaxPatterns = 1 << 16;
constexpr std::uint32_t kMaxNesting = 50;       // of parentheses
constexpr std::uint32_t kMatchSteps = 100'000;  // of one match: about a millisecond
constexpr std::uint32_t kMatchHeapKib = 4 * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Whether the pattern, in which * stands for any text, is the whole text. Goes back to the last * alone, so
// it takes at most the product of their lengths.
bool glob(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, star = pattern.npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

bool begins_with_components(std::string_view name, const std::string& pattern) {
  if (pattern.find('*') != pattern.npos) return glob(pattern, name) || glob(pattern + ".*", name);
  return name.starts_with(pattern) && (name.size() == pattern.size() || name[pattern.size()] == '.');
}

}  // namespace

ModulePattern::ModulePattern(std::string_view text, bool is_regex, const ConfigObject& config,
                             std::string_view key)
    : text_(text) {
  if (text.size() > kMaxPatternBytes)
    config.fail_at(key, format_text("holds a pattern of {} bytes, more than the limit of {}", text.size(),
                                    kMaxPatternBytes));
  if (!is_regex) return;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                   PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code == nullptr)
    config.fail_at(key, format_text("holds {}, which is no usable regular expression: {} (at byte {})",
                                    in_quotes(text), pcre2_message(error), offset));
  code_ = std::shared_ptr<const pcre2_code>(
      code, [](const pcre2_code* c) { pcre2_code_free(const_cast<pcre2_code*>(c)); });
}

bool ModulePattern::matches(std::string_view name) const {
  if (code_ == nullptr) {
    for (std::size_t begin = 0; begin != name.npos;) {
      if (begins_with_components(name.substr(begin), text_)) return true;
      const std::size_t dot = name.find('.', begin);
      begin = dot == name.npos ? dot : dot + 1;
    }
    return false;
  }
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (!data || !context) throw std::bad_alloc();
  pcre2_set_match_limit(context.get(), kMatchSteps);
  pcre2_set_heap_limit(context.get(), kMatchHeapKib);
  const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                             data.get(), context.get());
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
    fail("quantization_config: {} cannot be matched with {}: {}", in_quotes(text_), in_quotes(name),
         pcre2_message(rc));
  return rc >= 0;
}

ModuleList::ModuleList(const ConfigObject& config, std::string_view key) {
  constexpr std::string_view kRegex = "re:";
  const std::vector<std::string> entries = config.get_strings({key});
  if (entries.size() > kMaxPatterns)
    config.fail_at(key,
                   format_text("has {} entries, more than the limit of {}", entries.size(), kMaxPatterns));
  for (const std::string_view entry : entries) {
    const bool is_regex = entry.starts_with(kRegex);
    patterns_.emplace_back(is_regex ? entry.substr(kRegex.size()) : entry, is_regex, config, key);
  }
}

ModuleList::Match ModuleList::match(std::span<const std::string> spellings) const {
  Match best = Match::kNone;
  for (const ModulePattern& pattern : patterns_) {
    if (std::ranges::any_of(spellings, [&](const std::string& name) { return pattern.matches(name); }))
      best = std::max(best, pattern.is_regex() ? Match::kRegex : Match::kName);
  }
  return best;
}

}  // namespace quire
