#include "ops/sharding.h"

#include "base/error.h"

namespace quire {

std::int64_t shard_size(std::int64_t n, const Communicator& comm, std::string_view what) {
  if (n % comm.size() != 0) fail("{} {} cannot be divided among {} ranks", n, what, comm.size());
  return n / comm.size();
}

int local_kv_heads(int num_kv_heads, const Communicator& comm) {
  if (num_kv_heads >= comm.size()) return static_cast<int>(shard_size(num_kv_heads, comm, "KV heads"));
  if (comm.size() % num_kv_heads != 0) {
    fail("{} KV heads cannot be replicated over {} ranks", num_kv_heads, comm.size());
  }
  return 1;
}

std::int64_t shard_begin(std::int64_t size, std::int64_t count, int rank, int num_ranks) {
  const std::int64_t num_shards = size / count;
  return rank * num_shards / num_ranks * count;
}

}  // namespace quire
