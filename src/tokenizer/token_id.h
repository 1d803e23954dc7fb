#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::int32_t;

}  // namespace quire
