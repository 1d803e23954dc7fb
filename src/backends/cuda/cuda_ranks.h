#pragma once

#include <memory>

#include "ops/communicator.h"

namespace quire::cuda {

class CudaBackend;

// As Device::connection_bytes says.
std::size_t connection_bytes(int num_ranks);

// Ranks on GPUs, each with a backend of its own, of one process or several, of one host or several. Where all
// GPUs reach each other's memory, kernels of ours do everything (kernels/peer_collectives.h), else NCCL does.
// Otherwise as Device::connect says.
std::unique_ptr<Communicator> connect_ranks(CudaBackend& backend, std::unique_ptr<Communicator> host,
                                            const RankOptions& options);

}  // namespace quire::cuda
