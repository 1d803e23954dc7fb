#include "models/file_layouts.h"

#include "models/decoder.h"
#include "models/rotary.h"

namespace quire {
namespace {

// A projection that a file has as `size` rows of a larger one.
struct FusedPart {
  std::string part, whole;  // the last component of their names
  std::int64_t begin, size, whole_size;
  int num_heads = 0;  // whose rows lie one after the other in the whole; 0: the parts' rows do
};

std::vector<FusedPart> fused_parts(const FileLayout& layout, const DecoderConfig& config) {
  std::vector<FusedPart> parts;
  if (!layout.qkv.empty()) {
    const AttentionOptions& attention = config.attention;
    const std::int64_t q = std::int64_t{attention.num_heads} * attention.head_dim;
    const std::int64_t kv = std::int64_t{attention.num_kv_heads} * attention.head_dim;
    const std::int64_t all = q + 2 * kv;
    const int heads = layout.qkv_by_head ? attention.num_heads : 0;
    parts = {{"q_proj", layout.qkv, 0, q, all, heads},
             {"k_proj", layout.qkv, q, kv, all, heads},
             {"v_proj", layout.qkv, q + kv, kv, all, heads}};
  }
  if (!layout.gate_up.empty()) {
    const std::int64_t size = config.mlp.intermediate_size;
    parts.push_back({"gate_proj", layout.gate_up, 0, size, 2 * size});
    parts.push_back({"up_proj", layout.gate_up, size, size, 2 * size});
  }
  return parts;
}

RenamedWeights::Renames all_renames(const FileLayout& layout, const std::vector<FusedPart>& parts,
                                    const WeightSource& file) {
  RenamedWeights::Renames renames = layout.renames;
  for (const FusedPart& part : parts) renames.emplace_back(part.part, part.whole);
  if (layout.text_part && file.contains("model.language_model.embed_tokens.weight")) {
    renames.emplace_back("model", "model.language_model");
  } else if (layout.text_part && file.contains("language_model.model.embed_tokens.weight")) {
    renames.insert(renames.end(), {{"model", "language_model.model"}, {"lm_head", "language_model.lm_head"}});
  }
  return renames;
}

class FileWeights final : public RenamedWeights {
 public:
  FileWeights(const FileLayout& layout, const DecoderConfig& config, std::vector<FusedPart> parts,
              WeightSource& file)
      : RenamedWeights(file, all_renames(layout, parts, file)),
        transposed_(layout.transposed),
        parts_(std::move(parts)),
        head_dim_(config.attention.head_dim) {
    if (layout.neighbour_rotary && config.attention.rotary)
      reordered_dim_ = rotary_dim(*config.attention.rotary, head_dim_);
  }

  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const FusedPart* part = find(name.substr(0, name.rfind('.')));  // a bias belongs to a projection
    if (part == nullptr) return reordered(name, RenamedWeights::take(name, shape), shape[0]);
    return reordered(name, cut(RenamedWeights::take(name, {part->whole_size}), *part, slice_cols), shape[0]);
  }

  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    const FusedPart* part = find(prefix);
    const std::int64_t size = part == nullptr ? rows : part->whole_size;
    WeightGroup group = transposed_ && prefix.ends_with("_proj")
                            ? transpose(RenamedWeights::take_linear(prefix, cols, size))
                            : RenamedWeights::take_linear(prefix, size, cols);
    if (part != nullptr) group = cut(std::move(group), *part, slice_rows);
    return reordered(prefix, std::move(group), rows);
  }

 private:
  const FusedPart* find(std::string_view prefix) const {
    const std::string_view last = prefix.substr(prefix.rfind('.') + 1);
    for (const FusedPart& part : parts_) {
      if (part.part == last) return &part;
    }
    return nullptr;
  }

  // A tensor or a group of them.
  template <typename Weights>
  Weights cut(Weights whole, const FusedPart& part,
              Weights (*slice)(Weights whole, std::int64_t begin, std::int64_t count)) const {
    if (part.num_heads > 0)
      return deinterleave(std::move(whole), part.num_heads, part.whole_size / part.size,
                          part.begin / part.size);
    return slice(std::move(whole), part.begin, part.size);
  }

  // Of q and k, their norms too, the dimensions in the order of layers.
  template <typename Weights>
  Weights reordered(std::string_view name, Weights weights, std::int64_t rows) const {
    const bool rotates = name.find(".self_attn.q") != name.npos || name.find(".self_attn.k") != name.npos;
    if (reordered_dim_ == 0 || !rotates) return weights;
    const int half = reordered_dim_ / 2;
    std::vector<std::int64_t> order;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t i = row % head_dim_;
      const std::int64_t from = i < half ? 2 * i : i < reordered_dim_ ? 2 * (i - half) + 1 : i;
      order.push_back(row - i + from);
    }
    return pick_rows(std::move(weights), std::move(order));
  }

  bool transposed_;
  std::vector<FusedPart> parts_;
  int head_dim_;
  int reordered_dim_ = 0;  // of a head's dimensions, those that rotate with their neighbours
};

}  // namespace

std::unique_ptr<WeightSource> read_layout(const FileLayout& layout, const DecoderConfig& config,
                                          WeightSource& file) {
  return std::make_unique<FileWeights>(layout, config, fused_parts(layout, config), file);
}

}  // namespace quire
