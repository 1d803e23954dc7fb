#pragma once

#include <string>

namespace quire {

// A part of a prompt's text. Special tokens are recognised only where the text is trusted (a chat template's
// own), so what a user typed can never become one.
struct TextPiece {
  std::string text;
  bool trusted = true;

  bool operator==(const TextPiece&) const = default;
};

}  // namespace quire
