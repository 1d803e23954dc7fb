#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace quire {

// Cuts a text between neighbours that stand side by side in no token, which no merge can join: the parts give
// the tokens that the whole text would, sooner. Models whose piece is the whole text live by that.
class PieceCutter {
 public:
  // A character that is a token; text is cut between such characters alone.
  void add_character(std::string_view character);
  // A token that merging makes.
  void add_token(std::string_view text);

  // The bytes of the first part of a text that is valid UTF-8 and not empty.
  std::size_t first_part(std::string_view text) const;

 private:
  bool is_known(char32_t c) const { return c < known_.size() && known_[c]; }

  std::vector<bool> known_;                       // by code point
  std::unordered_set<std::uint64_t> neighbours_;  // two code points
};

}  // namespace quire
