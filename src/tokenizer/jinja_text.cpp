#include "tokenizer/jinja_text.h"

#include <algorithm>

namespace quire::jinja {

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (empty()) {
    first_trusted_ = trusted;
  } else if (last_trusted() != trusted) {
    flips_.push_back(size());
  }
  bytes_ += bytes;
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  auto flip = std::upper_bound(other.flips_.begin(), other.flips_.end(), begin);
  bool trust = other.first_trusted_ != ((flip - other.flips_.begin()) % 2 == 1);
  while (begin < end) {
    const std::size_t stop = flip == other.flips_.end() ? end : std::min(end, *flip++);
    append(other.bytes().substr(begin, stop - begin), trust);
    begin = stop;
    trust = !trust;
  }
}

Text Text::slice(std::size_t begin, std::size_t end) const {
  Text part;
  part.append(*this, begin, end);
  return part;
}

}  // namespace quire::jinja
