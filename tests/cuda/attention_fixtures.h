#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <tuple>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/attention.h"
#include "cuda/device_memory.h"
#include "parity/paged_batch.h"

namespace quire::cuda::testing {

using quire::testing::CodedCache;
using quire::testing::Matrix;
using quire::testing::PagedBatch;
using quire::testing::PagedShape;

// What a batch's attention has beside products, and what its cache holds.
struct ScoreOptions {
  int window = 0;
  bool alibi = false;
  float cap = 0;
  bool sinks = false;
  CacheCode code = CacheCode::kNone;
  float times = 1;  // queries are so many times as large, and their scale as much smaller

  std::string describe() const {
    return "window " + std::to_string(window) + (alibi ? ", ALiBi" : "") + ", cap " + std::to_string(cap) +
           (sinks ? ", sinks" : "") + (code == CacheCode::kNone ? "" : ", codes" + code_name());
  }
  std::string code_name() const {
    return code == CacheCode::kNone ? "" : code == CacheCode::kE4m3 ? "_e4m3" : "_e5m2";
  }
};

// Tests of a type of activations and of what the cache holds.
class AttentionTest : public DeviceTest, public ::testing::WithParamInterface<std::tuple<DType, CacheCode>> {
 public:
  static std::string name(const ::testing::TestParamInfo<ParamType>& test) {
    return std::string(to_string(std::get<0>(test.param))) +
           ScoreOptions{.code = std::get<1>(test.param)}.code_name();
  }

 protected:
  static DType dtype() { return std::get<0>(GetParam()); }
  // The options with this test's cache.
  static ScoreOptions stored(ScoreOptions options = {}) {
    options.code = std::get<1>(GetParam());
    return options;
  }
};
inline const auto kCaches = ::testing::Values(CacheCode::kNone, CacheCode::kE4m3, CacheCode::kE5m2);

// A contiguous tensor's values, row by row.
inline std::vector<float> widen(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.numel()));
  convert(tensor.dtype(), tensor.data(), DType::kF32, values.data(), values.size());
  return values;
}

// The part of a cache on the device that `part` is of the host's, whose memory begins at `host`.
inline Tensor on_device(const Tensor& part, const void* host, const DeviceTensor& memory) {
  if (!part.defined()) return {};
  auto* data = memory.tensor().data_as<std::byte>() +
               (part.data_as<std::byte>() - static_cast<const std::byte*>(host));
  return Tensor(data, part.dtype(), {part.dim(0), part.dim(1), part.dim(2), part.dim(3)}, DeviceKind::kCuda)
      .with_strides({part.stride(0), part.stride(1), part.stride(2), 1});
}

// A paged batch, its queries and its result, on the host and on the device. Entries of the block table that
// no query sees name a block far outside of the cache.
class DeviceAttention {
 public:
  DeviceAttention(const PagedShape& shape, const std::vector<PagedBatch::Span>& spans, DType dtype,
                  std::mt19937& random, ScoreOptions options = {})
      : shape_{shape.heads,
               shape.kv_heads,
               shape.dim,
               shape.block_size,
               static_cast<int>(spans.size()),
               total_tokens(spans),
               1 << 20,
               options.window,
               options.code},
        paged_(shape, spans, dtype, random),
        coded_(options.code == CacheCode::kNone ? nullptr
                                                : std::make_unique<CodedCache>(paged_.cache, options.code)),
        // Beside sinks, scores that do not outweigh them.
        q_(dtype, paged_.batch.num_tokens, std::int64_t{shape.heads} * shape.dim, random,
           (options.sinks ? 1.0F : 3.0F) * options.times),
        memory_(cache_bytes(host_cache().keys)),
        starts_(paged_.batch.query_starts),
        lengths_(paged_.batch.seq_lens),
        rows_(paged_.batch.table_rows),
        tables_(tables_of(paged_, options.window)),
        slopes_(DType::kF32, 1, shape.heads, random, 0.3F),
        sinks_(DType::kF32, 1, shape.heads, random, 2.0F),
        device_slopes_(slopes_.vector()),
        device_sinks_(raised(sinks_).vector()),
        device_q_(q_.tensor()),
        out_(q_.tensor()),
        batch_(paged_.batch) {
    batch_.query_starts = starts_.tensor();
    batch_.seq_lens = lengths_.tensor();
    batch_.table_rows = rows_.tensor();
    batch_.block_tables = tables_.tensor();
    batch_.positions = batch_.slot_mapping = {};
    call_.out = out_.tensor();
    call_.q = device_q_.tensor();
    const KvCacheLayer& host = host_cache();
    call_.cache = {on_device(host.keys), on_device(host.values), host.code, on_device(host.key_scales),
                   on_device(host.value_scales)};
    scores_.scale = 1.0F / (options.times * std::sqrt(static_cast<float>(shape.dim)));
    scores_.cap = options.cap;
    scores_.window = options.window;
    call_.scores = scores_;
    if (options.alibi) {
      scores_.alibi_slopes = slopes_.vector();
      call_.scores.alibi_slopes = device_slopes_.tensor();
    }
    if (options.sinks) {
      scores_.sinks = sinks_.vector();
      call_.scores.sinks = device_sinks_.tensor();
    }
    poison();
  }

  const AttentionShape& shape() const { return shape_; }
  const AttentionBatch& batch() const { return batch_; }
  AttentionCall& call() { return call_; }

  void poison() const { out_.poison(); }
  // The rows of the device's result, widened; NaN where nothing was written.
  std::vector<float> result() const {
    Matrix host(q_.tensor().dtype(), q_.tensor().dim(0), q_.tensor().dim(1), unused_);
    out_.download(host.tensor());
    return widen(host.tensor());
  }

  // The reference's rows, computed in float32 from the same bits, codes or not, some tokens a thread.
  std::vector<float> expected() const {
    Matrix q(DType::kF32, q_.tensor().dim(0), q_.tensor().dim(1), unused_);
    Matrix memory(DType::kF32, paged_.memory().tensor().dim(0), paged_.memory().tensor().dim(1), unused_);
    Matrix out(DType::kF32, q_.tensor().dim(0), q_.tensor().dim(1), unused_);
    convert(q_.tensor().dtype(), q_.tensor().data(), DType::kF32, q.tensor().data(),
            static_cast<std::size_t>(q.tensor().numel()));
    convert(q_.tensor().dtype(), paged_.memory().tensor().data(), DType::kF32, memory.tensor().data(),
            static_cast<std::size_t>(memory.tensor().numel()));
    const auto half = [&](const Tensor& like) {
      const auto* host = paged_.memory().tensor().data_as<std::byte>();
      const auto offset = (like.data_as<std::byte>() - host) / static_cast<int>(size_of(like.dtype()));
      return Tensor(memory.tensor().data_as<float>() + offset, DType::kF32,
                    {like.dim(0), like.dim(1), like.dim(2), like.dim(3)})
          .with_strides({like.stride(0), like.stride(1), like.stride(2), 1});
    };
    const KvCacheLayer cache =
        coded_ ? coded_->layer : KvCacheLayer{half(paged_.cache.keys), half(paged_.cache.values)};
    std::vector<std::thread> threads;
    for (int s = 0; s < paged_.batch.num_sequences; ++s) {
      const std::int32_t begin = starts(s), end = starts(s + 1);
      for (std::int32_t first = begin; first < end; first += kTokensOfThread) {
        const std::int32_t last = std::min(first + kTokensOfThread, end);
        threads.emplace_back([&, s, first, last, end] {
          std::vector<std::int32_t> part = {first, last},
                                    length = {paged_.batch.seq_lens.data_as<std::int32_t>()[s] -
                                              (end - last)};
          AttentionBatch one = paged_.batch;
          one.num_sequences = 1;
          one.query_starts = quire::testing::ints(part);
          one.seq_lens = quire::testing::ints(length);
          one.table_rows = one.table_rows.rows(s, 1);
          ReferenceBackend().attention(out.tensor(), q.tensor(), cache, one, scores_);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    return widen(out.tensor());
  }

  std::int64_t width() const { return q_.tensor().dim(1); }

 private:
  static constexpr std::int32_t kTokensOfThread = 50;

  const KvCacheLayer& host_cache() const { return coded_ ? coded_->layer : paged_.cache; }
  // All that a cache has, which its keys begin.
  static Tensor cache_bytes(const Tensor& keys) {
    const auto size = static_cast<std::int64_t>(size_of(keys.dtype()));
    return Tensor(keys.data(), DType::kU8, {keys.dim(0) * keys.stride(0) * size});
  }
  Tensor on_device(const Tensor& part) const {
    return testing::on_device(part, host_cache().keys.data(), memory_);
  }
  std::int32_t starts(int s) const { return paged_.batch.query_starts.data_as<std::int32_t>()[s]; }
  static int total_tokens(const std::vector<PagedBatch::Span>& spans) {
    int total = 0;
    for (const PagedBatch::Span& span : spans) total += span.num_tokens;
    return total;
  }
  // Around 4: between the scores' sums of a few keys and of thousands.
  static const Matrix& raised(const Matrix& sinks) {
    for (std::int64_t h = 0; h < sinks.tensor().dim(1); ++h) sinks.tensor().data_as<float>()[h] += 4;
    return sinks;
  }
  static Tensor tables_of(PagedBatch& paged, int window) {
    if (window > 0) paged.drop_blocks_before(window);
    return paged.batch.block_tables;
  }

  mutable std::mt19937 unused_{0};
  AttentionShape shape_;
  PagedBatch paged_;
  std::unique_ptr<CodedCache> coded_;  // of paged_'s rows, or null
  Matrix q_;
  DeviceTensor memory_, starts_, lengths_, rows_, tables_;
  Matrix slopes_, sinks_;
  DeviceTensor device_slopes_, device_sinks_, device_q_, out_;
  AttentionScores scores_;
  AttentionBatch batch_;
  AttentionCall call_;
};

// What a row of a result may be off by, relative to its norm: the weights and the result are rounded to
// dtype.
inline double attention_tolerance(DType dtype) {
  return dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 1.5e-3 : 1e-2;
}

// ‖actual − expected‖ / ‖expected‖ of one row; NaN where the row holds one.
inline double row_error(const std::vector<float>& actual, const std::vector<float>& expected,
                        std::int64_t row, std::int64_t width) {
  double difference = 0, norm = 0;
  for (auto i = static_cast<std::size_t>(row * width); i < static_cast<std::size_t>((row + 1) * width); ++i) {
    difference += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace quire::cuda::testing
