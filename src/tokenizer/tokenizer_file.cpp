#include "tokenizer/tokenizer_file.h"

#include <cstdint>

#include "base/error.h"
#include "base/json_builder.h"
#include "tokenizer/json_view.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

// Receives the events of the JSON parser: builds the value, except for what it puts into the tables. Those
// are null in it.
class Handler : public JsonBuilder<Json> {
 public:
  Handler(TokenizerFile& file, std::string_view text, std::string_view where)
      : JsonBuilder(text, where, {}), file_(file) {}

  bool null() { return in_value() && JsonBuilder::null(); }
  bool boolean(bool flag) { return in_value() && JsonBuilder::boolean(flag); }
  bool number_integer(std::int64_t number) {
    return take_score(static_cast<double>(number)) || (in_value() && JsonBuilder::number_integer(number));
  }
  bool number_float(double number, const std::string& text) {
    return take_score(number) || (in_value() && JsonBuilder::number_float(number, text));
  }
  bool number_unsigned(std::uint64_t number) {
    if (take_score(static_cast<double>(number))) return true;
    if (table_ != Table::kVocab) return in_value() && JsonBuilder::number_unsigned(number);
    if (number > static_cast<std::uint64_t>(kMaxTokenId)) refuse();
    file_.vocab.emplace_back(std::move(token_), static_cast<TokenId>(number));
    return true;
  }
  bool string(std::string& text) {
    if (!in_row_ && table_ != Table::kMerges) return in_value() && JsonBuilder::string(text);
    if (in_row_) {
      row_.push_back(std::move(text));
    } else {
      add_merge_line(text);
    }
    return true;
  }

  bool start_object(std::size_t size) {
    if (table_ == Table::kNone && is_at("model", "vocab")) return begin_table(Table::kVocab);
    return in_value() && JsonBuilder::start_object(size);
  }
  bool key(std::string& name) {
    if (table_ != Table::kVocab) return JsonBuilder::key(name);
    token_ = std::move(name);
    return true;
  }
  bool end_object() {
    if (table_ == Table::kVocab) return end_table();
    return JsonBuilder::end_object();
  }
  bool start_array(std::size_t size) {
    if (table_ == Table::kNone) {
      if (is_at("model", "vocab")) return begin_table(Table::kPieces);
      if (!is_at("model", "merges")) return JsonBuilder::start_array(size);
      file_.has_merges = true;
      return begin_table(Table::kMerges);
    }
    const bool full = table_ == Table::kPieces && file_.vocab.size() > static_cast<std::size_t>(kMaxTokenId);
    if (table_ == Table::kVocab || in_row_ || full) refuse();
    in_row_ = true;
    row_.clear();
    return true;
  }
  bool end_array() {
    if (table_ == Table::kNone) return JsonBuilder::end_array();
    if (!std::exchange(in_row_, false)) return end_table();
    if (table_ == Table::kPieces) {
      if (row_.size() != 1 || file_.scores.size() != file_.vocab.size() + 1) refuse();
      file_.vocab.emplace_back(std::move(row_[0]), static_cast<TokenId>(file_.vocab.size()));
    } else {
      if (row_.size() != 2) refuse();
      file_.merges.emplace_back(std::move(row_[0]), std::move(row_[1]));
    }
    return true;
  }

 private:
  // Of "vocab" an object or a list, and "merges".
  enum class Table { kNone, kVocab, kPieces, kMerges };

  // What stands in a table is none of its members.
  [[noreturn]] void refuse() const {
    if (table_ == Table::kVocab)
      fail("{}: model.vocab: the id of {} must be a whole number from 0 to {}", where(), in_quotes(token_),
           kMaxTokenId);
    if (table_ == Table::kPieces)
      fail("{}: model.vocab: the list must hold a text and its score for each of up to {} tokens", where(),
           kMaxTokenId + 1);
    fail("{}: model.merges[{}]: must be two tokens, as a list or as a string with one space", where(),
         file_.merges.size());
  }

  bool begin_table(Table table) {
    table_ = table;
    return JsonBuilder::null();
  }
  bool end_table() {
    table_ = Table::kNone;
    return true;
  }
  bool in_value() const {
    if (table_ != Table::kNone) refuse();
    return true;
  }
  // Takes a number within a piece, behind its text.
  bool take_score(double number) {
    if (table_ != Table::kPieces || !in_row_) return false;
    if (row_.size() != 1 || file_.scores.size() != file_.vocab.size()) refuse();
    file_.scores.push_back(number);
    return true;
  }

  void add_merge_line(const std::string& line) {
    if (line.starts_with("#version")) return;  // the first line of a merges.txt
    const std::size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) refuse();
    file_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }

  TokenizerFile& file_;
  Table table_ = Table::kNone;    // that is being read
  std::string token_;             // the last one read of the vocabulary
  bool in_row_ = false;           // of pieces or merges
  std::vector<std::string> row_;  // its texts
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view where) {
  TokenizerFile file;
  Handler handler(file, text, where);
  Json::sax_parse(text.begin(), text.end(), &handler);
  file.config = handler.take();
  return file;
}

}  // namespace quire
