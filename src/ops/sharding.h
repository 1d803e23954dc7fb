#pragma once

#include <cstdint>
#include <string_view>

#include "ops/communicator.h"

namespace quire {

// n divided by the ranks; Error that names `what` when it does not divide.
std::int64_t shard_size(std::int64_t n, const Communicator& comm, std::string_view what);

// KV heads one rank holds: its share, or one where there are more ranks than KV heads.
int local_kv_heads(int num_kv_heads, const Communicator& comm);

// The first of a rank's `count` columns of `size`. Where the ranks' together are more, neighbours have the
// same.
std::int64_t shard_begin(std::int64_t size, std::int64_t count, int rank, int num_ranks);

}  // namespace quire
