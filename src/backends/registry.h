#pragma once

#include <memory>
#include <string_view>

#include "ops/backend.h"

namespace quire {

// The backend of a device name: auto (the best there is) or cpu. Error that lists the names on any other.
std::unique_ptr<Backend> make_backend(std::string_view device);

}  // namespace quire
