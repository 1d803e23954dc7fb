#pragma once

#include "base/error.h"

namespace quire::server {

// What a client sent is no request that this server takes; the answer is this status, and the connection
// ends.
struct HttpError : Error {
  HttpError(int error_status, const std::string& message) : Error(message), status(error_status) {}
  int status;
};

}  // namespace quire::server
