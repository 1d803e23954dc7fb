#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

// Valid UTF-8 that remembers which of its bytes are trusted (what that means: text_piece.h).
class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, bool trusted) : bytes_(bytes), first_trusted_(trusted) {}

  std::string_view bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool trusted() const { return flips_.empty() && (first_trusted_ || empty()); }
  std::size_t memory() const { return bytes_.size() + flips_.size() * sizeof(std::size_t); }

  void append(std::string_view bytes, bool trusted);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);  // bytes [begin, end) of other
  Text slice(std::size_t begin, std::size_t end) const;

  // visit(std::string_view run, bool trusted) for each longest run of equal trust, in order.
  template <typename Visit>
  void for_each_run(Visit&& visit) const {
    std::size_t begin = 0;
    bool trust = first_trusted_;
    for (std::size_t flip : flips_) {
      visit(bytes().substr(begin, flip - begin), trust);
      begin = flip;
      trust = !trust;
    }
    if (begin < size()) visit(bytes().substr(begin), trust);
  }

 private:
  bool last_trusted() const { return first_trusted_ != (flips_.size() % 2 == 1); }

  std::string bytes_;
  bool first_trusted_ = true;
  std::vector<std::size_t> flips_;  // byte offsets at which trust changes, ascending, inside (0, size)
};

}  // namespace quire::jinja
