#pragma once

#include "backends/cuda/kernels/delta_rule.cuh"
#include "backends/cuda/kernels/elementwise.h"

namespace quire::cuda {

// A step of one token a sequence through what Gated DeltaNet does between its products: what both of its
// kernels have, delta_step.cu's and delta_stream.cu's.

constexpr int kWidth = 4;                             // columns of a thread
constexpr int kBlockColumns = kColumnLanes * kWidth;  // of a state
constexpr int kTokens = 4;                            // of the convolution
constexpr int kHistory = kTokens - 1;

template <typename T>
struct StepArgs : DeltaHeads {
  RowsOf<T> out;
  RowsOf<const T> x;  // queries, keys and values, then the norm's gate, b and a
  RowsOf<const float> conv_weight;
  RowsOf<float> kept;  // inputs, for the convolution
  const float* norm_weight;
  float eps;
  int num_sequences, channels;
};

// A thread's channel of the convolution; or none, whose value is 0.
template <typename T>
class Channel {
 public:
  __device__ Channel(const StepArgs<T>& args, int index, bool there, int from)
      : stride_(args.channels), index_(index), there_(there) {
    if (!there) return;
#pragma unroll
    for (int k = 0; k < kTokens; ++k) weights_[k] = args.conv_weight[k][index];
    if (from < 0) return;
#pragma unroll
    for (int k = 0; k < kHistory; ++k) seen_[k] = args.kept[from][std::int64_t{k} * stride_ + index];
  }
  __device__ void sum_history() {
#pragma unroll
    for (int k = 0; k < kHistory; ++k) sum_ = fmaf(weights_[k], seen_[k], sum_);
  }
  __device__ void read(const T* x) {
    if (there_) token_ = x[index_];
  }
  __device__ float value() const {
    return widen(narrow<T>(activated(fmaf(weights_[kHistory], widen(token_), sum_), ActivationTerms{})));
  }
  __device__ void keep(float* kept) const {
    if (!there_) return;
#pragma unroll
    for (int k = 0; k < kHistory; ++k)
      kept[std::int64_t{k} * stride_ + index_] = k + 1 < kHistory ? seen_[k + 1] : widen(token_);
  }

 private:
  float seen_[kHistory] = {}, weights_[kTokens] = {};
  float sum_ = 0;  // of the tokens before
  T token_ = {};
  int stride_, index_;
  bool there_;
};

// The same for so many sequences that their states fill the card; see delta_stream.cu.
bool streams_delta_step(const LaunchContext& context, const DeltaNet& net, const StateBatch& batch);
template <typename T>
void stream_delta_step(const LaunchContext& context, const StepArgs<T>& args);

}  // namespace quire::cuda
