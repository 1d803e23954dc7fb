#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "backends/cuda/kernels/launch.h"
#include "base/tensor.h"

namespace quire::cuda::bench {

// Device memory for the life of the program, filled with what `fill(i)` gives for each element.
template <typename T, typename F>
Tensor device_tensor(DType dtype, std::int64_t rows, std::int64_t cols, F&& fill) {
  std::vector<T> host(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = fill(i);
  void* data = nullptr;
  check(cudaMalloc(&data, host.size() * sizeof(T)), "memory");
  check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return Tensor(data, dtype, {rows, cols}, DeviceKind::kCuda);
}

// Microseconds of one call, in a graph of `calls` of them: the median of 15 replays, once the card's clock
// has had time to rise: after so many replays, or 0: 80 ms. `call(i)` should go round among inputs that
// together exceed the L2 cache where the op reads from memory.
template <typename F>
double graph_time_us(const LaunchContext& context, int calls, F&& call, int warm_replays = 0) {
  cudaGraph_t graph{};
  cudaGraphExec_t exec{};
  check(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < calls; ++i) call(i);
  check(cudaStreamEndCapture(context.stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin{}, end{};
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  const auto replay_ms = [&] {
    check(cudaEventRecord(begin, context.stream), "event");
    check(cudaGraphLaunch(exec, context.stream), "graph");
    check(cudaEventRecord(end, context.stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    return ms;
  };
  using Clock = std::chrono::steady_clock;
  const auto warm = Clock::now() + std::chrono::milliseconds(80);
  for (int i = 0; warm_replays > 0 ? i < warm_replays : Clock::now() < warm; ++i) replay_ms();
  std::vector<float> times(15);
  for (float& time : times) time = replay_ms();
  check(cudaGraphExecDestroy(exec), "graph");
  check(cudaGraphDestroy(graph), "graph");
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return times[7] * 1000.0 / calls;
}

inline LaunchContext make_context() {
  LaunchContext context = cuda::make_context(0);
  check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "stream");
  return context;
}

}  // namespace quire::cuda::bench
