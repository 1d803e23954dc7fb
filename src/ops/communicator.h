#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "ops/ops.h"

namespace quire {

// A rank is gone, or waited for in vain. What that rank says of its failure itself is more to the point.
class LostRank : public Error {
 public:
  using Error::Error;
};

struct RowRange {
  std::int64_t begin, count;
};

// The ranks that share one model by tensor parallelism. One rank is the ordinary case. Every rank calls the
// same operations in the same order; they are queued like the backend's ops.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Of Device::connection_bytes, what it holds.
  virtual std::size_t held_bytes() const { return 0; }
  // Replaces `tensor` by the sum over all ranks, added in rank order. (NCCL has an order of its own.)
  virtual void all_reduce(const Tensor& tensor) = 0;
  // `backend`.add_norm of the sum of x over all ranks. x may be written on the way. A rank may leave some
  // rows of the residual as they were: those it will not need in further calls with tensors of these shapes
  // and types. Nothing else is to read it.
  virtual void all_reduce_add_norm(Backend& backend, const Tensor& out, const Tensor& residual,
                                   const Tensor& x, float scale, const NormParams& params);
  // Puts the ranks' [rows, n] side by side into out [rows, size() * n]. Of floats: four bytes of all ones, a
  // NaN, may become another; integers pass where none is -1.
  virtual void all_gather(const Tensor& out, const Tensor& in) = 0;
  // This rank's share of the rows that all_gather would give, as a part of `out`. The rest of `out` may be
  // written, too.
  virtual Tensor gather_share(const Tensor& out, const Tensor& in);
  // Error where a rank is known to be gone. For who waits for another rank by other means.
  virtual void check_ranks() {}
  // What is queued waits no longer for other ranks, with whatever result, as far as it can be told to. From
  // any thread.
  virtual void abandon() {}

  // Rows a rank has where they are shared out in order; the last ranks may have fewer.
  std::int64_t rows_a_share(std::int64_t rows) const { return (rows + size() - 1) / size(); }
  RowRange share_of(std::int64_t rows) const {
    const std::int64_t begin = std::min(rank() * rows_a_share(rows), rows);
    return {begin, std::min(rows_a_share(rows), rows - begin)};
  }
};

// n divided by the ranks; Error that names `what` when it does not divide.
std::int64_t shard_size(std::int64_t n, const Communicator& comm, std::string_view what);

// KV heads one rank holds: its share, or one where there are more ranks than KV heads.
int local_kv_heads(int num_kv_heads, const Communicator& comm);

// The first of a rank's `count` columns of `size`. Where the ranks' together are more, neighbours have the
// same.
std::int64_t shard_begin(std::int64_t size, std::int64_t count, int rank, int num_ranks);

}  // namespace quire
