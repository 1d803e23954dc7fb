#pragma once

#include <map>
#include <string>
#include <string_view>

namespace quire {

// The weight_map of a model.safetensors.index.json: tensor name to shard, a file name without any folder in
// it. `where` names the source in errors.
using WeightMap = std::map<std::string, std::string, std::less<>>;
WeightMap parse_weight_index(std::string_view text, std::string_view where);

}  // namespace quire
