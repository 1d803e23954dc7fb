#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <map>

#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

constexpr std::size_t kMaxContentBytes = 256;  // bounds the steps at each place of a text

bool stands_alone(std::string_view text, const TextRange& range) {
  const auto is_word_at = [&](std::size_t begin) {
    return is_word_character(character_at(text, begin).code_point);
  };
  const bool word_before = range.begin > 0 && is_word_at(character_begin(text, range.begin - 1));
  return !word_before && !is_word_at(range.end);
}

}  // namespace

std::vector<AddedToken> added_tokens_from_json(const JsonView& list) {
  std::vector<AddedToken> tokens;
  for (const JsonView& item : list.items()) {
    AddedToken token{.id = static_cast<TokenId>(item.at("id").as_int(0, kMaxTokenId)),
                     .content = item.at("content").as_string(),
                     .single_word = item.at("single_word").as_bool(),
                     .lstrip = item.at("lstrip").as_bool(),
                     .rstrip = item.at("rstrip").as_bool(),
                     .normalized = item.at("normalized").as_bool(),
                     .special = item.at("special").as_bool(),
                     .form = ""};
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      fail("{}.content: must have from 1 to {} bytes, has {}", item.where(), kMaxContentBytes,
           token.content.size());
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<const AddedToken*> tokens) : tokens_(std::move(tokens)) {
  std::map<std::string_view, std::int32_t> forms;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& form = tokens_[i]->form;
    if (form.empty()) continue;
    first_bytes_[static_cast<unsigned char>(form.front())] = true;
    forms.emplace(form, static_cast<std::int32_t>(i));
  }
  trie_ = ByteTrie({forms.begin(), forms.end()});
}

void AddedTokenMatcher::encode(std::string_view text, const TrustRuns& trust, std::vector<TokenId>& ids,
                               const std::function<void(const TextRange& between)>& encode_text) const {
  std::size_t done = 0;
  for (std::size_t position = 0; !empty() && position < text.size();) {
    const AddedToken* token = nullptr;  // the longest that stands here
    if (first_bytes_[static_cast<unsigned char>(text[position])]) {
      trie_.find_prefixes(text.substr(position), [&](std::size_t length, std::int32_t index) {
        const AddedToken* const known = tokens_[index];
        if (!known->special || trust.covers({position, position + length})) token = known;
      });
    }
    if (token == nullptr) {
      ++position;
      continue;
    }
    TextRange range{position, position + token->form.size()};
    position = range.end;
    if (token->single_word && !stands_alone(text, range)) continue;
    // A token may have been found within the space that the last one took along. It counts, too, unless it
    // takes space along to its left, which leaves nothing for it.
    if (token->lstrip) {
      const std::string_view before = text.substr(done, std::max(range.begin, done) - done);
      range.begin = done + strip_right(before, is_whitespace).size();
    }
    if (token->rstrip)
      range.end = text.size() - strip_left(text.substr(std::max(range.end, done)), is_whitespace).size();
    if (range.begin >= range.end) continue;
    if (done < range.begin) encode_text({done, range.begin});
    ids.push_back(token->id);
    done = range.end;
  }
  if (done < text.size()) encode_text({done, text.size()});
}

}  // namespace quire
