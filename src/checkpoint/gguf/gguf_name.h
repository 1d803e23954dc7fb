#pragma once

#include <string_view>

#include "base/parse_number.h"

namespace quire {

// The name of a GGUF file, which may be a part of a model: STEM.gguf or STEM-00002-of-00003.gguf.
struct GgufName {
  std::string_view stem;    // with its folder; all of a name without the ending .gguf
  int part = 0, count = 0;  // 0: the model is in one file
};

inline GgufName parse_gguf_name(std::string_view name) {
  constexpr std::string_view kEnding = ".gguf", kPart = "-00001-of-00001";
  constexpr int kMaxParts = 1000;
  if (!name.ends_with(kEnding)) return {name};
  name.remove_suffix(kEnding.size());
  if (name.size() <= kPart.size()) return {name};
  const std::string_view end = name.substr(name.size() - kPart.size());
  const auto number = [&](std::size_t at) {
    return static_cast<int>(parse_number<unsigned>(end.substr(at, 5)).value_or(0));
  };
  const int part = number(1), count = number(10);
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || part < 1 || count < part || count > kMaxParts)
    return {name};
  return {name.substr(0, name.size() - kPart.size()), part, count};
}

}  // namespace quire
