#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/token_id.h"

namespace quire {

// A tokenizer.json, with its large tables apart: as JSON values they would take most of the loading time.
struct TokenizerFile {
  Json config;                                         // "vocab" and "merges" of "model" are null
  std::vector<std::pair<std::string, TokenId>> vocab;  // each id within 0 to kMaxTokenId
  std::vector<double> scores;                          // of a list of pieces, by id
  std::vector<std::pair<std::string, std::string>> merges;
  bool has_merges = false;  // the list stands in the file, be it empty
};

// Error as parse_json, and for ids, pieces and merges of a wrong type or out of range.
TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view where);

}  // namespace quire
