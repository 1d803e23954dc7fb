// Names of GGUF's tensors: llama.cpp, gguf-py/gguf/tensor_mapping.py.
#include "checkpoint/gguf/gguf_weights.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::pair<std::string_view, std::string_view> kOuterNames[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"model.embedding_norm", "token_embd_norm"},
    {"model.embed_tokens_per_layer", "per_layer_token_embd"},
    {"model.per_layer_model_projection", "per_layer_model_proj"},
    {"model.per_layer_projection_norm", "per_layer_proj_norm"},
    {"lm_head", "output"}};

// Of a layer: whole names, or what stands before the last dot. Of two that stand for one name the first that
// the file has.
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
    {"feed_forward.gate", "ffn_gate_inp"},
    {"conv.in_proj", "shortconv.in_proj"},
    {"conv.out_proj", "shortconv.out_proj"},
    {"conv.conv", "shortconv.conv"},
    {"linear_attn.in_proj_qkvz", "ssm_in"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"router.proj", "ffn_gate_inp"},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"feed_forward.expert_bias", "exp_probs_b.bias"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
};

// Of two tensors that stand for one name the first that the file has.
struct ExpertTensor {
  std::string_view module, tensor;
  int parts = 1, part = 0;  // of an expert's rows
};
constexpr ExpertTensor kExpertTensors[] = {
    {"gate_proj", "ffn_gate_exps"}, {"gate_proj", "ffn_gate_up_exps", 2, 0},
    {"up_proj", "ffn_up_exps"},     {"up_proj", "ffn_gate_up_exps", 2, 1},
    {"down_proj", "ffn_down_exps"}, {"w1", "ffn_gate_exps"},
    {"w3", "ffn_up_exps"},          {"w2", "ffn_down_exps"}};
constexpr std::string_view kExpertPrefixes[] = {"mlp.experts.", "block_sparse_moe.experts.",
                                                "feed_forward.experts.", "experts."};

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

// Of each of a tensor's values what `map` makes of it, in f32.
template <typename Map>
WeightTensorPtr mapped(const WeightTensorPtr& tensor, const Map& map) {
  return make_weight_tensor(tensor->name(), DType::kF32, tensor->shape(),
                            [=](std::int64_t row, const Tensor& dst) {
                              auto values = read_values<float>(*tensor, row, dst.dim(0));
                              for (float& value : values) value = map(value);
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
  std::string_view module = name, suffix;
  const auto cut_suffix = [&] {
    const std::size_t dot = std::min(module.rfind('.'), module.size());
    suffix = module.substr(dot);
    module = module.substr(0, dot);
  };
  const int layer = take_prefix(module, "model.layers.") ? take_number(module) : -1;
  if (layer < 0) {
    module = name;
    cut_suffix();
    for (const auto& [from, to] : kOuterNames)
      if (module == from)
        return {.name = std::string(to) + std::string(suffix), .is_norm = from == "model.norm"};
    return {std::string(name)};
  }
  const bool is_tiled = layout_.key_heads != layout_.value_heads && module.starts_with("linear_attn");
  const std::string_view whole = module;
  cut_suffix();
  const auto spelled = [&](std::string_view to) { return format_text("blk.{}.{}{}", layer, to, suffix); };
  Stored stored{std::string(name)};  // for what is not known
  const auto is_cut_off = [&](std::string_view prefix) { return take_prefix(module, prefix); };
  if (std::ranges::any_of(kExpertPrefixes, is_cut_off)) {  // leaves "3.gate_proj"
    const int expert = take_number(module);
    for (const ExpertTensor& known : kExpertTensors) {
      if (module != known.module || expert < 0) continue;
      stored = {spelled(known.tensor), expert, known.parts, known.part};
      if (model_->find(stored.name) != nullptr) break;
    }
    return stored;
  }
  for (const auto& [from, to] : kLayerNames) {
    if (from != module && from != whole) continue;
    if (from == whole) suffix = {};
    const int heads = to == "attn_q"   ? layout_.permuted_heads
                      : to == "attn_k" ? layout_.permuted_kv_heads
                                       : 0;
    const bool of_heads = to == "ssm_norm";  // it is of one head, and its weights are as they were
    stored = {.name = spelled(to),
              .heads = heads,
              .is_tiled = is_tiled && !of_heads,
              .is_norm = to.ends_with("norm") && !of_heads,
              .is_decay = to == "ssm_a"};
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
    if (shape.size() > 1) shape.front() *= stored.parts;
    if (tensor->shape.size() != shape.size() + 1 || stored.expert >= tensor->shape.front())
      fail("{}: tensor {} has the shape [{}], and expert {} is asked for", model_->path(),
           in_quotes(stored.name), join_text(tensor->shape, ", "), stored.expert);
    shape.insert(shape.begin(), tensor->shape.front());
  }
  if (without_ones(tensor->shape) != without_ones(shape)) {
    fail("{}: tensor {} has the shape [{}], the configuration asks for [{}]", model_->path(),
         in_quotes(stored.name), join_text(tensor->shape, ", "), join_text(shape, ", "));
  }
  claimed_.insert(stored.name);
  WeightGroup group = open_gguf_tensor(stored.name, *tensor);
  if (stored.expert < 0) return group;
  return slice_rows(std::move(group), (stored.expert * stored.parts + stored.part) * rows, rows);
}

std::vector<std::int64_t> GgufWeights::order_of(const Stored& stored, std::int64_t n) const {
  if (stored.heads > 0) {
    if (n % (2 * stored.heads) != 0)
      fail("{}: tensor {} has {} rows, which are no pairs in each of {} heads", model_->path(),
           in_quotes(stored.name), n, stored.heads);
    return rows_in_order(n, stored.heads);
  }
  std::vector<std::int64_t> order;
  if (!stored.is_tiled) return order;
  const std::int64_t size = n == layout_.value_heads ? 1 : layout_.value_dim;
  const std::int64_t values = n - layout_.value_heads * size;  // behind queries and keys
  const std::int64_t of_key = layout_.value_heads / layout_.key_heads;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t head = (i - values) / size;
    const std::int64_t stored_head = head % of_key * layout_.key_heads + head / of_key;
    order.push_back(i < values ? i : values + stored_head * size + (i - values) % size);
  }
  return order;
}

WeightTensorPtr GgufWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const Stored stored = find(name);
  WeightGroup group = take_stored(stored, shape);
  if (shape.size() < 2 && !group.format.is_plain())
    fail("{}: tensor {} is a vector and quantised, which is not supported", model_->path(),
         in_quotes(stored.name));
  WeightTensorPtr tensor = dequantized(std::move(group));
  std::vector<std::int64_t> order = order_of(stored, shape.front());
  if (!order.empty()) tensor = pick_rows(std::move(tensor), std::move(order));
  if (stored.is_norm && layout_.norm_offset != 0)
    tensor = mapped(tensor, [offset = layout_.norm_offset](float value) { return value - offset; });
  if (stored.is_decay)
    tensor = mapped(tensor, [where = stored.name](float value) {
      if (!(value < 0)) fail("tensor {}: a rate of decay is {}, not below 0", in_quotes(where), value);
      return std::log(-value);
    });
  return tensor;
}

WeightGroup GgufWeights::take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) {
  const Stored stored = find(std::string(prefix) + ".weight");
  WeightGroup group = take_stored(stored, {rows, cols});
  const bool by_cols = stored.is_tiled && prefix.ends_with("out_proj");
  const std::vector<std::int64_t> order = order_of(stored, by_cols ? cols : rows);
  if (order.empty()) return group;
  return by_cols ? pick_cols(std::move(group), order) : pick_rows(std::move(group), order);
}

std::vector<std::string> GgufWeights::unclaimed() const {
  const auto predicts_further = [&](std::string_view name) {
    return layout_.first_further > 0 && take_prefix(name, "blk.") &&
           take_number(name) >= layout_.first_further;
  };
  std::vector<std::string> names;
  for (const auto& item : model_->tensors())
    if (!claimed_.contains(item.first) && !layout_.read.contains(item.first))
      names.push_back(predicts_further(item.first) ? "mtp." + item.first : item.first);
  return names;
}

}  // namespace quire
