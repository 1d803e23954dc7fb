#include "server/output_parser.h"

#include <algorithm>

namespace quire::server {

void append(OutputDelta& joined, const OutputDelta& next) {
  joined.content += next.content;
  joined.reasoning += next.reasoning;
  for (const ToolCallDelta& call : next.tool_calls) {
    const auto known = std::find_if(joined.tool_calls.begin(), joined.tool_calls.end(),
                                    [&](const ToolCallDelta& other) { return other.index == call.index; });
    if (known == joined.tool_calls.end())
      joined.tool_calls.push_back(call);
    else
      known->arguments += call.arguments;
  }
}

}  // namespace quire::server
