#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "ops/activation.h"
#include "ops/cache_code.h"
#include "ops/linear_format.h"

// What an instruction set's translation unit (kernels_*.cpp) offers. These are compiled with flags of their
// own and must not share inline code with the rest of the program: the linker would keep either copy. So
// arguments are plain pointers and numbers here.
namespace quire::simd {

// A packed matrix lies in panels of this many rows; the last one may be narrower, a multiple of kPanelStep,
// filled up with zeros. Within a panel bf16 is [k / 2][rows][2], f16 and f32 are [k][rows]; k is filled up to
// an even number.
constexpr std::int64_t kPanel = 64;
constexpr std::int64_t kPanelStep = 16;

[[gnu::always_inline]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

[[gnu::always_inline]] constexpr std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

// Rows that a panel of so many rows in all has room for.
[[gnu::always_inline]] constexpr std::int64_t panel_width(std::int64_t out_features, std::int64_t panel) {
  return smaller(round_up(out_features - panel * kPanel, kPanelStep), kPanel);
}

// Tokens of one pass over the weights; more are taken in several passes.
constexpr std::int64_t kMaxPassTokens = 512;

// k of a block. From so many tokens on it is widened to float32, which many tokens then share; otherwise it
// and the next one, which is fetched meanwhile, fit the first cache.
constexpr std::int64_t kWideTokens = 48;
constexpr std::int64_t kBlockDepth = 256;
constexpr std::int64_t kNarrowDepth = 64;
[[gnu::always_inline]] constexpr std::int64_t block_depth(std::int64_t tokens) {
  return tokens < kWideTokens ? kNarrowDepth : kBlockDepth;
}

enum class PackedCode : std::uint8_t {
  k4Bits,  // by a table
  k6Bits,  // integers from -32 to 31
  k8Bits,  // signed integers
  kE4m3,
};

// A step: columns whose codes lie together, in so many words of each row.
[[gnu::always_inline]] constexpr int step_words(PackedCode code) {
  return code == PackedCode::k6Bits ? 3 : 1;
}
[[gnu::always_inline]] constexpr int step_columns(PackedCode code) {
  return code == PackedCode::k4Bits ? 8 : code == PackedCode::k6Bits ? 16 : 4;
}

// A matrix of codes lies in the same panels, and a panel in chunks of `span` columns, the last one as many as
// are left. A chunk is read front to back: super-blocks' scales and minima f32 [rows] each, where there are
// any; the groups' scales, then what is taken away [groups][rows], in their stored types; codes u32 [steps]
// [step_words][rows]. Each part begins at a multiple of 64 bytes. The even columns of a step are in the
// lower halves of its words, the odd ones in the same bits of the upper halves. Pairs of columns of 4 and 8
// bits begin at bit 0, of 6 bits two in each of three words; of these the seventh pair is at bit 12 of the
// first word (4 bits) and of the second (2), the eighth behind it (2) and at bit 12 of the third (4), lower
// bits first.
struct CodedLayout {
  PackedCode code;
  std::int64_t group;  // columns that share a scale, a multiple of step_columns
  std::int64_t span;   // a multiple of group
  ScaleType scale;
  OffsetType offset;
  ScaleType minimum;
  bool has_super_scales, has_super_minima;
  float table[16];           // k4Bits
  InputFormat input;         // of x, which becomes codes
  std::int64_t input_block;  // columns of x whose codes share a scale: some groups, or all
  bool whole_rows;           // nothing but one scale a row; groups are parts of it
};

// Most columns of a chunk, and most groups.
constexpr std::int64_t kMaxSpan = 256;
constexpr std::int64_t kCodedStep = 8;
constexpr std::int64_t kMaxGroups = kMaxSpan / kCodedStep;

[[gnu::always_inline]] constexpr std::int64_t scale_bytes(ScaleType type) {
  return type == ScaleType::kNone ? 0 : type == ScaleType::kF32 ? 4 : type == ScaleType::kF16 ? 2 : 1;
}

// At most, for one pass: x, and its sums over groups of columns, or the scales of its codes.
[[gnu::always_inline]] constexpr std::size_t activation_floats(std::int64_t in_features) {
  constexpr std::int64_t kStep = 32;
  return static_cast<std::size_t>(kMaxPassTokens * round_up(in_features, kStep) / kCodedStep *
                                  (kCodedStep + 1));
}

// Floats of scratch a thread needs for linear: sums [tokens][kPanel], then a widened block, then a chunk's
// scales and minima [groups][rows].
constexpr std::size_t kLinearScratch =
    kMaxPassTokens * kPanel + kBlockDepth * kPanel + 2 * kMaxGroups * kPanel;

// Where the parts of a chunk begin, in bytes.
struct CodedChunk {
  std::int64_t super_minima, scales, offsets, codes, end;

  [[gnu::always_inline]] constexpr CodedChunk(const CodedLayout& layout, std::int64_t rows,
                                              std::int64_t columns)
      : super_minima(layout.has_super_scales ? rows * 4 : 0),
        scales(super_minima + (layout.has_super_minima ? rows * 4 : 0)),
        offsets(scales + part(layout.scale, layout, rows, columns)),
        codes(offsets + (layout.offset == OffsetType::kNone   ? 0
                         : layout.offset == OffsetType::kZero ? part(ScaleType::kU8, layout, rows, columns)
                                                              : part(layout.minimum, layout, rows, columns))),
        end(codes + round_up(columns, step_columns(layout.code)) / step_columns(layout.code) *
                        step_words(layout.code) * rows * 4) {}

 private:
  [[gnu::always_inline]] static constexpr std::int64_t part(ScaleType type, const CodedLayout& layout,
                                                            std::int64_t rows, std::int64_t columns) {
    return round_up(round_up(columns, layout.group) / layout.group * rows * scale_bytes(type), 64);
  }
};

// columns: a multiple of step_columns.
[[gnu::always_inline]] constexpr std::int64_t coded_panel_bytes(const CodedLayout& layout, std::int64_t rows,
                                                                std::int64_t columns) {
  const std::int64_t rest = columns % layout.span;
  return columns / layout.span * CodedChunk(layout, rows, layout.span).end +
         (rest == 0 ? 0 : CodedChunk(layout, rows, rest).end);
}

// A matrix whose rows lie `stride` elements apart.
struct Rows {
  void* data;
  DType dtype;
  std::int64_t stride;

  template <typename T>
  [[gnu::always_inline]] T* row(std::int64_t i) const {
    return static_cast<T*>(data) + i * stride;
  }
};

struct LinearJob {
  const std::byte* weights;  // packed
  DType dtype;               // of weights; of codes, that which they are computed in: bf16 or f32
  std::int64_t out_features;
  std::int64_t in_features;
  std::int64_t tokens;       // at most kMaxPassTokens
  Rows x;                    // [tokens, in_features]
  Rows out;                  // [tokens, out_features]
  const float* bias;         // [out_features], or null
  float* activations;        // [activation_floats]: x as the kernel wants it
  const CodedLayout* coded;  // null: weights are plain
  std::int64_t padded;       // in_features, rounded up to what the packed form has
  std::int64_t block;        // columns that lie together in activations
};

struct NormJob {
  Rows out;          // [rows, n]
  Rows x;            // [rows, n]
  Rows update = {};  // [rows, n] added to x, which is f32, first; or null
  float update_scale = 0;
  float sum_scale = 1;  // of x with the update
  const float* weight;  // [n]
  const float* bias;    // [n]: LayerNorm; or null: RMSNorm
  std::int64_t n;
  float eps;
};

struct ActivationJob {
  Activation activation;
  Rows out;  // [rows, n]
  Rows x;    // [rows, n], or a gate and what it gates: [rows, 2 n]; of out's type
  std::int64_t n;
};

// The sequences of a step, and their states in slots.
struct StatesView {
  Rows slots;  // f32
  std::int64_t num_sequences;
  const std::int32_t* starts;  // [num_sequences + 1]
  const std::int32_t* from;    // [num_sequences] slot, or -1: zeros
  const std::int32_t* to;      // [num_sequences] slot, or -1: nothing is done
};

constexpr std::int64_t kConvChannels = 64;

// Depthwise, over `width` tokens.
struct ConvJob {
  Rows out;           // [tokens, channels]
  Rows x;             // [tokens, channels], of out's type
  Rows weight;        // f32 [width, channels]
  const float* bias;  // [channels], or null
  Activation activation;
  std::int64_t width;
  std::int64_t channels;
  StatesView states;  // of a slot [width - 1][channels]
};

// Tokens whose keys are prepared together, and columns of a state that lie in the first cache meanwhile.
constexpr std::int64_t kDeltaTokens = 16;
constexpr std::int64_t kDeltaColumns = 32;

// As Backend::gated_delta_rule has it.
struct DeltaRuleJob {
  Rows out;  // f32
  Rows qkv;
  Rows rates;  // of qkv's type
  const float* a_log;
  const float* dt_bias;
  std::int64_t num_key_heads;
  std::int64_t num_value_heads;
  std::int64_t key_dim;
  std::int64_t value_dim;
  StatesView states;
};

// Floats of scratch: a chunk's keys and queries, and a strip.
[[gnu::always_inline]] constexpr std::size_t delta_scratch(std::int64_t key_dim) {
  return static_cast<std::size_t>(key_dim * (2 * kDeltaTokens + kDeltaColumns));
}

// All of one type.
struct GateJob {
  Rows out;   // [rows, n]
  Rows x;     // [rows, n]
  Rows gate;  // [rows, n], or one a row
  std::int64_t n;
  bool of_rows;
  bool add;
};

struct GatedNormJob {
  Rows out;             // [rows, heads * n]
  Rows x;               // f32 [rows, heads * n]
  Rows gate;            // [rows, heads * n], of out's type
  const float* weight;  // [n]
  std::int64_t heads;
  std::int64_t n;
  float eps;
};

struct CapJob {
  Rows x;  // f32 [rows, n]
  std::int64_t n;
  float cap;
};

// One layer of the paged cache; strides in elements.
struct CacheView {
  void* keys;
  void* values;
  DType dtype;  // of queries, and of what has no code
  std::int64_t block_stride;
  std::int64_t head_stride;
  std::int64_t row_stride;
  std::int64_t block_size;
  CacheCode code;
  float* key_scales;  // of codes
  float* value_scales;
  std::int64_t scale_block_stride;
  std::int64_t scale_head_stride;
};

struct RotateAndStoreJob {
  Rows qkv;
  CacheView cache;
  const float* q_norm;  // or null
  const float* k_norm;  // or null
  const float* v_norm;  // or null
  Rows cos_sin;         // f32 [positions, rotary_dim], or null
  std::int64_t rotary_dim;
  const float* q_scale;   // by position, or null
  const float* k_scales;  // [num_kv_heads] of codes, or null
  const float* v_scales;
  float norm_eps;
  bool norm_after_rotary;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  const std::int32_t* positions;
  const std::int32_t* slots;
};

// Some neighbouring tokens of one sequence and KV heads: what one thread takes.
struct AttentionSpan {
  std::int64_t first_head;
  std::int64_t num_heads;
  std::int64_t first_token;
  std::int64_t num_tokens;
  std::int64_t context;    // tokens that the first one sees, itself included
  std::int64_t table_row;  // of the sequence
};

// Positions of a tile of keys, aligned to multiples of it.
constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kQueryRows = 64;  // of a span, or as many as a token and a KV head have

struct AttentionJob {
  Rows q;
  Rows out;
  CacheView cache;
  const std::int32_t* block_tables;
  std::int64_t table_stride;
  std::int64_t group;  // query heads of a KV head
  std::int64_t head_dim;
  float scale;
  float cap;            // over 0: scores are cap * tanh(score / cap)
  std::int64_t window;  // positions a query attends to, its own included
  const float* slopes;  // [query heads] of ALiBi, or null
  const float* sinks;   // [query heads], or null
};

// Floats of scratch for a span: for each row the query, the sums, the scores, the maximum and the total; of
// codes a tile of keys and one of values as numbers of 16 bits, with their scales.
[[gnu::always_inline]] constexpr std::size_t attention_scratch(std::int64_t rows, std::int64_t head_dim,
                                                               CacheCode code) {
  const std::int64_t width = round_up(head_dim, 32);
  return static_cast<std::size_t>(rows * (2 * width + kKeyTile + 2) +
                                  (code == CacheCode::kNone ? 0 : kKeyTile * (width + 2)));
}

struct Candidate {
  float score;
  std::int64_t id;
};

// Of a row's ids [first, first + n).
struct Draw {
  const float* logits;  // of `first`
  std::int64_t first;   // a multiple of 4
  std::int64_t n;
  float inverse_temperature;
  std::uint64_t seed;
  std::int32_t position;
};

struct Kernels {
  // Where x becomes codes, their scales, of tokens [begin, end); before prepare_activations.
  void (*scale_inputs)(const LinearJob& job, std::int64_t begin, std::int64_t end);
  // Blocks [begin, end) of x's columns, as linear_panels wants them.
  void (*prepare_activations)(const LinearJob& job, std::int64_t begin, std::int64_t end);
  void (*linear_panels)(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch);
  void (*norm)(const NormJob& job, std::int64_t begin, std::int64_t end);
  void (*activate)(const ActivationJob& job, std::int64_t begin, std::int64_t end);
  void (*activate_gate)(const ActivationJob& job, std::int64_t begin, std::int64_t end);
  // Runs [begin, end) of kConvChannels channels; the last one has those that are left.
  void (*causal_conv)(const ConvJob& job, std::int64_t begin, std::int64_t end);
  // Heads [begin, end) of all sequences, a head's sequences one after the other.
  void (*gated_delta_rule)(const DeltaRuleJob& job, std::int64_t begin, std::int64_t end, float* scratch);
  void (*sigmoid_gate)(const GateJob& job, std::int64_t begin, std::int64_t end);
  void (*gated_norm)(const GatedNormJob& job, std::int64_t begin, std::int64_t end);  // heads of all rows
  void (*cap)(const CapJob& job, std::int64_t begin, std::int64_t end);
  void (*rotate_and_store)(const RotateAndStoreJob& job, std::int64_t begin, std::int64_t end,
                           float* scratch);
  void (*attention)(const AttentionJob& job, const AttentionSpan& span, float* scratch);
  Candidate (*top)(const float* x, std::int64_t n);  // the first largest; its score is NaN where any is
  Candidate (*race)(const Draw& draw);               // the winner of the exponential race
};

extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
extern const Kernels kAmxKernels;

}  // namespace quire::simd
