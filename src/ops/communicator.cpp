#include "ops/communicator.h"

#include "ops/ops.h"

namespace quire {

void Communicator::all_reduce_add_norm(Backend& backend, const Tensor& out, const Tensor& residual,
                                       const Tensor& x, float scale, const NormParams& params) {
  all_reduce(x);
  ops::add_norm(backend, out, residual, x, scale, params);
}

std::unique_ptr<Communicator> Backend::connect(std::unique_ptr<Communicator> host, const RankOptions&) {
  return host;
}

}  // namespace quire
