#pragma once

#include "base/tensor.h"

namespace quire {

// The ranks that share one model by tensor parallelism. One rank is the ordinary case. Every rank calls the
// same operations in the same order; they are queued like the backend's ops.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Replaces `tensor` by the sum over all ranks, added in rank order.
  virtual void all_reduce(const Tensor& tensor) = 0;
  // Puts the ranks' [rows, n] side by side into out [rows, size() * n].
  virtual void all_gather(const Tensor& out, const Tensor& in) = 0;
  // Replaces `tensor` on every rank by that of rank `root`.
  virtual void broadcast(const Tensor& tensor, int root) = 0;
};

}  // namespace quire
