// Gemma 4, its text part: as Gemma 3 with norms of plain weights, a scale of the residual stream behind each
// layer, heads of other sizes and numbers in layers without a window, whose values may be what their keys are
// before norm and rotation, and a norm of the values. The small models add an embedding of each token for
// each layer, and their last layers attend to what earlier ones keep. The 26B-A4B has routed experts beside
// the MLP. Architecture and defaults: transformers, configuration_gemma4.py and modeling_gemma4.py.
#include <array>
#include <cmath>

#include "models/decoder.h"
#include "ops/ops.h"

namespace quire {
namespace {

// Keys that DecoderConfig has no place for.
struct GemmaExtras {
  int per_layer_width;  // of a layer's embeddings; 0: there are none
  int per_layer_vocab;
  int first_shared;  // from this layer on none keeps keys and values
  bool wide_shared;  // MLPs from there on have twice the width

  GemmaExtras(const ModelConfig& config, int num_layers)
      : per_layer_width(config.is_null("hidden_size_per_layer_input")
                            ? 0
                            : config.get_int("hidden_size_per_layer_input", 256, {.min = 0})),
        per_layer_vocab(config.get_int("vocab_size_per_layer_input", 262144, kVocabSize)),
        first_shared(num_layers -
                     config.get_int("num_kv_shared_layers", 0, {.min = 0, .max = num_layers - 1})),
        wide_shared(config.get_bool("use_double_wide_mlp", false)) {}
};

LayerAttention full_attention(const ModelConfig& config, const DecoderConfig& decoder) {
  LayerAttention full = decoder.attention;
  full.head_dim = config.get_int("global_head_dim", 512, kHeadSize);
  full.value_is_key = config.get_bool("attention_k_eq_v", false);
  if (full.value_is_key)
    full.num_kv_heads = config.get_int("num_global_key_value_heads", full.num_kv_heads, kHeadCount);
  // From version 5.15 on transformers says this of each of these layers, by its number, instead.
  const auto layers = config.find_object("per_layer_config");
  if (const auto first =
          layers && !layers->empty() ? layers->find_object(layers->keys().front()) : std::nullopt) {
    full.head_dim = first->get_int("head_dim", full.head_dim, kHeadSize);
    full.num_kv_heads = first->get_int("num_key_value_heads", full.num_kv_heads, kHeadCount);
  }
  if (full.num_heads % full.num_kv_heads != 0)
    config.fail_at("num_attention_heads", format_text("is {}, no multiple of num_global_key_value_heads {}",
                                                      full.num_heads, full.num_kv_heads));
  if (!config.has_rotary_of("full_attention"))
    full.rotary = {.type = "proportional", .theta = 1000000, .partial_rotary_factor = 0.25};
  return full;
}

// Layers from `first` on attend to what the last one of their kind before them keeps.
void share_states(const ModelConfig& config, int first, std::vector<LayerAttention>& layers) {
  for (auto layer = layers.begin() + first; layer != layers.end(); ++layer) {
    int source = first - 1;
    while (source >= 0 && layers[source].window != layer->window) --source;
    if (source < 0)
      config.fail_at("num_kv_shared_layers", "leaves no layer of a kind that keeps keys and values");
    layer->shared_state = source;  // the layers before declare one each
  }
}

DecoderConfig read_gemma4(const ModelConfig& config) {
  if (config.get_string("use_bidirectional_attention", "vision") != "vision")
    config.fail_at("use_bidirectional_attention", "is neither \"vision\" nor null");
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 262144,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .num_layers = 30,
                                                   .num_heads = 8,
                                                   .num_kv_heads = 4,
                                                   .max_positions = 131072,
                                                   .head_dim = 256,
                                                   .rope_theta = 1000000,
                                                   .tie_word_embeddings = true,
                                                   .activation = "gelu_pytorch_tanh",
                                                   .rotary_of = "full_attention"});
  decoder.embedding_scale = std::sqrt(static_cast<float>(decoder.hidden_size));
  decoder.logits_cap = config.get_float("final_logit_softcapping", 0, kNonNegative);
  decoder.attention.scale = 1;
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.value_norm = true;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  LayerAttention local = with_window(decoder, config.get_int("sliding_window", 512, kPositions));
  local.rotary = read_local_rotary(config, 10000);
  const LayerAttention full = full_attention(config, decoder);
  set_layers(config, decoder, all_but_every(config.get_int("sliding_window_pattern", 6, kLayerCount)), local,
             full);
  decoder.layers.back() = full;
  share_states(config, GemmaExtras(config, decoder.num_layers).first_shared, decoder.layers);
  if (config.get_bool("enable_moe_block", false)) {
    const int num_experts = config.require_int("num_experts", kExpertCount);
    decoder.mlp.wide_result = true;
    decoder.experts = {.intermediate_size = config.require_int("moe_intermediate_size", kWidth),
                       .num_experts = num_experts,
                       .top_k = config.require_int("top_k_experts", {.max = num_experts}),
                       .scaled = true,
                       .activation = decoder.mlp.activation};
  }
  return decoder;
}

// What the layers get of their token beside the residual stream: a row of a table of its own, and a
// projection of the embedding, normed for each layer. Every rank has it as a whole.
class PerLayerEmbedding {
 public:
  PerLayerEmbedding(const LoadContext& context, const DecoderConfig& config, const GemmaExtras& extras)
      : backend_(context.backend),
        width_(extras.per_layer_width),
        table_(context, "model.embed_tokens_per_layer", extras.per_layer_vocab, config.num_layers * width_,
               std::sqrt(static_cast<float>(width_) / 2)),
        projection_(context,
                    std::array{context.take_linear("model.per_layer_model_projection",
                                                   config.num_layers * width_, config.hidden_size)},
                    {}) {
    Workspace& workspace = context.workspace;
    const WeightTensorPtr weight = context.weights.take("model.per_layer_projection_norm.weight", {width_});
    norm_ = {workspace.load(*weight, std::sqrt(0.5F)), {}, config.norm.eps};
    norm_.eps *= static_cast<float>(config.hidden_size);  // of the projection / sqrt(hidden_size)
    sum_ = workspace.activation("per_layer_sum", DType::kF32, config.num_layers * width_);
    out_ = workspace.activation("per_layer_inputs", context.dtype, config.num_layers * width_);
  }

  // embedding f32 [tokens, hidden_size]; x as it is written; the result [tokens, layers * width].
  Tensor forward(const Tensor& x, const Tensor& embedding, const Tensor& token_ids) const {
    const std::int64_t tokens = x.dim(0);
    const Tensor out = out_.rows(0, tokens), sum = sum_.rows(0, tokens);
    table_.forward(sum, token_ids);
    ops::norm(backend_, x, embedding, {});  // another type
    projection_.forward(out, x);
    const Tensor by_layer(out.data(), out.dtype(), {out.numel() / width_, width_}, out.device());
    ops::norm(backend_, by_layer, by_layer, norm_);
    ops::add_norm(backend_, out, sum, out, 1, {});
    return out;
  }

 private:
  Backend& backend_;
  std::int64_t width_;
  VocabParallelEmbedding table_;
  Product projection_;
  NormParams norm_;
  Tensor sum_, out_;  // activations
};

// The third part of a block: the residual stream gates the layer's input. PREFIX is "model.layers.3".
class PerLayerInput {
 public:
  PerLayerInput(const LoadContext& context, const std::string& prefix, const DecoderConfig& config, int width)
      : backend_(context.backend),
        activation_(config.mlp.activation),
        shard_(even_shard(prefix + ".per_layer_input_gate", width, context.comm)),
        before_(context, "", config.hidden_size, {.kind = NormKind::kNone}),
        gate_(context, {shard_}, config.hidden_size),
        projection_(context, prefix + ".per_layer_projection", config.hidden_size, width),
        after_(context, prefix + ".post_per_layer_input_norm", config.hidden_size, config.norm),
        gated_(context.workspace.activation("per_layer_gated", context.dtype, 2 * shard_.count)),
        activated_(context.workspace.activation("per_layer_activated", context.dtype, shard_.count)),
        out_(context.workspace.activation("block_out", context.dtype, config.hidden_size)) {}

  // input [tokens, width]: the layer's. normed [tokens, hidden_size] is written.
  Update forward(const Tensor& normed, const Tensor& residual, const Update& update,
                 const Tensor& input) const {
    const std::int64_t tokens = input.dim(0);
    const Tensor gated = gated_.rows(0, tokens), activated = activated_.rows(0, tokens);
    const Tensor out = out_.rows(0, tokens);
    before_.forward(normed, residual, update);
    gate_.forward(gated.columns(0, shard_.count), normed);
    ops::norm(backend_, gated.columns(shard_.count, shard_.count), input.columns(shard_.begin, shard_.count),
              {});
    ops::activate_gate(backend_, activated, gated, activation_);
    projection_.forward(out, activated);
    return after_.forward_sum(out);
  }

 private:
  Backend& backend_;
  Activation activation_;
  ColumnShard shard_;
  Norm before_;
  ColumnParallelLinear gate_;
  RowParallelLinear projection_;
  Norm after_;
  Tensor gated_, activated_, out_;  // activations
};

// Routed experts beside the MLP, with norms of their own. PREFIX is "model.layers.3".
class SideExperts {
 public:
  SideExperts(const LoadContext& context, const std::string& prefix, const DecoderConfig& config)
      : after_mlp_(context, prefix + ".post_feedforward_layernorm_1", config.hidden_size, config.norm),
        before_(context, prefix + ".pre_feedforward_layernorm_2", config.hidden_size, config.norm),
        after_(context, prefix + ".post_feedforward_layernorm_2", config.hidden_size, config.norm),
        before_router_(
            context, prefix + ".moe.gate.norm", config.hidden_size,
            {.eps = config.norm.eps, .output_scale = 1 / std::sqrt(static_cast<float>(config.hidden_size))}),
        experts_(context, prefix + ".moe", *config.experts),
        routed_by_(context.workspace.activation("routed_by", context.dtype, config.hidden_size)),
        out_(context.workspace.activation("mlp_and_experts", context.dtype, config.hidden_size)) {}

  // dense f32 [tokens, hidden_size]: of the MLP; normed is written; `after` norms the sum of both.
  Update forward(const Tensor& dense, const Tensor& normed, const Tensor& residual, const Norm& after) const {
    const Tensor routed_by = routed_by_.rows(0, dense.dim(0)), out = out_.rows(0, dense.dim(0));
    const Update sum = after_mlp_.forward_sum(dense);
    before_router_.forward(routed_by, residual);
    before_.forward(normed, residual);
    after.forward(out, sum.values, after_.forward_sum(experts_.forward(normed, routed_by)));
    return {out, true};
  }

 private:
  Norm after_mlp_, before_, after_, before_router_;
  Experts experts_;
  Tensor routed_by_, out_;  // activations
};

// A layer. scale_before: of the residual stream, behind the layer before. width: of its own input; 0: none.
class GemmaBlock {
 public:
  GemmaBlock(const LoadContext& context, const std::string& prefix, const DecoderConfig& config,
             const AttentionOptions& attention, float scale_before, int width)
      : before_attention_(context, prefix + ".input_layernorm", config.hidden_size,
                          {.eps = config.norm.eps, .sum_scale = scale_before}),
        attention_(context, prefix + ".self_attn", attention),
        after_attention_(context, prefix + ".post_attention_layernorm", config.hidden_size, config.norm),
        before_mlp_(context, prefix + ".pre_feedforward_layernorm", config.hidden_size, config.norm),
        mlp_(context, prefix + ".mlp", config.mlp),
        after_mlp_(context, prefix + ".post_feedforward_layernorm", config.hidden_size, config.norm) {
    if (config.experts) experts_.emplace(context, prefix, config);
    if (width > 0) per_layer_.emplace(context, prefix, config, width);
  }

  // Adds the update of the layer before to the residual stream and gives its own. normed is written. input:
  // PerLayerInput's.
  Update forward(const Step& step, const Tensor& normed, const Tensor& residual, const Update& before,
                 const Tensor& input) const {
    before_attention_.forward(normed, residual, before);
    Update update = after_attention_.forward_sum(attention_.forward(normed, step));
    before_mlp_.forward(normed, residual, update);
    const Tensor dense = mlp_.forward(normed);
    update =
        experts_ ? experts_->forward(dense, normed, residual, after_mlp_) : after_mlp_.forward_sum(dense);
    return per_layer_ ? per_layer_->forward(normed, residual, update, input) : update;
  }

 private:
  Norm before_attention_;
  Attention attention_;
  Norm after_attention_, before_mlp_;
  Mlp mlp_;
  Norm after_mlp_;
  std::optional<SideExperts> experts_;
  std::optional<PerLayerInput> per_layer_;
};

class Gemma4Model final : public Model {
 public:
  Gemma4Model(const DecoderConfig& config, const GemmaExtras& extras, const LoadContext& context)
      : width_(extras.per_layer_width),
        per_layer_(width_ > 0 ? std::optional<PerLayerEmbedding>(std::in_place, context, config, extras)
                              : std::nullopt),
        embedding_(context, "model.embed_tokens", config.vocab_size, config.hidden_size,
                   config.embedding_scale),
        head_(make_head(context, config, embedding_)),
        residual_(context.workspace.activation("residual", DType::kF32, config.hidden_size)),
        normed_(context.workspace.activation("normed", context.dtype, config.hidden_size)) {
    const std::vector<LayerAttention> attention = attention_of_layers(context, config);
    DecoderConfig layer = config;
    float scale = 1;
    layers_.reserve(attention.size());
    for (int i = 0; i < config.num_layers; ++i) {
      const std::string prefix = "model.layers." + std::to_string(i);
      if (i == extras.first_shared && extras.wide_shared) layer.mlp.intermediate_size *= 2;
      layers_.emplace_back(context, prefix, layer, attention[i], scale, width_);
      scale = context.weights.take_vector(prefix + ".layer_scalar", 1).front();
      if (context.on_layer) context.on_layer(layers_.size(), attention.size());
    }
    final_norm_.emplace(context, "model.norm", config.hidden_size,
                        NormOptions{.eps = config.norm.eps, .sum_scale = scale});
  }

  Tensor forward(const Step& step) override {
    const std::int64_t tokens = step.token_ids.dim(0);
    const Tensor residual = residual_.rows(0, tokens), normed = normed_.rows(0, tokens);
    embedding_.forward(residual, step.token_ids);
    const Tensor inputs = per_layer_ ? per_layer_->forward(normed, residual, step.token_ids) : Tensor();
    Update update;
    std::int64_t column = 0;
    for (const GemmaBlock& layer : layers_) {
      const Tensor input = per_layer_ ? inputs.columns(column, width_) : Tensor();
      update = layer.forward(step, normed, residual, update, input);
      column += width_;
    }
    final_norm_->forward(normed, residual, update);
    return normed;
  }
  const LmHead& head() const override { return head_; }

 private:
  int width_;
  std::optional<PerLayerEmbedding> per_layer_;
  VocabParallelEmbedding embedding_;
  LmHead head_;
  std::vector<GemmaBlock> layers_;
  std::optional<Norm> final_norm_;
  Tensor residual_, normed_;  // activations
};

std::unique_ptr<Model> make_gemma4(const ModelConfig& model, const DecoderConfig& config,
                                   const LoadContext& context) {
  return std::make_unique<Gemma4Model>(config, GemmaExtras(model, config.num_layers), context);
}

// Where layers share others' keys and values, files may have unused projections.
const FileLayout kGemma4Layout = {
    .renames = {{"moe.gate.norm.weight", "router.scale"},
                {"moe.gate.scales", "router.per_expert_scale"},
                {"moe.gate", "router.proj"},
                {"moe.experts", "experts"}},
    .experts = FileLayout::Experts::kByRows,
    .text_part = true,
    .unneeded = {".self_attn.k_proj.weight", ".self_attn.v_proj.weight", ".self_attn.k_norm.weight",
                 ".self_attn.v_norm.weight", ".attn_k.weight", ".attn_v.weight", ".attn_k_norm.weight"}};
const DecoderRegistration gemma4({"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration",
                                  "Gemma4UnifiedForConditionalGeneration"},
                                 read_gemma4, kGemma4Layout, make_gemma4);

}  // namespace
}  // namespace quire
