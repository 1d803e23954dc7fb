// Times the gated delta rule on shapes of published models: prompts in chunks, and token by token; what of
// the chunks does not wait for states; and the convolution and the norm beside it, with the bytes they move.
#include <cstdio>
#include <exception>
#include <numeric>
#include <string>
#include <vector>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/probe.h"
#include "bench/cuda/timing.h"
#include "ops/ops.h"

namespace quire::cuda::bench {
namespace {

struct Model {
  const char* name;
  int key_heads, value_heads;
};

constexpr int kDim = 128;
constexpr int kMaxTokens = 32768;
constexpr int kMaxSequences = 256;

Tensor memory(DType dtype, std::vector<std::int64_t> shape) {
  const std::int64_t size = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(size) * size_of(dtype)), "memory");
  check(cudaMemset(data, 0, static_cast<std::size_t>(size) * size_of(dtype)), "memory");
  return shape.size() == 1 ? Tensor(data, dtype, {shape[0]}, DeviceKind::kCuda)
         : shape.size() == 2
             ? Tensor(data, dtype, {shape[0], shape[1]}, DeviceKind::kCuda)
             : Tensor(data, dtype, {shape[0], shape[1], shape[2], shape[3]}, DeviceKind::kCuda);
}
Tensor random_bf16(const LaunchContext& context, std::int64_t rows, std::int64_t cols) {
  const Tensor tensor = memory(DType::kBF16, {rows, cols});
  fill_random(context, tensor.data(), tensor.numel());
  return tensor;
}
Tensor ints(const std::vector<std::int32_t>& values) {
  const Tensor tensor = memory(DType::kI32, {std::ssize(values)});
  check(cudaMemcpy(tensor.data(), values.data(), tensor.bytes(), cudaMemcpyHostToDevice), "upload");
  return tensor;
}

// Sequences from position 0 on, each in a slot of its own; or, padding, in none.
StateBatch batch_of(const std::vector<int>& lengths, bool padding) {
  std::vector<std::int32_t> starts = {0}, from, to;
  LongSpans spans;
  StateBatch batch;
  for (const int length : lengths) {
    const auto s = static_cast<std::int32_t>(to.size());
    spans.add(s, 0, length);
    starts.push_back(starts.back() + length);
    from.push_back(length == 1 ? s : -1);
    to.push_back(padding ? -1 : s);
    batch.max_query_len = std::max(batch.max_query_len, length);
  }
  batch.num_sequences = static_cast<int>(lengths.size());
  batch.num_tokens = starts.back();
  batch.query_starts = ints(starts);
  batch.from = ints(from);
  batch.to = ints(to);
  std::vector<std::int32_t> fields;
  for (const LongSpan& span : spans.spans)
    fields.insert(fields.end(), {span.sequence, span.first_chunk, span.skipped});
  const Tensor flat = ints(fields);
  batch.long_spans = Tensor(flat.data(), DType::kI32, {std::ssize(spans.spans), 3}, DeviceKind::kCuda);
  batch.num_chunks = spans.num_chunks;
  return batch;
}

class Bench {
 public:
  explicit Bench(const Model& model)
      : model_(model),
        keys_(2L * model.key_heads * kDim),
        values_(std::int64_t{model.value_heads} * kDim),
        rows_(random_bf16(context_, kMaxTokens, keys_ + 2 * values_ + 2L * model.value_heads)),
        mixed_(random_bf16(context_, kMaxTokens, keys_ + values_)),
        out_(memory(DType::kF32, {kMaxTokens, values_})),
        normed_(memory(DType::kBF16, {kMaxTokens, values_})),
        state_(memory(DType::kF32, {kMaxSequences, model.value_heads, kDim, kDim})),
        conv_state_(memory(DType::kF32, {kMaxSequences, 1, 3, keys_ + values_})),
        a_log_(memory(DType::kF32, {model.value_heads})),
        conv_weight_(memory(DType::kF32, {4, keys_ + values_})),
        norm_weight_(memory(DType::kF32, {kDim})) {
    const DeltaRuleShape shape = {model.key_heads, model.value_heads, kDim, kDim};
    const auto bytes = static_cast<std::int64_t>(delta_rule_workspace_bytes(context_, shape, DType::kBF16));
    workspace_ = memory(DType::kU8, {bytes});
    std::printf("%s: %d and %d heads, %.1f MiB of workspace\n", model.name, model.key_heads,
                model.value_heads, static_cast<double>(bytes) / (1 << 20));
  }
  ~Bench() {
    for (const Tensor& tensor : {rows_, mixed_, out_, normed_, state_, conv_state_, workspace_})
      cudaFree(tensor.data());
  }

  void print(const char* name, const std::vector<int>& lengths) {
    const StateBatch batch = batch_of(lengths, false), padding = batch_of(lengths, true);
    const auto time = [&](const StateBatch& of, bool in_chunks) {
      return graph_time_us(
          context_, 1, [&](int) { run(of, in_chunks); }, 3);
    };
    const double chunks = time(batch, true), prepared = time(padding, true), tokens = time(batch, false);
    std::printf(
        "%-24s %7d tokens: %9.1f us in chunks (%8.1f us before states), %10.1f us by tokens, %5.1f x\n", name,
        batch.num_tokens, chunks, prepared, tokens, tokens / chunks);
  }
  void print_neighbours(int tokens) {
    const StateBatch batch = batch_of({tokens}, false);
    const std::int64_t channels = keys_ + values_;
    const Tensor x = rows_.rows(0, tokens).columns(0, channels);
    const Tensor state =
        Tensor(conv_state_.data(), DType::kF32, {kMaxSequences, 3, channels}, DeviceKind::kCuda);
    const double conv = graph_time_us(context_, 1, [&](int) {
      causal_conv(context_, mixed_.rows(0, tokens), x, {conv_weight_, {}, Activation::kSilu}, state, batch);
    });
    const double norm = graph_time_us(context_, 1, [&](int) {
      gated_norm(context_, normed_.rows(0, tokens), out_.rows(0, tokens),
                 rows_.rows(0, tokens).columns(channels, values_), {norm_weight_, {}, 1e-6F});
    });
    const double conv_bytes = 4.0 * static_cast<double>(tokens * channels);
    const double norm_bytes = 8.0 * static_cast<double>(tokens * values_);
    std::printf("%-24s %7d tokens: convolution %7.1f us, %5.0f GB/s; gated norm %7.1f us, %5.0f GB/s\n",
                "neighbours", tokens, conv, conv_bytes / conv * 1e-3, norm, norm_bytes / norm * 1e-3);
  }

 private:
  void run(const StateBatch& batch, bool in_chunks) {
    const std::int64_t tokens = batch.num_tokens;
    const DeltaRuleInput input = {
        .qkv = mixed_.rows(0, tokens),
        .rates = rows_.rows(0, tokens).columns(keys_ + 2 * values_, 2L * model_.value_heads),
        .a_log = a_log_,
        .dt_bias = a_log_,
        .num_key_heads = model_.key_heads,
        .workspace = in_chunks ? workspace_ : Tensor()};
    gated_delta_rule(context_, out_.rows(0, tokens), input, state_, batch);
  }

  LaunchContext context_ = make_context();
  Model model_;
  std::int64_t keys_, values_;  // columns of queries and keys, and of values
  Tensor rows_, mixed_, out_, normed_, state_, conv_state_, a_log_, conv_weight_, norm_weight_, workspace_;
};

}  // namespace
}  // namespace quire::cuda::bench

int main() {
  using namespace quire::cuda::bench;
  try {
    for (const Model& model : {Model{"Qwen3.5-4B, 9B, 35B-A3B", 16, 32}, Model{"Qwen3.5-0.8B", 16, 16}}) {
      Bench bench(model);
      bench.print("1 of 64", {64});
      bench.print("1 of 512", {512});
      bench.print("1 of 8,192", {8192});
      bench.print("1 of 32,768", {32768});
      bench.print("2 of 4,096", std::vector<int>(2, 4096));
      bench.print("16 of 512", std::vector<int>(16, 512));
      bench.print("64 of 128", std::vector<int>(64, 128));
      std::vector<int> mixed(192, 1);
      mixed.insert(mixed.end(), {4096, 1024, 700, 512, 512, 300, 200, 100, 20});
      bench.print("192 of 1, 9 prompts", mixed);
      bench.print_neighbours(8192);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
