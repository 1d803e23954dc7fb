#include "backends/cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>

#include "base/error.h"

namespace quire::cuda {
namespace {

ncclDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    default:
      fail("NCCL is not asked for sums of {}", to_string(dtype));
  }
}

template <typename Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

std::optional<Nccl> open_nccl() {
  // NVLink's multicast stays unused, unless the user wants it; read by NCCL at its start.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // never closed
  Nccl nccl{};
  if (library == nullptr || !find_function(library, "ncclGetErrorString", nccl.get_error_string) ||
      !find_function(library, "ncclGetUniqueId", nccl.get_unique_id) ||
      !find_function(library, "ncclCommInitRank", nccl.comm_init_rank) ||
      !find_function(library, "ncclCommDestroy", nccl.comm_destroy) ||
      !find_function(library, "ncclAllReduce", nccl.all_reduce) ||
      !find_function(library, "ncclAllGather", nccl.all_gather) ||
      !find_function(library, "ncclGroupStart", nccl.group_start) ||
      !find_function(library, "ncclGroupEnd", nccl.group_end))
    return {};
  return nccl;
}

}  // namespace

const Nccl* Nccl::find() {
  static const std::optional<Nccl> nccl = open_nccl();
  return nccl ? &*nccl : nullptr;
}

void Nccl::check(ncclResult_t result, const char* what) const {
  if (result != ncclSuccess) [[unlikely]]
    fail("NCCL: {}: {}", what, get_error_string(result));
}

NcclRanks::NcclRanks(const Nccl& nccl, const ncclUniqueId& id, int rank, int size, cudaStream_t stream)
    : nccl_(nccl), stream_(stream) {
  nccl_.check(nccl_.comm_init_rank(&comm_, size, id, rank), "connecting the ranks");
}

NcclRanks::~NcclRanks() { nccl_.comm_destroy(comm_); }

void NcclRanks::all_reduce(const Tensor& tensor) {
  QUIRE_CHECK(tensor.contiguous(), "{}", tensor.describe());
  nccl_.check(nccl_.all_reduce(tensor.data(), tensor.data(), static_cast<std::size_t>(tensor.numel()),
                               data_type(tensor.dtype()), ncclSum, comm_, stream_),
              "all_reduce");
}

// NCCL puts whole contributions one behind the other: row by row, they come to lie side by side.
void NcclRanks::all_gather(const Tensor& out, const Tensor& in) {
  nccl_.check(nccl_.group_start(), "all_gather");
  ncclResult_t result = ncclSuccess;
  for (std::int64_t row = 0; row < in.dim(0) && result == ncclSuccess; ++row) {
    const Tensor part = in.rows(row, 1);
    result = nccl_.all_gather(part.data(), out.rows(row, 1).data(), part.bytes(), ncclChar, comm_, stream_);
  }
  const ncclResult_t ended = nccl_.group_end();
  nccl_.check(result, "all_gather");
  nccl_.check(ended, "all_gather");
}

}  // namespace quire::cuda
