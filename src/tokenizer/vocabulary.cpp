#include "tokenizer/vocabulary.h"

#include <algorithm>

#include "tokenizer/json_view.h"

namespace quire {

Vocabulary::Vocabulary(std::vector<std::pair<std::string, TokenId>> entries, std::string_view where) {
  TokenId largest = -1;
  for (const auto& [text, id] : entries) largest = std::max(largest, id);
  texts_.resize(largest + 1);
  ids_.reserve(entries.size());
  for (auto& [text, id] : entries) {
    const std::string& stored = storage_.emplace_back(std::move(text));
    if (!ids_.emplace(stored, id).second) fail("{}: the token {} stands twice", where, in_quotes(stored));
    if (texts_[id] != nullptr)
      fail("{}: {} and {} have the same id {}", where, in_quotes(*texts_[id]), in_quotes(stored), id);
    texts_[id] = &stored;
  }
}

}  // namespace quire
