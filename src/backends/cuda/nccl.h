#pragma once

#include <nccl.h>

#include "base/tensor.h"

namespace quire::cuda {

// The functions of NVIDIA's library of collectives, found when they are first wanted: one GPU does without.
struct Nccl {
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRank) comm_init_rank;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;

  // Null where libnccl.so.2 is not installed.
  static const Nccl* find();
  // Error with `what` and the library's words, unless result is success.
  void check(ncclResult_t result, const char* what) const;
};

// Ranks on GPUs, of one host or several. Operations are those of Communicator; sums are taken in NCCL's
// order.
class NcclRanks {
 public:
  // All ranks at the same time, with the same id; on the current device, for one stream.
  NcclRanks(const Nccl& nccl, const ncclUniqueId& id, int rank, int size, cudaStream_t stream);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  void all_reduce(const Tensor& tensor);
  void all_gather(const Tensor& out, const Tensor& in);

 private:
  const Nccl& nccl_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_;
};

}  // namespace quire::cuda
