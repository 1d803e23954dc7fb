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

}  // namespace quire
