#include "checkpoint/weight_index.h"

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

}  // namespace

WeightMap parse_weight_index(std::string_view text, std::string_view where) {
  const Json index = parse_json(text, where);
  const auto found = index.find("weight_map");
  if (!index.is_object() || found == index.end() || !found->is_object())
    fail("{}: needs a \"weight_map\" of tensor names to shards", where);
  WeightMap shards;
  for (const auto& [tensor, shard] : found->items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      fail("{}: tensor {} must lie in a file of the same folder, not in {}", where, in_quotes(tensor),
           describe(shard));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

}  // namespace quire
