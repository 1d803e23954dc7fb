#include "models/file_layouts.h"

#include <algorithm>
#include <charconv>

#include "base/format.h"
#include "models/decoder.h"
#include "models/rotary.h"

namespace quire {
namespace {

// A projection that a file has as `size` rows of a larger one.
struct FusedPart {
  std::string part, whole;  // the last component of their names
  std::int64_t begin, size, whole_size;
  int num_heads = 1;  // whose rows lie one after the other in the whole: of each those of all parts
};

// The projections of Gated DeltaNet: queries, keys and values as one; or these with the gate of the output as
// one, and both of a head's rates as another, of one key head after the other. gate_apart: of these the rates
// alone (as GGUF files have them).
void add_delta_net(const DeltaNetOptions& options, bool by_head, bool gate_apart,
                   std::vector<FusedPart>& parts) {
  const std::int64_t keys = options.keys(), values = options.values();
  const bool with_gate = by_head && !gate_apart;
  const int heads = with_gate ? options.num_key_heads : 1;
  const std::int64_t all = 2 * keys + (with_gate ? 2 : 1) * values, rates = options.num_value_heads;
  const char* whole = with_gate ? "in_proj_qkvz" : "in_proj_qkv";
  parts.insert(parts.end(), {{"in_proj_q", whole, 0, keys, all, heads},
                             {"in_proj_k", whole, keys, keys, all, heads},
                             {"in_proj_v", whole, 2 * keys, values, all, heads}});
  if (with_gate) parts.push_back({"in_proj_z", whole, 2 * keys + values, values, all, heads});
  if (by_head)
    parts.insert(parts.end(), {{"in_proj_b", "in_proj_ba", 0, rates, 2 * rates, options.num_key_heads},
                               {"in_proj_a", "in_proj_ba", rates, rates, 2 * rates, options.num_key_heads}});
}

std::vector<FusedPart> fused_parts(const FileLayout& layout, const DecoderConfig& config,
                                   const WeightSource& file) {
  std::vector<FusedPart> parts;
  if (!layout.qkv.empty()) {
    const AttentionOptions& attention = config.attention;
    const std::int64_t q = std::int64_t{attention.num_heads} * attention.head_dim;
    const std::int64_t kv = std::int64_t{attention.num_kv_heads} * attention.head_dim;
    const std::int64_t all = q + 2 * kv;
    const int heads = layout.qkv_by_head ? attention.num_heads : 1;
    parts = {{"q_proj", layout.qkv, 0, q, all, heads},
             {"k_proj", layout.qkv, q, kv, all, heads},
             {"v_proj", layout.qkv, q + kv, kv, all, heads}};
  }
  if (!layout.gate_up.empty()) {
    const std::int64_t size = config.mlp.intermediate_size;
    parts.push_back({"gate_proj", layout.gate_up, 0, size, 2 * size});
    parts.push_back({"up_proj", layout.gate_up, size, size, 2 * size});
  }
  if (config.attention.output_gate) {
    const int heads = config.attention.num_heads;
    const std::int64_t q = std::int64_t{heads} * config.attention.head_dim;
    parts.push_back({"q_proj", "q_proj", 0, q, 2 * q, heads});
    parts.push_back({"q_gate", "q_proj", q, q, 2 * q, heads});
  }
  if (config.delta_net) {
    const auto first = std::ranges::find(config.delta_layers, true);
    const std::string name =
        format_text("model.layers.{}.linear_attn.in_proj_qkv.weight", first - config.delta_layers.begin());
    add_delta_net(*config.delta_net, layout.delta_net_by_head, file.contains(name), parts);
  }
  return parts;
}

Renames all_renames(const FileLayout& layout, const std::vector<FusedPart>& parts, const WeightSource& file) {
  Renames renames = layout.renames;
  for (const FusedPart& part : parts) renames.emplace_back(part.part, part.whole);
  if (layout.text_part && file.contains("model.language_model.embed_tokens.weight")) {
    renames.emplace_back("model", "model.language_model");
  } else if (layout.text_part && file.contains("language_model.model.embed_tokens.weight")) {
    renames.insert(renames.end(), {{"model", "language_model.model"}, {"lm_head", "language_model.lm_head"}});
  }
  return renames;
}

// The file's name of what layers call `name`.
std::string spelled(const Renames& renames, std::string_view name) {
  std::string file_name;
  while (!name.empty()) {
    const auto rename = std::ranges::find_if(renames, [&](const auto& candidate) {
      const std::size_t size = candidate.first.size();
      return name.starts_with(candidate.first) && (size == name.size() || name[size] == '.');
    });
    const bool found = rename != renames.end();
    const std::size_t size = found ? rename->first.size() : std::min(name.find('.'), name.size());
    file_name += found ? std::string_view(rename->second) : name.substr(0, size);
    name.remove_prefix(size);
    if (name.empty()) break;
    file_name += '.';
    name.remove_prefix(1);
  }
  return file_name;
}

// "PARENT.experts.3.up_proj" where a layer's experts are one tensor: where they are.
struct FusedExpert {
  std::string tensor;  // "PARENT.experts.gate_up_proj"
  std::int64_t index = 0;
  int parts = 1;  // whose columns lie by turns
  int part = 0;
};

class FileWeights final : public WeightSource {
 public:
  FileWeights(const FileLayout& layout, const DecoderConfig& config, std::vector<FusedPart> parts,
              WeightSource& file)
      : file_(file),
        renames_(all_renames(layout, parts, file)),
        transposed_(layout.transposed),
        parts_(std::move(parts)),
        head_dim_(config.attention.head_dim),
        experts_(layout.experts),
        num_experts_(config.experts ? config.experts->num_experts : 0) {
    if (layout.neighbour_rotary && config.attention.rotary)
      reordered_dim_ = rotary_dim(*config.attention.rotary, head_dim_);
  }

  bool contains(std::string_view name) const override { return file_.contains(spelled(renames_, name)); }
  bool has_values() const override { return file_.has_values(); }
  std::vector<std::string> unclaimed() const override { return file_.unclaimed(); }
  std::vector<float> take_vector(std::string_view name, std::int64_t n) override {
    return file_.take_vector(spelled(renames_, name), n);
  }

  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const std::string_view prefix = name.substr(0, name.rfind('.'));  // a bias belongs to a projection
    if (const auto expert = find_expert(prefix, "_bias")) {
      const WeightTensorPtr all =
          take_renamed(expert->tensor + "_bias", {num_experts_, expert->parts * shape[0]});
      return pick_cols(slice_rows(all, expert->index, 1), by_turns(shape[0], expert->parts, expert->part));
    }
    const FusedPart* part = find(prefix);
    if (part == nullptr) return reordered(name, take_renamed(name, shape), shape[0]);
    return reordered(name, cut(take_renamed(name, {part->whole_size}), *part), shape[0]);
  }

  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    if (const auto expert = find_expert(prefix, "")) return take_expert(*expert, rows, cols);
    const FusedPart* part = find(prefix);
    const std::int64_t size = part == nullptr ? rows : part->whole_size;
    const std::string file_prefix = spelled(renames_, prefix);
    WeightGroup group = transposed_ && prefix.ends_with("_proj")
                            ? transpose(file_.take_linear(file_prefix, cols, size))
                            : file_.take_linear(file_prefix, size, cols);
    if (part != nullptr) group = cut(std::move(group), *part);
    return reordered(prefix, std::move(group), rows);
  }

 private:
  WeightTensorPtr take_renamed(std::string_view name, const std::vector<std::int64_t>& shape) {
    return file_.take(spelled(renames_, name), shape);
  }
  // Where the file has its tensor, with this ending.
  std::optional<FusedExpert> find_expert(std::string_view prefix, const char* ending) const {
    constexpr std::string_view kExperts = ".experts.";
    const std::size_t begin = prefix.find(kExperts), last = prefix.rfind('.');
    if (experts_ == FileLayout::Experts::kApart || begin == prefix.npos) return {};
    FusedExpert expert;
    const char* const number = prefix.data() + begin + kExperts.size();
    std::from_chars(number, prefix.data() + last, expert.index);
    const std::string_view projection = prefix.substr(last + 1);
    if (projection != "down_proj") expert.parts = 2;
    if (projection == "up_proj") expert.part = 1;
    expert.tensor = std::string(prefix.substr(0, begin + kExperts.size())) +
                    (expert.parts == 2 ? "gate_up_proj" : "down_proj");
    return contains(expert.tensor + ending) ? std::optional(expert) : std::nullopt;
  }
  WeightGroup take_expert(const FusedExpert& expert, std::int64_t rows, std::int64_t cols) {
    const std::int64_t all_rows = expert.parts * rows;
    if (experts_ == FileLayout::Experts::kByRows)
      return WeightGroup::plain(slice_rows(take_renamed(expert.tensor, {num_experts_ * all_rows, cols}),
                                           expert.index * all_rows + expert.part * rows, rows));
    const WeightTensorPtr all = take_renamed(expert.tensor, {num_experts_, cols, all_rows});
    return WeightGroup::plain(
        pick_rows(transpose(pick_matrix(all, expert.index)), by_turns(rows, expert.parts, expert.part)));
  }
  const FusedPart* find(std::string_view prefix) const {
    const std::string_view last = prefix.substr(prefix.rfind('.') + 1);
    const auto found = std::ranges::find(parts_, last, &FusedPart::part);
    return found == parts_.end() ? nullptr : &*found;
  }

  // A tensor or a group of them.
  template <typename Weights>
  static Weights cut(Weights whole, const FusedPart& part) {
    std::vector<std::int64_t> rows;
    const std::int64_t each = part.size / part.num_heads;
    for (std::int64_t i = 0; i < part.size; ++i)
      rows.push_back((i / each * part.whole_size + part.begin) / part.num_heads + i % each);
    return pick_rows(std::move(whole), std::move(rows));
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

  WeightSource& file_;
  Renames renames_;
  bool transposed_;
  std::vector<FusedPart> parts_;
  int head_dim_;
  FileLayout::Experts experts_;
  std::int64_t num_experts_;
  int reordered_dim_ = 0;  // of a head's dimensions, those that rotate with their neighbours
};

}  // namespace

std::unique_ptr<WeightSource> read_layout(const FileLayout& layout, const DecoderConfig& config,
                                          WeightSource& file) {
  return std::make_unique<FileWeights>(layout, config, fused_parts(layout, config, file), file);
}

}  // namespace quire
