#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/token_id.h"

namespace quire {

constexpr TokenId kMaxTokenId = (1 << 22) - 1;  // some 16 times the largest vocabulary published

// Tokens by id and by text, as tokenizer.json spells them. Ids may leave gaps.
class Vocabulary {
 public:
  // Ids are within 0 to kMaxTokenId. Error, naming the table by `where`, if an id or a text stands twice.
  Vocabulary(std::vector<std::pair<std::string, TokenId>> entries, std::string_view where);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  std::optional<TokenId> find(std::string_view text) const {
    const auto entry = ids_.find(text);
    return entry == ids_.end() ? std::nullopt : std::optional(entry->second);
  }
  // Nothing for an id that no token has.
  std::optional<std::string_view> text(TokenId id) const {
    if (id < 0 || id >= size() || texts_[id] == nullptr) return std::nullopt;
    return *texts_[id];
  }
  int size() const { return static_cast<int>(texts_.size()); }  // largest id + 1

 private:
  std::deque<std::string> storage_;  // its strings never move: ids_ and texts_ point into it
  std::vector<const std::string*> texts_;
  std::unordered_map<std::string_view, TokenId> ids_;
};

}  // namespace quire
