// Names of GGUF's tensors: llama.cpp, gguf-py/gguf/tensor_mapping.py.
#include "checkpoint/gguf/gguf_weights.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/gguf/gguf_blocks.h"

namespace quire {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOuterNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"model.embedding_norm", "token_embd_norm"},
    {"lm_head", "output"}};

// Of a layer. Of two that stand for one name the first that the file has.
constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"operator_norm", "attn_norm"},
    {"ffn_norm", "ffn_norm"},
    {"self_attn.out_proj", "attn_output"},
    {"self_attn.q_layernorm", "attn_q_norm"},
    {"self_attn.k_layernorm", "attn_k_norm"},
    {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w3", "ffn_up"},
    {"feed_forward.w2", "ffn_down"},
    {"conv.in_proj", "shortconv.in_proj"},
    {"conv.out_proj", "shortconv.out_proj"},
    {"conv.conv", "shortconv.conv"},
};

constexpr std::pair<std::string_view, std::string_view> kExpertNames[] = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"},
    {"w1", "ffn_gate_exps"},        {"w3", "ffn_up_exps"},      {"w2", "ffn_down_exps"},
};

// Takes "NUMBER." off the front; -1: there is none.
int take_number(std::string_view& name) {
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return -1;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()) + 1);
  return number;
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

// A tensor's values less a number, in f32.
WeightTensorPtr shifted(const WeightTensorPtr& tensor, float shift) {
  return make_weight_tensor(
      tensor->name(), DType::kF32, tensor->shape(), [=](std::int64_t row, const Tensor& dst) {
        std::vector<float> values(static_cast<std::size_t>(dst.numel()));
        tensor->read_rows(row, Tensor(values.data(), DType::kF32, {dst.dim(0), dst.dim(1)}));
        for (float& value : values) value -= shift;
        convert(DType::kF32, values.data(), dst.dtype(), dst.data(), values.size());
      });
}

// Where the file has the rows of heads, of which those of the first and the second half stand by turns.
std::vector<std::int64_t> rows_in_order(std::int64_t num_rows, std::int64_t num_heads) {
  const std::int64_t size = num_rows / num_heads, half = size / 2;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < num_rows; ++i)
    rows.push_back(i / size * size + i % size % half * 2 + i % size / half);
  return rows;
}

}  // namespace

GgufWeights::Stored GgufWeights::find(std::string_view name) const {
  const std::size_t dot = name.rfind('.');
  if (dot == name.npos) return {std::string(name)};
  const std::string_view suffix = name.substr(dot);
  std::string_view module = name.substr(0, dot);
  for (const auto& [from, to] : kOuterNames)
    if (module == from) return {std::string(to) + std::string(suffix), -1, 0, from == "model.norm"};
  if (!take_prefix(module, "model.layers.")) return {std::string(name)};
  const int layer = take_number(module);
  if (layer < 0) return {std::string(name)};
  const auto spelled = [&](std::string_view to) { return format_text("blk.{}.{}{}", layer, to, suffix); };
  if (take_prefix(module, "mlp.experts.") || take_prefix(module, "block_sparse_moe.experts.")) {
    const int expert = take_number(module);
    for (const auto& [from, to] : kExpertNames)
      if (module == from && expert >= 0) return {spelled(to), expert};
    return {std::string(name)};
  }
  if (module == "self_attn" && suffix == ".sinks") return {format_text("blk.{}.attn_sinks.weight", layer)};
  Stored stored{std::string(name)};
  for (const auto& [from, to] : kLayerNames) {
    if (module != from) continue;
    const int heads = to == "attn_q"   ? layout_.permuted_heads
                      : to == "attn_k" ? layout_.permuted_kv_heads
                                       : 0;
    stored = {spelled(to), -1, heads, to.ends_with("norm")};
    if (model_->find(stored.name) != nullptr) break;
  }
  return stored;
}

bool GgufWeights::contains(std::string_view name) const { return model_->find(find(name).name) != nullptr; }

// shape: as a model has it; of an expert, of it alone.
WeightGroup GgufWeights::take_stored(const Stored& stored, std::vector<std::int64_t> shape) {
  const GgufTensor* tensor = model_->find(stored.name);
  if (tensor == nullptr) fail("{}: there is no tensor {}", model_->path(), in_quotes(stored.name));
  const std::int64_t rows = shape.size() < 2 ? 1 : shape.front();
  if (stored.expert >= 0) {
    if (tensor->shape.size() != shape.size() + 1 || stored.expert >= tensor->shape.front())
      fail("{}: tensor {} has the shape [{}], and expert {} is asked for", model_->path(),
           in_quotes(stored.name), join_text(tensor->shape, ", "), stored.expert);
    shape.insert(shape.begin(), tensor->shape.front());
  }
  if (tensor->shape != shape) {
    fail("{}: tensor {} has the shape [{}], the configuration asks for [{}]", model_->path(),
         in_quotes(stored.name), join_text(tensor->shape, ", "), join_text(shape, ", "));
  }
  claimed_.insert(stored.name);
  WeightGroup group = open_gguf_tensor(stored.name, *tensor);
  return stored.expert < 0 ? group : slice_rows(std::move(group), stored.expert * rows, rows);
}

WeightTensorPtr GgufWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const Stored stored = find(name);
  WeightGroup group = take_stored(stored, shape);
  if (shape.size() < 2 && !group.format.is_plain())
    fail("{}: tensor {} is a vector and quantised, which is not supported", model_->path(),
         in_quotes(stored.name));
  WeightTensorPtr tensor = dequantized(std::move(group));
  if (stored.heads > 0) tensor = pick_rows(std::move(tensor), rows_in_order(shape.front(), stored.heads));
  if (stored.is_norm && layout_.norm_offset != 0) tensor = shifted(tensor, layout_.norm_offset);
  return tensor;
}

WeightGroup GgufWeights::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  const Stored stored = find(std::string(prefix) + ".weight");
  WeightGroup group = take_stored(stored, {rows, cols});
  return stored.heads == 0 ? group : pick_rows(std::move(group), rows_in_order(rows, stored.heads));
}

std::vector<std::string> GgufWeights::unclaimed() const {
  std::vector<std::string> names;
  for (const auto& item : model_->tensors())
    if (!claimed_.contains(item.first) && !layout_.read.contains(item.first)) names.push_back(item.first);
  return names;
}

}  // namespace quire
