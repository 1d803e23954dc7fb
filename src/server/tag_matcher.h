#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

// Finds tags in a text that comes byte by byte. A tag's first byte must not come again within it: so a
// beginning that breaks off hides no other tag, and no byte is looked at more than twice.
class TagMatcher {
 public:
  explicit TagMatcher(std::vector<std::string_view> tags) : tags_(std::move(tags)) {}

  // The tag that `c` completes; empty if none.
  std::string_view push(char c) {
    held_ += c;
    const auto whole = std::find(tags_.begin(), tags_.end(), held_);
    if (whole != tags_.end()) {
      held_.clear();
      return *whole;
    }
    if (is_beginning()) return {};
    held_.assign(1, c);
    if (!is_beginning()) held_.clear();
    return {};
  }

  // The number of bytes at the end of the text so far that may become a tag.
  std::size_t held() const { return held_.size(); }
  void reset() { held_.clear(); }

 private:
  bool is_beginning() const {
    return std::any_of(tags_.begin(), tags_.end(), [&](auto tag) { return tag.starts_with(held_); });
  }

  std::vector<std::string_view> tags_;
  std::string held_;
};

}  // namespace quire::server
