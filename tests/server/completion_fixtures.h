#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol_fixtures.h"
#include "server/completion.h"

namespace quire::server::test {

inline CompletionRequest parse_completion(std::string_view body, const ServedModel& model = served_model()) {
  return parse_completion_request(parse_body(body), model);
}
// With a prompt beside these fields.
inline CompletionRequest completion_with(const std::string& fields) {
  return parse_completion(R"({"prompt": "x", )" + fields + "}");
}
inline ApiError completion_error(const std::string& fields) {
  return error_of([&] { completion_with(fields); });
}
inline std::vector<EngineRequest> completion_to_engine(CompletionRequest request,
                                                       const ServedModel& model = served_model()) {
  return make_engine_requests(request, model);
}

}  // namespace quire::server::test
