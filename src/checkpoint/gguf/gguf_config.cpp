// Keys of GGUF files (llama.cpp, gguf-py/gguf/constants.py, convert_hf_to_gguf.py and src/llama-model.cpp),
// and what they mean in the configurations of transformers.
#include "checkpoint/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <ranges>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/gguf/gguf_weights.h"

namespace quire {
namespace {

constexpr std::string_view kFactors = "rope_freqs.weight";
constexpr std::string_view kShortFactors = "rope_factors_short.weight";
constexpr std::string_view kLongFactors = "rope_factors_long.weight";

enum Trait : unsigned {
  kBiases = 1,  // perhaps, as its tensors say
  kPermutedHeads = 2,
  kNoWindow = 4,  // it is refused
  kMixture = 8,   // perhaps
  kByLayer = 16,  // its numbers of heads and its sizes may differ by layer
};

// Makes the configuration of one file.
class ConfigBuilder {
 public:
  explicit ConfigBuilder(const GgufModel& model)
      : model_(model), architecture_(keys().require_string("general.architecture")) {}

  GgufConfig build() {
    const Architecture& known = find_architecture();
    if ((known.traits & kMixture) == 0 && is_mixture())
      fail_at("expert_count", "is not 0: experts are not supported for this architecture");
    read_common((known.traits & kByLayer) != 0);
    set_family(known.family);
    if ((known.traits & kBiases) != 0) read_biases();
    if ((known.traits & kPermutedHeads) != 0) permute_heads();
    if ((known.traits & kNoWindow) != 0) refuse_window();
    if (known.read != nullptr) (this->*known.read)();
    return {ModelConfig::from_json(json_.dump(), model_.path()), std::move(layout_)};
  }

 private:
  struct Architecture {
    std::string_view name, family;
    unsigned traits = 0;
    void (ConfigBuilder::*read)() = nullptr;  // what it has besides
  };
  const Architecture& find_architecture() const;

  const GgufKeys& keys() const { return model_.keys(); }
  std::string key(std::string_view name) const { return architecture_ + "." + std::string(name); }
  bool has_key(std::string_view name) const { return keys().contains(key(name)); }
  [[noreturn]] void fail_at(std::string_view name, std::string_view problem) const {
    keys().fail_at(key(name), problem);
  }
  std::optional<int> find_int(std::string_view name, IntRange range = {}) const {
    return keys().find_int(key(name), range);
  }
  double require_double(std::string_view name) const { return keys().require_double(key(name), kPositive); }
  bool has_tensor(std::string_view name) const { return model_.find(name) != nullptr; }
  int integer(std::string_view name) const { return json_.at(std::string(name)).get<int>(); }
  bool is_mixture() const { return find_int("expert_count", {.min = 0}).value_or(0) > 0; }

  // What all families have. by_layer: all but what may differ by layer.
  void read_common(bool by_layer) {
    num_blocks_ = keys().require_int(key("block_count"), kLayerCount);
    const int num_further = keys().get_int(key("nextn_predict_layers"), 0, {0, num_blocks_ - 1});
    if (num_further > 0) layout_.first_further = num_blocks_ - num_further;
    set("num_hidden_layers", num_blocks_ - num_further);
    set("hidden_size", keys().require_int(key("embedding_length"), kWidth));
    set("max_position_embeddings", keys().require_int(key("context_length"), kPositions));
    const int num_heads = keys().require_int(key("attention.head_count"), kHeadCount);
    set("num_attention_heads", num_heads);
    if (!by_layer) {
      set("num_key_value_heads", find_int("attention.head_count_kv", kHeadCount).value_or(num_heads));
      // Where all layers have experts nothing has this size.
      if (!is_mixture() || has_key("feed_forward_length"))
        require_int("intermediate_size", "feed_forward_length", kWidth);
    }
    const int head_dim =
        find_int("attention.key_length", kHeadSize).value_or(std::max(1, integer("hidden_size") / num_heads));
    if (find_int("attention.value_length").value_or(head_dim) != head_dim)
      fail_at("attention.value_length", format_text("must be that of the keys, {}", head_dim));
    set("head_dim", head_dim);
    set("rms_norm_eps", require_double("attention.layer_norm_rms_epsilon"));
    set("vocab_size", vocab_size());
    set("tie_word_embeddings", !has_tensor("output.weight"));
    set("dtype", dtype());
    read_rotary(head_dim);
  }

  template <typename T>
  void set(std::string_view name, const T& value) {
    json_[std::string(name)] = value;
  }
  // Of a key that may be absent.
  void copy_double(std::string_view name, std::string_view from, DoubleRange range = {}) {
    if (const auto value = keys().find_double(key(from), range)) set(name, *value);
  }
  void copy_int(std::string_view name, std::string_view from, IntRange range = {}) {
    if (const auto value = find_int(from, range)) set(name, *value);
  }
  void require_int(std::string_view name, std::string_view from, IntRange range) {
    set(name, keys().require_int(key(from), range));
  }
  // q, k and v have biases; so has what follows attention; so has the MLP.
  void read_biases() {
    set("attention_bias", has_tensor("blk.0.attn_q.bias"));
    set("attention_out_bias", has_tensor("blk.0.attn_output.bias"));
    set("mlp_bias", has_tensor("blk.0.ffn_down.bias"));
  }
  void refuse_window() const {
    if (find_int("attention.sliding_window", {.min = 0}).value_or(0) > 0)
      fail_at("attention.sliding_window", "is not supported for this architecture");
  }
  std::vector<int> of_layers(std::string_view from, IntRange range) const {
    std::vector<int> numbers = keys().get_layer_ints(key(from), num_blocks_, range);
    if (numbers.empty()) fail_at(from, "is missing");
    numbers.resize(integer("num_hidden_layers"));
    return numbers;
  }
  // count, used: what the configuration calls how many there are, and how many a token takes.
  void read_experts(std::string_view count, std::string_view used) {
    require_int(count, "expert_count", kExpertCount);
    require_int(used, "expert_used_count", kExpertCount);
    require_int("moe_intermediate_size", "expert_feed_forward_length", kWidth);
  }

  // llama.cpp rotates neighbouring rows in these families.
  void permute_heads() {
    if (json_.contains("partial_rotary_factor"))
      fail_at("rope.dimension_count", "must be the size of a head");
    if (integer("head_dim") % 2 != 0) fail_at("attention.key_length", "must be even");
    layout_.permuted_heads = integer("num_attention_heads");
    layout_.permuted_kv_heads = integer("num_key_value_heads");
  }
  // from: a list that says which layers are of type `local`; the others have attention over all.
  void set_layer_types(std::string_view from, const char* local) {
    std::vector<std::string> types;
    for (const int is_local : of_layers(from, {.min = 0, .max = 1}))
      types.emplace_back(is_local != 0 ? local : "full_attention");
    set("layer_types", types);
  }

  void set_family(std::string_view family) { json_["architectures"] = Json::array({std::string(family)}); }

  std::int64_t vocab_size() const {
    const GgufTensor* tensor = model_.find("token_embd.weight");
    if (tensor == nullptr) fail("{}: there is no tensor \"token_embd.weight\"", model_.path());
    if (tensor->shape.size() != 2 || tensor->shape.front() > kVocabSize.max)
      fail("{}: tensor \"token_embd.weight\" must be a matrix of up to {} rows", model_.path(),
           kVocabSize.max);
    return tensor->shape.front();
  }

  // Activations: those of a file of one float type, or bfloat16.
  std::string_view dtype() const {
    bool has_f16 = false, has_other = false;
    for (const auto& [name, tensor] : model_.tensors()) {
      if (tensor.shape.size() < 2 || tensor.type == GgufType::kF32) continue;
      (tensor.type == GgufType::kF16 ? has_f16 : has_other) = true;
    }
    return has_other ? "bfloat16" : has_f16 ? "float16" : "float32";
  }

  void read_rotary(int head_dim) {
    set("rope_theta", keys().find_double(key("rope.freq_base"), kPositive).value_or(10000));
    if (has_key("attention.key_length_swa")) return read_rotary_by_type(head_dim);
    const int size = find_int("rope.dimension_count", {.min = 1, .max = head_dim}).value_or(head_dim);
    if (size != head_dim) set("partial_rotary_factor", static_cast<double>(size) / head_dim);
    if (has_tensor(kFactors) || has_tensor(kLongFactors) || has_tensor(kShortFactors))
      return read_factors(size);
    const std::string type =
        keys().get_string(key("rope.scaling.type"), has_key("rope.scale_linear") ? "linear" : "none");
    if (type == "none") return;
    if (type != "linear" && type != "yarn")
      fail_at("rope.scaling.type",
              format_text("is {}; none, linear, yarn and factors are supported", in_quotes(type)));
    const std::string from =
        key(has_key("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear");
    const double factor = keys().require_double(from, kPositive);
    Json rope = {{"rope_type", type}, {"factor", factor}};
    if (type == "yarn") {
      if (has_key("rope.scaling.yarn_log_multiplier"))
        fail_at("rope.scaling.yarn_log_multiplier", "is not supported");
      rope["original_max_position_embeddings"] =
          keys().require_int(key("rope.scaling.original_context_length"), kPositions);
      for (const std::string name : {"beta_fast", "beta_slow"})
        if (const auto beta = keys().find_double(key("rope.scaling.yarn_" + name), kPositive))
          rope[name] = *beta;
    } else {  // transformers has the length before it is stretched
      const double length = integer("max_position_embeddings") / factor;
      set("max_position_embeddings", static_cast<int>(std::clamp(length, 1.0, double{kPositions.max})));
    }
    json_["rope_scaling"] = rope;
  }

  // Layers with a window have heads of their own. head_dim: that of the others, of whose dimensions the first
  // rotate; the frequencies of the rest are divided by what is as good as infinite.
  void read_rotary_by_type(int head_dim) {
    const int local = keys().require_int(key("attention.key_length_swa"), kHeadSize);
    const std::vector<double> factors = values_of(kFactors, head_dim / 2);
    const auto still = std::ranges::find_if(factors, [](double factor) { return factor != 1; });
    if (std::any_of(still, factors.end(), [](double factor) { return factor < 1e9; }))
      fail("{}: tensor {} must hold ones, then what is as good as infinite", model_.path(),
           in_quotes(std::string(kFactors)));
    const int rotated = keys().get_int(key("rope.dimension_count_swa"), local, {1, local});
    set("head_dim", local);
    set("global_head_dim", head_dim);
    json_["rope_parameters"] = {
        {"full_attention",
         {{"rope_type", "proportional"},
          {"rope_theta", json_.at("rope_theta")},
          {"partial_rotary_factor", 2.0 * static_cast<double>(still - factors.begin()) / head_dim}}},
        {"sliding_attention",
         {{"rope_type", "default"},
          {"rope_theta", keys().get_double(key("rope.freq_base_swa"), 10000, kPositive)},
          {"partial_rotary_factor", static_cast<double>(rotated) / local}}}};
  }

  // Divisors of the frequencies, as longrope has them: those of llama3 are computed already, and the same for
  // any length.
  void read_factors(int size) {
    const bool is_llama3 = has_tensor(kFactors);
    json_["rope_scaling"] = {
        {"rope_type", "longrope"},
        {"short_factor", values_of(is_llama3 ? kFactors : kShortFactors, size / 2)},
        {"long_factor", values_of(is_llama3 ? kFactors : kLongFactors, size / 2)},
        {"factor", 1.0},
        {"attention_factor",
         is_llama3 ? 1.0 : keys().get_double(key("rope.scaling.attn_factor"), 1.0, kPositive)},
        {"original_max_position_embeddings",
         is_llama3 ? integer("max_position_embeddings")
                   : keys().require_int(key("rope.scaling.original_context_length"), kPositions)}};
  }

  std::vector<double> values_of(std::string_view name, std::int64_t size) {
    const GgufTensor* tensor = model_.find(name);
    if (tensor == nullptr || tensor->type != GgufType::kF32 || tensor->shape != std::vector{size})
      fail("{}: tensor {} must hold {} numbers of type F32", model_.path(), in_quotes(std::string(name)),
           size);
    const auto values = read_values<float>(*dequantized(open_gguf_tensor(std::string(name), *tensor)));
    for (const float value : values) {
      if (!std::isfinite(value) || value <= 0)
        fail("{}: tensor {} must hold numbers above 0", model_.path(), in_quotes(std::string(name)));
    }
    layout_.read.emplace(name);
    return {values.begin(), values.end()};
  }

  // Llama and Mistral, and Mixtral.
  void read_llama() {
    if (!is_mixture()) return;
    require_int("num_local_experts", "expert_count", kExpertCount);
    require_int("num_experts_per_tok", "expert_used_count", kExpertCount);
    set_family("MixtralForCausalLM");
  }

  void read_qwen3_moe() {
    read_experts("num_experts", "num_experts_per_tok");
    set("norm_topk_prob", true);  // as llama.cpp computes them
  }

  // Gated DeltaNet in most layers.
  void read_qwen3_next() {
    require_int("linear_conv_kernel_dim", "ssm.conv_kernel", {.min = 2, .max = 64});
    require_int("linear_key_head_dim", "ssm.state_size", kHeadSize);
    require_int("linear_num_key_heads", "ssm.group_count", kHeadCount);
    require_int("linear_num_value_heads", "ssm.time_step_rank", kHeadCount);
    const int num_heads = integer("linear_num_value_heads");
    const int inner = keys().require_int(key("ssm.inner_size"), kWidth);
    if (inner % num_heads != 0)
      fail_at("ssm.inner_size", format_text("is {}, no multiple of {} heads", inner, num_heads));
    set("linear_value_head_dim", inner / num_heads);
    copy_int("full_attention_interval", "full_attention_interval", kLayerCount);
    if (has_key("attention.recurrent_layers"))
      set_layer_types("attention.recurrent_layers", "linear_attention");
    layout_.norm_offset = 1;
    if (!is_mixture()) return;
    read_experts("num_experts", "num_experts_per_tok");
    set("shared_expert_intermediate_size", integer("moe_intermediate_size"));
    copy_int("shared_expert_intermediate_size", "expert_shared_feed_forward_length", kWidth);
  }

  void read_qwen3_5() {
    read_qwen3_next();
    layout_.key_heads = integer("linear_num_key_heads");
    layout_.value_heads = integer("linear_num_value_heads");
    layout_.value_dim = integer("linear_value_head_dim");
  }

  void read_gpt_oss() {
    require_int("num_local_experts", "expert_count", kExpertCount);
    require_int("num_experts_per_tok", "expert_used_count", kExpertCount);
    require_int("sliding_window", "attention.sliding_window", kPositions);
    // The ramp of yarn ends between dimensions, not at one: no key says it.
    if (json_.contains("rope_scaling")) json_["rope_scaling"]["truncate"] = false;
  }

  // Scores are scaled by the size of a head, but for the largest model of each series, which is told by its
  // layers.
  void read_gemma(int layers_of_27b) {
    const int head_dim = integer("num_hidden_layers") == layers_of_27b
                             ? integer("hidden_size") / integer("num_attention_heads")
                             : integer("head_dim");
    set("query_pre_attn_scalar", head_dim);
    copy_double("attn_logit_softcapping", "attn_logit_softcapping", kPositive);
    copy_double("final_logit_softcapping", "final_logit_softcapping", kPositive);
    require_int("sliding_window", "attention.sliding_window", kPositions);
    require_int("max_position_embeddings", "context_length", kPositions);  // with its scaling
    layout_.norm_offset = 1;
  }

  void read_gemma2() { read_gemma(46); }

  void read_gemma3() {
    read_gemma(62);
    copy_int("sliding_window_pattern", "attention.sliding_window_pattern", kLayerCount);
    copy_double("rope_local_base_freq", "rope.freq_base_swa", kPositive);
  }

  void read_gemma4() {
    set_layer_types("attention.sliding_window_pattern", "sliding_attention");
    const std::vector<int> local = of_layers("attention.sliding_window_pattern", {.min = 0, .max = 1});
    const std::vector<int> heads = of_layers("attention.head_count_kv", kHeadCount);
    const std::vector<int> inner = of_layers("feed_forward_length", kWidth);
    const auto full = static_cast<std::size_t>(std::ranges::find(local, 0) - local.begin());
    set("num_key_value_heads", heads[full == 0 ? heads.size() - 1 : 0]);
    if (full < heads.size()) {
      set("num_global_key_value_heads", heads[full]);
      set("attention_k_eq_v", !has_tensor(format_text("blk.{}.attn_v.weight", full)));
    }
    set("intermediate_size", inner.front());
    set("use_double_wide_mlp", inner.back() != inner.front());
    require_int("sliding_window", "attention.sliding_window", kPositions);
    copy_int("num_kv_shared_layers", "attention.shared_kv_layers", {.min = 0});
    set("hidden_size_per_layer_input", 0);
    copy_int("hidden_size_per_layer_input", "embedding_length_per_layer_input", {.min = 0});
    set("vocab_size_per_layer_input", integer("vocab_size"));
    copy_double("final_logit_softcapping", "final_logit_softcapping", kPositive);
    if (!is_mixture()) return;
    set("enable_moe_block", true);
    read_experts("num_experts", "top_k_experts");
  }

  // Phi-4 has a window of 0, which is none.
  void read_phi3() {
    if (find_int("attention.sliding_window", {.min = 0}) != 0)
      copy_int("sliding_window", "attention.sliding_window", kPositions);
  }

  void read_granite() {
    copy_double("embedding_multiplier", "embedding_scale");
    copy_double("residual_multiplier", "residual_scale");
    set("attention_multiplier", require_double("attention.scale"));
    copy_double("logits_scaling", "logit_scale", kPositive);
  }

  // Layers without heads of keys have a convolution in place of attention.
  void read_lfm2() {
    const std::vector<int> heads = of_layers("attention.head_count_kv", {.min = 0, .max = kHeadCount.max});
    std::vector<int> attention;
    for (std::size_t i = 0; i < heads.size(); ++i)
      if (heads[i] > 0) attention.push_back(static_cast<int>(i));
    if (attention.empty()) fail_at("attention.head_count_kv", "has none above 0");
    set("num_key_value_heads", *std::ranges::max_element(heads));
    set("full_attn_idxs", attention);
    require_int("conv_L_cache", "shortconv.l_cache", {.min = 2, .max = 64});
    require_int("intermediate_size", "feed_forward_length", kWidth);
    set("norm_eps", require_double("attention.layer_norm_rms_epsilon"));
    set("block_auto_adjust_ff_dim", false);  // the size is that of the tensors
  }

  void read_lfm2_moe() {
    read_lfm2();
    read_experts("num_experts", "num_experts_per_tok");
    require_int("num_dense_layers", "leading_dense_block_count", {.min = 0});
    copy_double("routed_scaling_factor", "expert_weights_scale", kPositive);
    set("use_expert_bias",
        has_tensor(format_text("blk.{}.exp_probs_b.bias", integer("num_hidden_layers") - 1)));
  }

  const GgufModel& model_;
  std::string architecture_;
  Json json_ = Json::object();
  GgufLayout layout_;
  int num_blocks_ = 0;
};

const ConfigBuilder::Architecture& ConfigBuilder::find_architecture() const {
  static constexpr Architecture kArchitectures[] = {
      {"llama", "LlamaForCausalLM", kBiases | kPermutedHeads | kNoWindow | kMixture,
       &ConfigBuilder::read_llama},
      {"qwen2", "Qwen2ForCausalLM", kNoWindow},
      {"qwen3", "Qwen3ForCausalLM", kBiases | kNoWindow},
      {"qwen3moe", "Qwen3MoeForCausalLM", kBiases | kNoWindow | kMixture, &ConfigBuilder::read_qwen3_moe},
      {"qwen3next", "Qwen3NextForCausalLM", kMixture, &ConfigBuilder::read_qwen3_next},
      {"qwen35", "Qwen3_5ForCausalLM", 0, &ConfigBuilder::read_qwen3_5},
      {"qwen35moe", "Qwen3_5MoeForCausalLM", kMixture, &ConfigBuilder::read_qwen3_5},
      {"gpt-oss", "GptOssForCausalLM", kBiases | kMixture, &ConfigBuilder::read_gpt_oss},
      {"gemma2", "Gemma2ForCausalLM", 0, &ConfigBuilder::read_gemma2},
      {"gemma3", "Gemma3ForCausalLM", 0, &ConfigBuilder::read_gemma3},
      {"gemma4", "Gemma4ForCausalLM", kMixture | kByLayer, &ConfigBuilder::read_gemma4},
      {"phi3", "Phi3ForCausalLM", 0, &ConfigBuilder::read_phi3},
      {"olmo2", "Olmo2ForCausalLM", kNoWindow},
      {"granite", "GraniteForCausalLM", kBiases | kPermutedHeads, &ConfigBuilder::read_granite},
      {"smollm3", "SmolLM3ForCausalLM", kBiases | kPermutedHeads | kNoWindow},
      {"lfm2", "Lfm2ForCausalLM", kByLayer, &ConfigBuilder::read_lfm2},
      {"lfm2moe", "Lfm2MoeForCausalLM", kMixture | kByLayer, &ConfigBuilder::read_lfm2_moe},
      {"seed_oss", "SeedOssForCausalLM", kBiases},
  };
  const auto* const found = std::ranges::find(kArchitectures, architecture_, &Architecture::name);
  if (found == std::end(kArchitectures))
    keys().fail_at("general.architecture",
                   format_text("is {}, which is not supported; supported are {}", in_quotes(architecture_),
                               join_text(std::views::transform(kArchitectures, &Architecture::name), ", ")));
  return *found;
}

}  // namespace

GgufConfig read_gguf_config(const GgufModel& model) { return ConfigBuilder(model).build(); }

}  // namespace quire
