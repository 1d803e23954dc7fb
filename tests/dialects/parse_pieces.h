#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "dialects/output_format.h"

namespace quire::dialects::test {

struct Call {
  std::string name;
  std::string arguments;
  std::string id = {};

  bool operator==(const Call&) const = default;
};

// The deltas of a whole output, joined.
struct Parsed {
  std::string content = {};
  std::string reasoning = {};
  std::vector<Call> calls = {};

  bool operator==(const Parsed&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Parsed& parsed) {
  out << "content: '" << parsed.content << "'\nreasoning: '" << parsed.reasoning << "'\n";
  for (const Call& call : parsed.calls) out << call.id << " " << call.name << " " << call.arguments << "\n";
  return out;
}

// Joins a delta, and checks that calls come in order and that each has its id and name once, at first.
inline void join(const OutputDelta& delta, Parsed& parsed) {
  parsed.content += delta.content;
  parsed.reasoning += delta.reasoning;
  int last = -1;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const int known = static_cast<int>(parsed.calls.size());
    QUIRE_CHECK(call.index > last && call.index >= known - 1 && call.index <= known);
    last = call.index;
    const bool first = call.index == known;
    QUIRE_CHECK(call.id.empty() != first && call.name.empty() != first);
    if (first) parsed.calls.push_back({.name = call.name, .arguments = {}, .id = call.id});
    parsed.calls.back().arguments += call.arguments;
  }
}

inline Parsed parse_pieces(OutputParser& parser, const std::vector<std::string_view>& pieces) {
  Parsed parsed;
  for (const std::string_view piece : pieces) join(parser.parse(piece), parsed);
  join(parser.finish(), parsed);
  return parsed;
}

}  // namespace quire::dialects::test
