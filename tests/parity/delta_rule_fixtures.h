#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ops/ops.h"
#include "parity/ops_fixtures.h"

namespace quire::testing {

struct DeltaShape {
  int key_heads, value_heads, key_dim, value_dim;

  std::int64_t values() const { return std::int64_t{value_heads} * value_dim; }
  std::int64_t keys() const { return std::int64_t{key_heads} * key_dim; }
  std::int64_t state() const { return values() * key_dim; }
};

// A sequence's tokens of a step.
struct DeltaSpan {
  int num_tokens;
  std::int32_t from, to;
  int position = 0;  // of the first one
};

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Random tokens and states of sequences in slots, whose rows are wider than what the op is given; those of
// slots by `padding`, those of tokens by `row_padding`.
class DeltaCase {
 public:
  DeltaCase(const DeltaShape& sizes, std::vector<DeltaSpan> step, int num_slots, DType dtype,
            std::mt19937& random, std::int64_t padding = 5, std::int64_t row_padding = 3)
      : shape(sizes),
        spans(std::move(step)),
        tokens(count_tokens(spans)),
        rows(dtype, tokens, 2 * sizes.keys() + sizes.values() + 2 * sizes.value_heads + row_padding, random),
        a_log(DType::kF32, 1, sizes.value_heads, random),
        dt_bias(DType::kF32, 1, sizes.value_heads, random),
        slots(DType::kF32, num_slots, sizes.state() + padding, random, 0.5F) {
    for (const DeltaSpan& span : spans) {
      starts_.push_back(starts_.back() + span.num_tokens);
      from_.push_back(span.from);
      to_.push_back(span.to);
      long_.add(static_cast<int>(to_.size()) - 1, span.position, span.num_tokens);
    }
  }

  // Of rows, slots and parameters, wherever copies of them lie.
  DeltaRuleInput input(const Tensor& all, const Tensor& log_of_a, const Tensor& bias_of_dt) const {
    const std::int64_t width = 2 * shape.keys() + shape.values();
    return {.qkv = all.columns(0, width),
            .rates = all.columns(width, 2 * shape.value_heads),
            .a_log = log_of_a,
            .dt_bias = bias_of_dt,
            .num_key_heads = shape.key_heads};
  }
  DeltaRuleInput input() const { return input(rows.tensor(), a_log.vector(), dt_bias.vector()); }
  Tensor state(const Tensor& memory) const {
    return Tensor(memory.data(), DType::kF32,
                  {memory.dim(0), shape.value_heads, shape.key_dim, shape.value_dim}, memory.device())
        .with_strides({memory.stride(0), std::int64_t{shape.key_dim} * shape.value_dim, shape.value_dim, 1});
  }
  StateBatch batch() {
    StateBatch result;
    result.num_sequences = static_cast<int>(spans.size());
    result.num_tokens = static_cast<int>(tokens);
    for (const DeltaSpan& span : spans)
      result.max_query_len = std::max(result.max_query_len, span.num_tokens);
    result.query_starts = ints(starts_);
    result.from = ints(from_);
    result.to = ints(to_);
    if (long_.num_chunks > 0)
      result.long_spans =
          Tensor(long_.spans.data(), DType::kI32, {static_cast<std::int64_t>(long_.spans.size()), 3});
    result.num_chunks = long_.num_chunks;
    return result;
  }

  // What comes of them in float64: the output, NaN where there is none, and the slots' states.
  struct Expected {
    std::vector<std::vector<double>> out, slots;
  };
  Expected expected() const {
    Expected result;
    result.out.assign(static_cast<std::size_t>(tokens),
                      std::vector<double>(static_cast<std::size_t>(shape.values()), NAN));
    for (std::int64_t slot = 0; slot < slots.tensor().dim(0); ++slot) {
      auto& values = result.slots.emplace_back();
      for (std::int64_t i = 0; i < slots.tensor().dim(1); ++i) values.push_back(slots.at(slot, i));
    }
    for (std::size_t s = 0; s < spans.size(); ++s) {
      if (spans[s].to < 0) continue;
      std::vector<double> own(static_cast<std::size_t>(shape.state()));
      if (spans[s].from >= 0)
        std::copy_n(result.slots[static_cast<std::size_t>(spans[s].from)].begin(), own.size(), own.begin());
      for (std::int64_t t = starts_[s]; t < starts_[s + 1]; ++t) {
        for (int h = 0; h < shape.value_heads; ++h) turn(t, h, own, result.out[static_cast<std::size_t>(t)]);
      }
      std::copy(own.begin(), own.end(), result.slots[static_cast<std::size_t>(spans[s].to)].begin());
    }
    return result;
  }

  const DeltaShape shape;
  const std::vector<DeltaSpan> spans;
  const std::int64_t tokens;
  Matrix rows, a_log, dt_bias, slots;

 private:
  static std::int64_t count_tokens(const std::vector<DeltaSpan>& spans) {
    std::int64_t total = 0;
    for (const DeltaSpan& span : spans) total += span.num_tokens;
    return total;
  }
  std::vector<double> normalised(std::int64_t t, std::int64_t column) const {
    std::vector<double> values;
    double squares = 1e-6;
    for (std::int64_t i = 0; i < shape.key_dim; ++i) {
      values.push_back(rows.at(t, column + i));
      squares += values.back() * values.back();
    }
    for (double& value : values) value /= std::sqrt(squares);
    return values;
  }
  void turn(std::int64_t t, std::int64_t h, std::vector<double>& own, std::vector<double>& out) const {
    const std::int64_t key_head = h / (shape.value_heads / shape.key_heads), first = key_head * shape.key_dim;
    const std::int64_t width = 2 * shape.keys() + shape.values();
    const std::vector<double> q = normalised(t, first), k = normalised(t, shape.keys() + first);
    const double a = rows.at(t, width + shape.value_heads + h), beta = sigmoid(rows.at(t, width + h));
    const double decay = std::exp(-std::exp(a_log.at(0, h)) * std::log1p(std::exp(a + dt_bias.at(0, h))));
    double* head = &own[static_cast<std::size_t>(h * shape.key_dim * shape.value_dim)];
    for (std::int64_t j = 0; j < shape.value_dim; ++j) {
      double seen = 0, read = 0;
      for (std::size_t i = 0; i < k.size(); ++i) {
        double& value = head[static_cast<std::int64_t>(i) * shape.value_dim + j];
        seen += k[i] * (value *= decay);
      }
      const double delta = beta * (rows.at(t, 2 * shape.keys() + h * shape.value_dim + j) - seen);
      for (std::size_t i = 0; i < k.size(); ++i) {
        double& value = head[static_cast<std::int64_t>(i) * shape.value_dim + j];
        read += q[i] / std::sqrt(shape.key_dim) * (value += k[i] * delta);
      }
      out[static_cast<std::size_t>(h * shape.value_dim + j)] = read;
    }
  }

  std::vector<std::int32_t> starts_ = {0}, from_, to_;
  LongSpans long_;
};

// A layer of Gated DeltaNet between its products with random parameters, and a token of each of some
// sequences; rows and slots are 4 elements wider than what they hold.
class DeltaNetCase {
 public:
  // Sequences in place or from slot to slot; every fifth from zeros, every seventh padding.
  DeltaNetCase(const DeltaShape& sizes, int sequences, bool in_place, DType dtype, std::mt19937& random)
      : shape(sizes),
        rows(dtype, sequences, channels() + sizes.values() + 2 * sizes.value_heads + 4, random),
        conv_weight(DType::kF32, 4, channels(), random),
        a_log(DType::kF32, 1, sizes.value_heads, random),
        dt_bias(DType::kF32, 1, sizes.value_heads, random),
        norm_weight(DType::kF32, 1, sizes.value_dim, random),
        conv_slots(DType::kF32, 2 * sequences, 3 * channels() + 4, random),
        slots(DType::kF32, 2 * sequences, sizes.state() + 4, random, 0.5F),
        mixed(dtype, sequences, channels(), random),
        heads(DType::kF32, sequences, sizes.values(), random),
        out(dtype, sequences, sizes.values() + 4, random) {
    for (int s = 0; s < sequences; ++s) {
      starts_.push_back(s + 1);
      from_.push_back(s % 5 == 4 ? -1 : s);
      to_.push_back(s % 7 == 6 ? -1 : in_place ? s : 2 * sequences - 1 - s);
    }
  }

  std::int64_t channels() const { return 2 * shape.keys() + shape.values(); }
  StateBatch batch() {
    const auto sequences = static_cast<int>(to_.size());
    return {sequences, sequences, 1, ints(starts_), ints(from_), ints(to_)};
  }
  bool is_padding(int sequence) const { return to_[static_cast<std::size_t>(sequence)] < 0; }
  // Of copies of the matrices, where at(matrix) says.
  template <typename At>
  DeltaNet net(const At& at) const {
    const auto vector = [&](const Matrix& matrix) {
      return Tensor(at(matrix).data(), DType::kF32, {matrix.tensor().numel()}, at(matrix).device());
    };
    const auto states = [&](const Matrix& matrix, std::initializer_list<std::int64_t> dims) {
      return Tensor(at(matrix).data(), DType::kF32, dims, at(matrix).device());
    };
    const std::int64_t count = slots.tensor().dim(0), key_dim = shape.key_dim, value_dim = shape.value_dim;
    return {.conv = {at(conv_weight), {}, Activation::kSilu},
            .rule = {.qkv = {},
                     .rates = {},
                     .a_log = vector(a_log),
                     .dt_bias = vector(dt_bias),
                     .num_key_heads = shape.key_heads},
            .norm = {vector(norm_weight), {}, 1e-6F},
            .conv_state = states(conv_slots, {count, 3, channels()})
                              .with_strides({conv_slots.tensor().stride(0), channels(), 1}),
            .state = states(slots, {count, shape.value_heads, key_dim, value_dim})
                         .with_strides({slots.tensor().stride(0), key_dim * value_dim, value_dim, 1}),
            .mixed = at(mixed),
            .heads = at(heads)};
  }
  Tensor input(const Tensor& all) const {
    return all.columns(0, channels() + shape.values() + 2 * shape.value_heads);
  }
  Tensor output(const Tensor& all) const { return all.columns(0, shape.values()); }

  const DeltaShape shape;
  Matrix rows, conv_weight, a_log, dt_bias, norm_weight, conv_slots, slots, mixed, heads, out;

 private:
  std::vector<std::int32_t> starts_ = {0}, from_, to_;
};

}  // namespace quire::testing
