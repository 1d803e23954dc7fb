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
    if (state_ != State::kVocab) return in_value() && JsonBuilder::number_unsigned(number);
    if (number > static_cast<std::uint64_t>(kMaxTokenId)) refuse();
    file_.vocab.emplace_back(std::move(token_), static_cast<TokenId>(number));
    return true;
  }
  bool string(std::string& text) {
    if (state_ == State::kPiece) {
      if (has_text_) refuse();
      has_text_ = true;
      file_.vocab.emplace_back(std::move(text), static_cast<TokenId>(file_.vocab.size()));
      return true;
    }
    if (state_ == State::kMergePair) {
      pair_.push_back(std::move(text));
      return true;
    }
    if (state_ != State::kMerges) return in_value() && JsonBuilder::string(text);
    add_merge_line(text);
    return true;
  }

  bool start_object(std::size_t size) {
    if (state_ == State::kValue && is_at("model", "vocab")) return begin_table(State::kVocab);
    return in_value() && JsonBuilder::start_object(size);
  }
  bool key(std::string& name) {
    if (state_ != State::kVocab) return JsonBuilder::key(name);
    token_ = std::move(name);
    return true;
  }
  bool end_object() {
    if (state_ == State::kVocab) return end_table();
    return JsonBuilder::end_object();
  }
  bool start_array(std::size_t size) {
    if (state_ == State::kValue && is_at("model", "merges")) {
      file_.has_merges = true;
      return begin_table(State::kMerges);
    }
    if (state_ == State::kMerges) {
      state_ = State::kMergePair;
      pair_.clear();
      return true;
    }
    if (state_ == State::kValue && is_at("model", "vocab")) return begin_table(State::kPieces);
    if (state_ == State::kPieces) {
      if (file_.vocab.size() > static_cast<std::size_t>(kMaxTokenId)) refuse();
      has_text_ = false;
      state_ = State::kPiece;
      return true;
    }
    return in_value() && JsonBuilder::start_array(size);
  }
  bool end_array() {
    if (state_ == State::kPiece) {
      if (!has_text_ || file_.scores.size() != file_.vocab.size()) refuse();
      state_ = State::kPieces;
      return true;
    }
    if (state_ == State::kPieces || state_ == State::kMerges) return end_table();
    if (state_ != State::kMergePair) return JsonBuilder::end_array();
    if (pair_.size() != 2) refuse();
    file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
    state_ = State::kMerges;
    return true;
  }

 private:
  enum class State { kValue, kVocab, kPieces, kPiece, kMerges, kMergePair };

  // What stands in a table is none of its members.
  [[noreturn]] void refuse() const {
    if (state_ == State::kVocab)
      fail("{}: model.vocab: the id of {} must be a whole number from 0 to {}", where(), in_quotes(token_),
           kMaxTokenId);
    if (state_ == State::kPieces || state_ == State::kPiece)
      fail("{}: model.vocab: the list must hold a text and its score for each of up to {} tokens", where(),
           kMaxTokenId + 1);
    fail("{}: model.merges[{}]: must be two tokens, as a list or as a string with one space", where(),
         file_.merges.size());
  }

  bool begin_table(State table) {
    state_ = table;
    return JsonBuilder::null();
  }
  bool end_table() {
    state_ = State::kValue;
    return true;
  }
  bool in_value() const {
    if (state_ != State::kValue) refuse();
    return true;
  }
  // Takes a number within a piece.
  bool take_score(double number) {
    if (state_ != State::kPiece) return false;
    if (!has_text_ || file_.scores.size() == file_.vocab.size()) refuse();
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
  State state_ = State::kValue;
  std::string token_;      // the last one read of the vocabulary
  bool has_text_ = false;  // of the piece being read
  std::vector<std::string> pair_;
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
