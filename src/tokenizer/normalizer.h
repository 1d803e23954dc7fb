#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_view.h"

namespace quire {

// What a tokenizer does to a text before splitting it. Immutable, usable from any thread.
class Normalizer {
 public:
  using Step = std::function<std::string(std::string_view text)>;

  Normalizer() = default;  // leaves text as it is
  explicit Normalizer(const JsonView& config);

  // `text` normalised; it is valid UTF-8. The result lies in `buffer`, or in `text` itself if there is no
  // step.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace quire
