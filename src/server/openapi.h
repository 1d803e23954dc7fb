#pragma once

#include <string>

#include "base/json.h"
#include "server/api_request.h"

namespace quire::server {

// What GET /openapi.json answers: what is served, in OpenAPI 3.1, with the limits that hold for this model.
// openapi.json has what is special of each route; what all have alike is added here: the errors, that
// optional fields may be null, and the frames around schemas. `root_path` is a proxy's prefix.
OrderedJson openapi_document(const ServedModel& model, const std::string& root_path);

}  // namespace quire::server
