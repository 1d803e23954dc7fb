#include "hub/gguf_files.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/gguf/gguf_name.h"

namespace quire {
namespace {

constexpr std::string_view kEnding = ".gguf";
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool ends_in(std::string_view stem, std::string_view quantization) {
  if (stem.size() < quantization.size()) return false;
  const std::size_t begin = stem.size() - quantization.size();
  return std::equal(quantization.begin(), quantization.end(),
                    stem.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char a, char b) { return lower(a) == lower(b); }) &&
         (begin == 0 || std::isalnum(static_cast<unsigned char>(stem[begin - 1])) == 0);
}

}  // namespace

HubName parse_hub_name(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == text.npos) return {std::string(text), {}};
  return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const std::string& wanted) {
  std::map<std::string_view, std::vector<std::string>> found;  // by stem
  const bool is_file = std::ranges::find(files, wanted) != files.end();
  for (const std::string& file : files) {
    if (!file.ends_with(kEnding)) continue;
    const std::string_view stem = parse_gguf_name(file).stem;
    const std::string_view name = stem.substr(stem.rfind('/') + 1);
    const bool matches = is_file ? wanted.ends_with(kEnding) && stem == parse_gguf_name(wanted).stem
                                 : !name.starts_with("mmproj") && ends_in(stem, wanted);
    if (matches) found[stem].push_back(file);
  }
  if (found.empty()) return {};
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const auto& item : found) names.push_back(item.second.front());
    fail("{} may be {}; name one of them", in_quotes(wanted), join_text(names, " or "));
  }
  std::vector<std::string> parts = found.begin()->second;
  std::ranges::sort(parts);
  return parts;
}

std::size_t num_gguf_parts(const std::string& file) {
  return static_cast<std::size_t>(std::max(1, parse_gguf_name(file).count));
}

}  // namespace quire
