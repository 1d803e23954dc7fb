#include "ops/communicator.h"

namespace quire {

void Communicator::all_reduce_add_norm(Backend& backend, const Tensor& out, const Tensor& residual,
                                       const Tensor& x, float scale, const NormParams& params) {
  all_reduce(x);
  ops::add_norm(backend, out, residual, x, scale, params);
}

Tensor Communicator::gather_share(const Tensor& out, const Tensor& in) {
  all_gather(out, in);
  const auto [begin, count] = share_of(in.dim(0));
  return out.rows(begin, count);
}

std::unique_ptr<Communicator> Device::connect(std::unique_ptr<Communicator> host, const RankOptions&) {
  return host;
}

std::int64_t shard_size(std::int64_t n, const Communicator& comm, std::string_view what) {
  if (n % comm.size() != 0) fail("{} {} cannot be divided among {} ranks", n, what, comm.size());
  return n / comm.size();
}

int local_kv_heads(int num_kv_heads, const Communicator& comm) {
  if (num_kv_heads >= comm.size()) return static_cast<int>(shard_size(num_kv_heads, comm, "KV heads"));
  if (comm.size() % num_kv_heads != 0)
    fail("{} KV heads cannot be replicated over {} ranks", num_kv_heads, comm.size());
  return 1;
}

std::int64_t shard_begin(std::int64_t size, std::int64_t count, int rank, int num_ranks) {
  const std::int64_t num_shards = size / count;
  return rank * num_shards / num_ranks * count;
}

}  // namespace quire
