#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// A part of a text, in bytes.
struct TextRange {
  std::size_t begin;
  std::size_t end;

  std::size_t size() const { return end - begin; }
  std::string_view of(std::string_view text) const { return text.substr(begin, size()); }
  bool operator==(const TextRange&) const = default;
};

// A part of a prompt's text. Special tokens are recognised only where the text is trusted (a chat template's
// own), so what a user typed can never become one.
struct TextPiece {
  std::string text;
  bool trusted = true;

  bool operator==(const TextPiece&) const = default;
};

// Which bytes of a text are trusted (what that means: TextPiece), as runs from its beginning.
class TrustRuns {
 public:
  void append(std::size_t bytes, bool trusted) {
    if (bytes == 0) return;
    if (size_ == 0) {
      first_trusted_ = trusted;
    } else if (trusted_after(flips_.size()) != trusted) {
      flips_.push_back(size_);
    }
    size_ += bytes;
  }
  void append(const TrustRuns& other, const TextRange& range) {
    other.for_each(range, [&](const TextRange& run, bool trusted) { append(run.size(), trusted); });
  }

  std::size_t num_borders() const { return flips_.size(); }
  // With trust, the whole of a range that is not empty.
  bool covers(const TextRange& range) const {
    const std::size_t before = flips_before(range.begin);
    const std::size_t run_end = before < flips_.size() ? flips_[before] : size_;
    return trusted_after(before) && range.begin < run_end && range.end <= run_end;
  }

  // visit(TextRange run, bool trusted) for each longest run of equal trust within a range, in order.
  template <typename Visit>
  void for_each(TextRange range, Visit&& visit) const {
    for (std::size_t flip = flips_before(range.begin); range.begin < range.end; ++flip) {
      const std::size_t end = flip < flips_.size() ? std::min(flips_[flip], range.end) : range.end;
      visit(TextRange{range.begin, end}, trusted_after(flip));
      range.begin = end;
    }
  }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_each({0, size_}, visit);
  }

 private:
  bool trusted_after(std::size_t flips) const { return first_trusted_ != (flips % 2 == 1); }
  std::size_t flips_before(std::size_t position) const {  // or at it
    return std::upper_bound(flips_.begin(), flips_.end(), position) - flips_.begin();
  }

  std::size_t size_ = 0;
  bool first_trusted_ = true;
  std::vector<std::size_t> flips_;  // where trust changes: ascending, inside (0, size_)
};

}  // namespace quire
