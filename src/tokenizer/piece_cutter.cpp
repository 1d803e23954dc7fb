#include "tokenizer/piece_cutter.h"

#include "tokenizer/unicode.h"

namespace quire {
namespace {

std::uint64_t pair_of(char32_t left, char32_t right) { return std::uint64_t{left} << 32 | right; }

}  // namespace

void PieceCutter::add_character(std::string_view character) {
  const char32_t c = read_utf8(character, 0).code_point;
  if (c >= known_.size()) known_.resize(c + 1);
  known_[c] = true;
}

void PieceCutter::add_token(std::string_view text) {
  char32_t last = 0;
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    if (position > 0) neighbours_.insert(pair_of(last, step.code_point));
    last = step.code_point;
    position += step.length;
  }
}

std::size_t PieceCutter::first_part(std::string_view text) const {
  Utf8Step last = read_utf8(text, 0);
  std::size_t position = last.length;
  while (position < text.size()) {
    const Utf8Step step = read_utf8(text, position);
    const bool both_known = is_known(last.code_point) && is_known(step.code_point);
    if (both_known && !neighbours_.contains(pair_of(last.code_point, step.code_point))) break;
    last = step;
    position += step.length;
  }
  return position;
}

}  // namespace quire
