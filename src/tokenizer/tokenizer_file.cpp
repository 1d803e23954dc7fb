#include "tokenizer/tokenizer_file.h"

#include <cstdint>

#include "base/error.h"
#include "tokenizer/json_view.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

constexpr std::size_t kMaxDepth = 64;

// Receives the events of the JSON parser: builds the value, except for what it puts into the tables.
class Handler : public nlohmann::json_sax<Json> {
 public:
  Handler(TokenizerFile& file, std::string_view where) : file_(file), where_(where) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool flag) override { return value(flag); }
  bool number_integer(std::int64_t number) override {
    return state_ == State::kPiece ? score(static_cast<double>(number)) : value(number);
  }
  bool number_float(double number, const std::string&) override {
    return state_ == State::kPiece ? score(number) : value(number);
  }
  bool binary(Json::binary_t&) override { return value(nullptr); }  // never in text
  bool number_unsigned(std::uint64_t number) override {
    if (state_ == State::kPiece) return score(static_cast<double>(number));
    if (state_ != State::kVocab) return value(number);
    if (number > static_cast<std::uint64_t>(kMaxTokenId)) bad_id();
    file_.vocab.emplace_back(std::move(key_), static_cast<TokenId>(number));
    return true;
  }
  bool string(std::string& text) override {
    if (state_ == State::kPiece) {
      if (has_text_) bad_piece();
      has_text_ = true;
      file_.vocab.emplace_back(std::move(text), static_cast<TokenId>(file_.vocab.size()));
      return true;
    }
    if (state_ == State::kMergePair) {
      pair_.push_back(std::move(text));
      return true;
    }
    if (state_ != State::kMerges) return value(std::move(text));
    add_merge_line(text);
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kValue && at_model_key("vocab")) {
      state_ = State::kVocab;
      return true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (state_ == State::kVocab) {
      state_ = State::kValue;
      return true;
    }
    open_.pop_back();
    return true;
  }
  bool start_array(std::size_t) override {
    if (state_ == State::kValue && at_model_key("merges")) {
      file_.has_merges = true;
      state_ = State::kMerges;
      return true;
    }
    if (state_ == State::kMerges) {
      state_ = State::kMergePair;
      pair_.clear();
      return true;
    }
    if (state_ == State::kValue && at_model_key("vocab")) {
      state_ = State::kPieces;
      return true;
    }
    if (state_ == State::kPieces) {
      if (file_.vocab.size() > static_cast<std::size_t>(kMaxTokenId)) bad_piece();
      has_text_ = false;
      state_ = State::kPiece;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (state_ == State::kPiece) {
      if (!has_text_ || file_.scores.size() != file_.vocab.size()) bad_piece();
      state_ = State::kPieces;
      return true;
    }
    if (state_ == State::kPieces) {
      state_ = State::kValue;
      return true;
    }
    if (state_ == State::kMergePair) {
      if (pair_.size() != 2) bad_merge();
      file_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      state_ = State::kMerges;
    } else if (state_ == State::kMerges) {
      state_ = State::kValue;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool key(std::string& name) override {
    key_ = std::move(name);
    if (state_ == State::kVocab) return true;
    // The tables leave no member behind: their first key is noted here.
    const bool table = open_.size() == 2 && in_model_ && (key_ == "vocab" || key_ == "merges");
    bool& seen = key_ == "vocab" ? vocab_seen_ : merges_seen_;
    const bool repeated = open_.back()->contains(key_) || (table && seen);
    if (table) seen = true;
    if (repeated) fail("{}: the key {} stands twice in one object", where_, in_quotes(key_));
    if (open_.size() == 1) in_model_ = key_ == "model";
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) override {
    fail("{}: not valid JSON ({})", where_, e.what());
  }

 private:
  enum class State { kValue, kVocab, kPieces, kPiece, kMerges, kMergePair };

  [[noreturn]] void bad_id() const {
    fail("{}: model.vocab: the id of {} must be a whole number from 0 to {}", where_, in_quotes(key_),
         kMaxTokenId);
  }
  [[noreturn]] void bad_piece() const {
    fail("{}: model.vocab: the list must hold a text and its score for each of up to {} tokens", where_,
         kMaxTokenId + 1);
  }
  [[noreturn]] void bad_merge() const {
    fail("{}: model.merges[{}]: must be two tokens, as a list or as a string with one space", where_,
         file_.merges.size());
  }

  bool at_model_key(std::string_view name) const { return in_model_ && open_.size() == 2 && key_ == name; }

  Json* insert(Json&& value) {
    if (open_.empty()) return &(file_.config = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  // Within a table only what its members consist of may stand.
  void check_place() const {
    if (state_ == State::kVocab) bad_id();
    if (state_ == State::kPieces || state_ == State::kPiece) bad_piece();
    if (state_ != State::kValue) bad_merge();
  }
  bool score(double number) {
    if (!has_text_ || file_.scores.size() == file_.vocab.size()) bad_piece();
    file_.scores.push_back(number);
    return true;
  }
  bool value(Json&& value) {
    check_place();
    insert(std::move(value));
    return true;
  }
  bool open(Json&& container) {
    check_place();
    if (open_.size() == kMaxDepth) fail("{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    open_.push_back(insert(std::move(container)));
    return true;
  }

  void add_merge_line(const std::string& line) {
    if (line.starts_with("#version")) return;  // the first line of a merges.txt
    const std::size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos) bad_merge();
    file_.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }

  TokenizerFile& file_;
  std::string_view where_;
  State state_ = State::kValue;
  std::vector<Json*>
      open_;         // the objects and lists around the current place; a parent does not change meanwhile
  std::string key_;  // the last one read
  bool in_model_ = false;
  bool vocab_seen_ = false, merges_seen_ = false;
  bool has_text_ = false;  // of the piece being read
  std::vector<std::string> pair_;
};

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, std::string_view where) {
  TokenizerFile file;
  Handler handler(file, where);
  Json::sax_parse(text.begin(), text.end(), &handler);
  return file;
}

}  // namespace quire
