#pragma once

#include <cstddef>
#include <ctime>
#include <functional>

namespace quire {

// What a chat template may take; beyond them compiling or rendering ends with an Error. Published templates
// reach about 20 KB of source and a few ten thousand steps on long conversations.
struct ChatTemplateLimits {
  std::size_t max_source_bytes = 256 * 1024;
  std::size_t max_nesting = 64;       // of the source: statements in statements, brackets in brackets
  std::size_t max_depth = 512;        // of evaluation: expressions in expressions, through macro calls
  std::size_t max_steps = 1'000'000;  // one a node evaluated and one per 256 bytes made, copied or searched:
                                      // time and memory (256 MB) are bounded by it
  std::size_t max_output_bytes = 4 * 1024 * 1024;
};

// Of one render.
struct RenderOptions {
  std::tm now = {};                         // what strftime_now formats
  std::function<bool()> is_cancelled = {};  // asked now and then; true ends the render with an Error
};

}  // namespace quire
