#include "models/file_layouts.h"

namespace quire {
namespace {

bool rotates(std::string_view name) { return qkv_part(name) == 0 || qkv_part(name) == 1; }

// A name without its last component, "weight" or "bias".
std::string_view prefix_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

RenamedWeights::Renames with_wholes(RenamedWeights::Renames renames, const std::vector<FusedPart>& parts) {
  for (const FusedPart& part : parts) renames.emplace_back(part.part, part.whole);
  return renames;
}

}  // namespace

int qkv_part(std::string_view name) {
  constexpr std::string_view kAttention = ".self_attn.";
  const std::size_t place = name.find(kAttention);
  return place == name.npos ? -1
                            : static_cast<int>(std::string_view("qkv").find(name[place + kAttention.size()]));
}

std::unique_ptr<WeightSource> text_part(const DecoderConfig&, WeightSource& weights) {
  RenamedWeights::Renames renames;
  if (weights.contains("model.language_model.embed_tokens.weight")) {
    renames = {{"model", "model.language_model"}};
  } else if (weights.contains("language_model.model.embed_tokens.weight")) {
    renames = {{"model", "language_model.model"}, {"lm_head", "language_model.lm_head"}};
  }
  return std::make_unique<RenamedWeights>(weights, std::move(renames));
}

FusedWeights::FusedWeights(WeightSource& inner, Renames renames, std::vector<FusedPart> parts)
    : RenamedWeights(inner, with_wholes(std::move(renames), parts)), parts_(std::move(parts)) {}

const FusedPart* FusedWeights::find(std::string_view prefix) const {
  const std::string_view last = prefix.substr(prefix.rfind('.') + 1);
  for (const FusedPart& part : parts_) {
    if (part.part == last) return &part;
  }
  return nullptr;
}

WeightTensorPtr FusedWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const FusedPart* part = find(prefix_of(name));
  if (part == nullptr) return RenamedWeights::take(name, shape);
  return slice_cols(RenamedWeights::take(name, {part->whole_size}), part->begin, part->size);
}

WeightGroup FusedWeights::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  const FusedPart* part = find(prefix);
  if (part == nullptr) return RenamedWeights::take_linear(prefix, rows, cols);
  return slice_rows(RenamedWeights::take_linear(prefix, part->whole_size, cols), part->begin, part->size);
}

WeightTensorPtr NeighbourRotary::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  WeightTensorPtr tensor = RenamedWeights::take(name, shape);
  return rotates(name) ? pick_rows(std::move(tensor), order(shape[0])) : tensor;
}

WeightGroup NeighbourRotary::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  WeightGroup group = RenamedWeights::take_linear(prefix, rows, cols);
  return rotates(prefix) ? pick_rows(std::move(group), order(rows)) : group;
}

std::vector<std::int64_t> NeighbourRotary::order(std::int64_t rows) const {
  const int half = rotary_dim_ / 2;
  std::vector<std::int64_t> order;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t i = row % head_dim_;
    const std::int64_t from = i < half ? 2 * i : i < rotary_dim_ ? 2 * (i - half) + 1 : i;
    order.push_back(row - i + from);
  }
  return order;
}

}  // namespace quire
