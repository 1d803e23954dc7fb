#pragma once

namespace quire::cuda {

// The sum of `value` over the lanes of the warp up to this one.
template <typename T>
__device__ T inclusive_sum_of_warp(T value) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// The sum of `value` over the threads before this one, of 1,024; the sum over all goes to `total`.
template <typename T>
__device__ T exclusive_sum_of_block(T value, T& total) {
  __shared__ T warp_sums[32];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const T sum = inclusive_sum_of_warp(value);
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  const T sums = inclusive_sum_of_warp(warp_sums[lane]);
  total = __shfl_sync(~0U, sums, 31);
  const T before = __shfl_sync(~0U, sums, (warp + 31) % 32);
  __syncthreads();  // warp_sums may be written again
  return (warp == 0 ? 0 : before) + sum - value;
}

}  // namespace quire::cuda
