#pragma once

#include <nlohmann/json_fwd.hpp>

namespace quire {

using Json = nlohmann::json;  // sorted keys: quick to look up, for files
using OrderedJson =
    nlohmann::ordered_json;  // keys as they came, for what reaches a chat template; look-up is linear

}  // namespace quire
