#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/safetensors.h"
#include "engine/golden_models.h"

namespace quire::testing {

struct Values {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

// A checkpoint on its way to a GGUF file, by what llama.cpp's converter does (conversion/*.py).
class GgufConverter {
 public:
  GgufConverter(const std::string& model, std::string architecture)
      : folder_(golden_directory(model)),
        architecture_(std::move(architecture)),
        config_(read_json_file(folder_ / "config.json")) {}

  // A vocabulary that ends with these control tokens, or tokens of another type.
  void add_tokens(const std::vector<std::string>& control, std::int32_t type = 3) {
    std::vector<std::string> tokens;
    while (tokens.size() + control.size() < number("vocab_size"))
      tokens.push_back("t" + std::to_string(tokens.size()));
    std::vector<std::int32_t> types(tokens.size(), 1);
    tokens.insert(tokens.end(), control.begin(), control.end());
    types.resize(tokens.size(), type);
    builder_.add("tokenizer.ggml.model", "gpt2").add("tokenizer.ggml.pre", "gpt-4o");
    builder_.add("tokenizer.ggml.tokens", tokens).add("tokenizer.ggml.token_type", types);
    builder_.add("tokenizer.ggml.merges", std::vector<std::string>());
  }

  // Matrices have the values of Q8_0, as f32 or as its blocks.
  void round(bool coded) { coding_ = coded ? Coding::kBlocks : Coding::kRounded; }

  std::string convert() {
    read_tensors();
    builder_.add("general.architecture", architecture_);
    add_sizes();
    add_rotary();
    for (const auto& [name, tensor] : tensors_) add_tensor(name, tensor);
    for (const auto& [name, experts] : experts_) put(name, experts);
    return builder_.bytes();
  }

 private:
  enum class Coding : std::uint8_t { kNone, kRounded, kBlocks };

  bool is_gemma() const { return architecture_ == "gemma2" || architecture_ == "gemma3"; }
  bool has_convolutions() const { return architecture_.starts_with("lfm2"); }
  bool has_delta_net() const { return architecture_.starts_with("qwen35") || architecture_ == "qwen3next"; }
  bool predicts_further() const { return architecture_ == "qwen35"; }  // one layer does
  bool is_permuted() const {
    return architecture_ == "llama" || architecture_ == "granite" || architecture_ == "smollm3";
  }
  std::uint32_t number(const char* key) const { return config_.at(key).get<std::uint32_t>(); }
  bool has(const char* key) const { return config_.contains(key) && !config_.at(key).is_null(); }
  std::uint32_t head_dim() const {
    return has("head_dim") ? number("head_dim") : number("hidden_size") / number("num_attention_heads");
  }

  void read_tensors() {
    const SafetensorsFile file(folder_ / "model.safetensors");
    for (const auto& [name, entry] : file.tensors()) {
      std::vector<std::byte> bytes(entry.bytes);
      file.read(name, 0, bytes);
      Values tensor{entry.shape, std::vector<float>(entry.bytes / size_of(*entry.dtype))};
      quire::convert(*entry.dtype, bytes.data(), DType::kF32, tensor.values.data(), tensor.values.size());
      tensors_.emplace(name, std::move(tensor));
    }
  }

  template <typename T>
  void add(std::string_view key, const T& value) {
    builder_.add(architecture_ + "." + std::string(key), value);
  }

  // A matrix as it is, or coded.
  void put(const std::string& name, Values tensor) {
    constexpr std::size_t kBlock = 32;
    const bool is_matrix = tensor.shape.size() > 1 && tensor.shape.back() % 32 == 0;
    if (coding_ == Coding::kNone || !is_matrix) return add_values(name, tensor);
    std::string bytes;
    for (std::size_t i = 0; i < tensor.values.size(); i += kBlock) {
      float largest = 0;
      for (std::size_t j = i; j < i + kBlock; ++j) largest = std::max(largest, std::abs(tensor.values[j]));
      const Float16 scale = from_float<Float16>(largest / 127);
      bytes.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
      for (std::size_t j = i; j < i + kBlock; ++j) {
        const float code = largest == 0 ? 0 : std::round(tensor.values[j] / to_float(scale));
        tensor.values[j] = std::clamp(code, -127.0F, 127.0F) * to_float(scale);
        bytes.push_back(static_cast<char>(std::clamp(code, -127.0F, 127.0F)));
      }
    }
    if (coding_ == Coding::kRounded) return add_values(name, tensor);
    builder_.tensor(name, tensor.shape, GgufType::kQ8_0, bytes);
  }
  void add_values(const std::string& name, const Values& tensor) {
    builder_.tensor(name, tensor.shape, tensor.values);
  }

  void add_sizes() {
    add("block_count", number("num_hidden_layers") + (predicts_further() ? 1U : 0U));
    add("context_length", number("max_position_embeddings"));
    add("embedding_length", number("hidden_size"));
    add("attention.head_count", number("num_attention_heads"));
    if (has_convolutions()) {
      add_convolutions();
    } else if (architecture_ == "gemma4") {
      add_gemma4();
    } else {
      if (has("intermediate_size")) add("feed_forward_length", number("intermediate_size"));
      add("attention.head_count_kv", number("num_key_value_heads"));
    }
    if (has_delta_net()) add_delta_net();
    const std::uint32_t size = architecture_ == "gemma4" ? number("global_head_dim") : head_dim();
    add("attention.key_length", size);
    add("attention.value_length", size);
    for (const auto& [key, from] : std::map<std::string, const char*>{
             {"attention.sliding_window_pattern", "sliding_window_pattern"},
             {"expert_count", "num_local_experts"},
             {"expert_used_count", "num_experts_per_tok"},
             {"expert_feed_forward_length", "moe_intermediate_size"},
             {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
             {"leading_dense_block_count", "num_dense_layers"}})
      if (has(from)) add(key, number(from));
    for (const auto& [key, from] : std::map<std::string, const char*>{{"expert_count", "num_experts"},
                                                                      {"expert_used_count", "top_k_experts"}})
      if (has(from)) add(key, number(from));
    add_numbers();
  }

  void add_convolutions() {
    const Values& w1 = tensors_.at("model.layers.0.feed_forward.w1.weight");
    add("feed_forward_length", static_cast<std::uint32_t>(w1.shape[0]));
    std::vector<std::int32_t> heads(number("num_hidden_layers"));
    for (std::size_t i = 0; i < heads.size(); ++i)
      if (tensors_.contains("model.layers." + std::to_string(i) + ".self_attn.q_proj.weight"))
        heads[i] = config_.at("num_key_value_heads").get<std::int32_t>();
    add("attention.head_count_kv", heads);
    add("shortconv.l_cache", number("conv_L_cache"));
  }

  // Sizes differ by layer.
  void add_gemma4() {
    std::vector<std::int32_t> heads, inner;
    std::vector<bool> local;
    const std::size_t num_shared = number("num_kv_shared_layers"), layers = number("num_hidden_layers");
    for (const Json& type : config_.at("layer_types")) {
      const bool wide = config_.at("use_double_wide_mlp").get<bool>() && local.size() >= layers - num_shared;
      inner.push_back(static_cast<std::int32_t>(number("intermediate_size")) * (wide ? 2 : 1));
      local.push_back(type == "sliding_attention");
      const bool own = !local.back() && has("num_global_key_value_heads");
      heads.push_back(
          static_cast<std::int32_t>(number(own ? "num_global_key_value_heads" : "num_key_value_heads")));
    }
    add("feed_forward_length", inner);
    add("attention.head_count_kv", heads);
    add("attention.sliding_window_pattern", local);
    add("attention.shared_kv_layers", number("num_kv_shared_layers"));
    add("attention.key_length_swa", number("head_dim"));
    add("attention.value_length_swa", number("head_dim"));
    add("embedding_length_per_layer_input", number("hidden_size_per_layer_input"));
  }

  void add_delta_net() {
    add("ssm.conv_kernel", number("linear_conv_kernel_dim"));
    add("ssm.state_size", number("linear_key_head_dim"));
    add("ssm.group_count", number("linear_num_key_heads"));
    add("ssm.time_step_rank", number("linear_num_value_heads"));
    add("ssm.inner_size", number("linear_num_value_heads") * number("linear_value_head_dim"));
    add("full_attention_interval", number("full_attention_interval"));
    if (!predicts_further()) return;
    add("nextn_predict_layers", 1U);
    const std::string block = "blk." + std::to_string(number("num_hidden_layers"));
    builder_.tensor(block + ".nextn.enorm.weight", {1}, std::vector<float>{1});
    builder_.tensor(block + ".attn_q.weight", {1, 1}, std::vector<float>{1});
  }

  void add_numbers() {
    add("attention.layer_norm_rms_epsilon",
        config_.at(has("norm_eps") ? "norm_eps" : "rms_norm_eps").get<float>());
    if (has("sliding_window") &&
        (architecture_.starts_with("gemma") || architecture_ == "phi3" || architecture_ == "gpt-oss"))
      add("attention.sliding_window", number("sliding_window"));
    for (const auto& [key, from] :
         std::map<std::string, const char*>{{"attn_logit_softcapping", "attn_logit_softcapping"},
                                            {"final_logit_softcapping", "final_logit_softcapping"},
                                            {"embedding_scale", "embedding_multiplier"},
                                            {"residual_scale", "residual_multiplier"},
                                            {"attention.scale", "attention_multiplier"},
                                            {"logit_scale", "logits_scaling"}})
      if (has(from)) add(key, config_.at(from).get<float>());
  }

  void add_rotary() {
    if (architecture_ == "gemma4") return add_rotary_by_type();
    const Json& from = has("rope_theta") ? config_ : config_.at("rope_parameters");
    add("rope.freq_base", from.at("rope_theta").get<float>());
    const double part = from.value("partial_rotary_factor", 1.0);
    const auto size = static_cast<std::uint32_t>(head_dim() * part);
    add("rope.dimension_count", size);
    if (!has("rope_scaling")) return;
    const Json& rope = config_.at("rope_scaling");
    const std::string type = rope.contains("rope_type") ? rope["rope_type"] : rope["type"];
    if (type == "linear" || type == "yarn") {
      add("rope.scaling.type", type);
      add("rope.scaling.factor", rope.at("factor").get<float>());
      if (type == "yarn")
        add("rope.scaling.original_context_length",
            rope.at("original_max_position_embeddings").get<std::uint32_t>());
    } else if (type == "llama3") {
      add_factors("rope_freqs.weight", llama3_factors(rope, size));
    } else if (type == "longrope") {
      const auto original = number("original_max_position_embeddings");
      add_factors("rope_factors_short.weight", rope.at("short_factor").get<std::vector<float>>());
      add_factors("rope_factors_long.weight", rope.at("long_factor").get<std::vector<float>>());
      add("rope.scaling.original_context_length", original);
      const double scale = static_cast<double>(number("max_position_embeddings")) / original;
      const double scaling = scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(original));
      add("rope.scaling.attn_factor", static_cast<float>(scaling));
    } else {
      FAIL() << type;
    }
  }

  // The dimensions of a head that do not rotate are divided by what is as good as infinite.
  void add_rotary_by_type() {
    const Json& full = config_.at("rope_parameters").at("full_attention");
    add("rope.freq_base", full.at("rope_theta").get<float>());
    add("rope.freq_base_swa",
        config_.at("rope_parameters").at("sliding_attention").at("rope_theta").get<float>());
    add("rope.dimension_count", number("global_head_dim"));
    add("rope.dimension_count_swa", number("head_dim"));
    std::vector<float> factors(number("global_head_dim") / 2, 1e30F);
    std::fill_n(factors.begin(),
                static_cast<std::size_t>(static_cast<double>(factors.size()) *
                                         full.at("partial_rotary_factor").get<double>()),
                1.0F);
    add_factors("rope_freqs.weight", factors);
  }

  void add_factors(const char* name, const std::vector<float>& factors) {
    builder_.tensor(name, {std::ssize(factors)}, factors);
  }

  std::vector<float> llama3_factors(const Json& rope, std::uint32_t size) const {
    const auto value = [&](const char* key) { return rope.at(key).get<double>(); };
    const double original = value("original_max_position_embeddings"), factor = value("factor");
    const double low = value("low_freq_factor"), high = value("high_freq_factor");
    std::vector<float> factors;
    for (std::uint32_t i = 0; i < size; i += 2) {
      const double frequency = std::pow(config_.at("rope_theta").get<double>(), -1.0 * i / size);
      const double length = 2 * std::numbers::pi / frequency;
      const double smooth = (original / length - low) / (high - low);
      factors.push_back(static_cast<float>(length < original / high  ? 1
                                           : length > original / low ? factor
                                                                     : 1 / ((1 - smooth) / factor + smooth)));
    }
    return factors;
  }

  // "model.layers.3.self_attn.q_proj.weight" as "blk.3.attn_q.weight".
  std::string renamed(const std::string& name) const {
    const std::string after_norm = architecture_.starts_with("gemma") || has_delta_net() ||
                                           architecture_ == "olmo2" || architecture_ == "seed_oss" ||
                                           architecture_ == "gpt-oss"
                                       ? "post_attention_norm"
                                       : "ffn_norm";
    const std::pair<std::string, std::string> names[] = {
        {"model.layers", "blk"},
        {"model.embed_tokens_per_layer", "per_layer_token_embd"},
        {"model.per_layer_model_projection", "per_layer_model_proj"},
        {"model.per_layer_projection_norm", "per_layer_proj_norm"},
        {"post_per_layer_input_norm", "post_norm"},
        {"per_layer_input_gate", "inp_gate"},
        {"per_layer_projection", "proj"},
        {"layer_scalar", "layer_output_scale.weight"},
        {"router.per_expert_scale", "ffn_down_exps.scale"},
        {"router.scale", "ffn_gate_inp.scale"},
        {"mlp.router", "ffn_gate_inp"},
        {"router.proj", "ffn_gate_inp"},
        {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
        {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
        {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
        {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
        {"experts.down_proj", "ffn_down_exps.weight"},
        {"feed_forward.expert_bias", "exp_probs_b.bias"},
        {"feed_forward.gate.", "ffn_gate_inp."},
        {"mlp.gate.", "ffn_gate_inp."},
        {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
        {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
        {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
        {"linear_attn.in_proj_qkv", "attn_qkv"},
        {"linear_attn.in_proj_z", "attn_gate"},
        {"linear_attn.in_proj_ba", "ssm_ba"},
        {"linear_attn.in_proj_b", "ssm_beta"},
        {"linear_attn.in_proj_a", "ssm_alpha"},
        {"linear_attn.A_log", "ssm_a"},
        {"linear_attn.dt_bias", "ssm_dt.bias"},
        {"linear_attn.out_proj", "ssm_out"},
        {"linear_attn.", "ssm_"},
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"lm_head", "output"},
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.qkv_proj", "attn_qkv"},
        {"self_attn.o_proj", "attn_output"},
        {"self_attn.q_norm", "attn_q_norm"},
        {"self_attn.k_norm", "attn_k_norm"},
        {"block_sparse_moe.gate", "ffn_gate_inp"},
        {"self_attn.sinks", "attn_sinks.weight"},
        {"mlp.gate_up_proj", "ffn_up"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"input_layernorm", "attn_norm"},
        {"model.embedding_norm", "token_embd_norm"},
        {"operator_norm", "attn_norm"},
        {"self_attn.out_proj", "attn_output"},
        {"self_attn.q_layernorm", "attn_q_norm"},
        {"self_attn.k_layernorm", "attn_k_norm"},
        {"feed_forward.w1", "ffn_gate"},
        {"feed_forward.w3", "ffn_up"},
        {"feed_forward.w2", "ffn_down"},
        {".conv.", ".shortconv."},
        {"post_attention_layernorm", after_norm},
        {"pre_feedforward_layernorm", "ffn_norm"},
        {"post_feedforward_layernorm", "post_ffw_norm"}};
    std::string result = name;
    for (const auto& [from, to] : names)
      if (const std::size_t at = result.find(from); at != result.npos) result.replace(at, from.size(), to);
    return result;
  }

  void add_tensor(const std::string& name, Values tensor) {
    if (add_expert(name, tensor) || add_transposed_experts(name, tensor) || add_by_head(name, tensor)) return;
    const bool is_q = name.find("q_proj") != name.npos, is_k = name.find("k_proj") != name.npos;
    if (is_permuted() && (is_q || is_k))
      permute(tensor, number(is_q ? "num_attention_heads" : "num_key_value_heads"));
    if ((is_gemma() || has_delta_net()) && name.ends_with("norm.weight") &&
        !name.ends_with("linear_attn.norm.weight"))
      for (float& value : tensor.values) value += 1;
    // A scaling of scores that the format has no key for.
    if (is_gemma() && name.ends_with(architecture_ == "gemma2" ? "q_proj.weight" : "q_norm.weight"))
      for (float& value : tensor.values)
        value *= std::sqrt(static_cast<float>(head_dim()) / config_.at("query_pre_attn_scalar").get<float>());
    if (name.ends_with("A_log"))
      for (float& value : tensor.values) value = -std::exp(value);
    if (name.ends_with("conv.weight") || name.ends_with("conv1d.weight"))
      tensor.shape.erase(tensor.shape.begin() + 1);
    if (name.ends_with("shared_expert_gate.weight")) tensor.shape.erase(tensor.shape.begin());
    if (architecture_.starts_with("qwen35") && name.find("linear_attn.") != name.npos &&
        !name.ends_with("linear_attn.norm.weight"))
      tile_value_heads(name, tensor);
    put(renamed(name), std::move(tensor));
  }

  // The first value head of each key head, then the second ones: rows, or columns of out_proj.
  void tile_value_heads(const std::string& name, Values& tensor) const {
    const std::size_t keys = number("linear_num_key_heads"), heads = number("linear_num_value_heads");
    const bool by_cols = name.ends_with("out_proj.weight");
    const auto rows = static_cast<std::size_t>(tensor.shape[0]), width = tensor.values.size() / rows;
    const std::size_t size = rows == heads ? 1 : number("linear_value_head_dim");
    const std::size_t first = by_cols ? 0 : rows - heads * size;
    const std::vector<float> from = tensor.values;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t to = head % (heads / keys) * keys + head / (heads / keys);
      for (std::size_t i = 0; i < size; ++i)
        for (std::size_t j = 0; j < (by_cols ? rows : width); ++j) {
          const std::size_t old_row = first + head * size + i, new_row = first + to * size + i;
          tensor.values[by_cols ? j * width + new_row : new_row * width + j] =
              from[by_cols ? j * width + old_row : old_row * width + j];
        }
    }
  }

  // Of Qwen3-Next: rows of one key head after the other, of each those of q, k, v and z.
  bool add_by_head(const std::string& name, const Values& tensor) {
    const std::size_t at = name.find("linear_attn.in_proj_qkvz");
    if (at == name.npos) return false;
    const std::size_t keys = number("linear_num_key_heads"), width = number("hidden_size");
    const std::size_t key = number("linear_key_head_dim");
    const std::size_t value = number("linear_value_head_dim") * number("linear_num_value_heads") / keys;
    Values qkv, gate;
    const auto take = [&](Values& to, std::size_t begin, std::size_t rows) {
      for (std::size_t head = 0; head < keys; ++head) {
        const auto from =
            tensor.values.begin() + static_cast<std::ptrdiff_t>((head * 2 * (key + value) + begin) * width);
        to.values.insert(to.values.end(), from, from + static_cast<std::ptrdiff_t>(rows * width));
      }
      to.shape = {std::ssize(to.values) / static_cast<std::int64_t>(width), static_cast<std::int64_t>(width)};
    };
    take(qkv, 0, key);
    take(qkv, key, key);
    take(qkv, 2 * key, value);
    take(gate, 2 * key + value, value);
    put(renamed(name.substr(0, at)) + "attn_qkv.weight", qkv);
    put(renamed(name.substr(0, at)) + "attn_gate.weight", gate);
    return true;
  }

  // All experts of a layer are one tensor. Names come sorted, by expert and then by matrix.
  bool add_expert(const std::string& name, const Values& tensor) {
    const std::size_t at = name.find(".experts."), end = name.rfind('.');
    if (at == name.npos || !name.ends_with(".weight")) return false;
    const std::map<std::string, std::string> names = {{"w1", "gate"},        {"w2", "down"},
                                                      {"w3", "up"},          {"gate_proj", "gate"},
                                                      {"down_proj", "down"}, {"up_proj", "up"}};
    const std::size_t begin = name.rfind('.', end - 1) + 1;
    const std::string module = name.substr(0, name.rfind('.', at - 1));
    Values& all =
        experts_[renamed(module) + ".ffn_" + names.at(name.substr(begin, end - begin)) + "_exps.weight"];
    if (all.shape.empty()) all.shape = {0, tensor.shape[0], tensor.shape[1]};
    ++all.shape[0];
    all.values.insert(all.values.end(), tensor.values.begin(), tensor.values.end());
    return true;
  }

  // Of gpt-oss: [experts, in, out], of which gate's and up's columns stand by turns, and biases [experts,
  // out].
  bool add_transposed_experts(const std::string& name, const Values& tensor) {
    const std::size_t at = name.find(".mlp.experts.");
    if (at == name.npos) return false;
    const bool is_bias = name.ends_with("_bias");
    const std::vector<std::string> parts = name.find("gate_up_proj") != name.npos
                                               ? std::vector<std::string>{"gate", "up"}
                                               : std::vector<std::string>{"down"};
    const std::int64_t count = tensor.shape[0], in = is_bias ? 1 : tensor.shape[1], out = tensor.shape.back();
    const auto num_parts = std::ssize(parts), rows = out / num_parts;
    for (std::int64_t part = 0; part < num_parts; ++part) {
      Values one{is_bias ? std::vector{count, rows} : std::vector{count, rows, in}, {}};
      for (std::int64_t i = 0; i < count * rows * in; ++i) {
        const std::int64_t expert = i / in / rows, row = i / in % rows, column = i % in;
        one.values.push_back(
            tensor.values[static_cast<std::size_t>((expert * in + column) * out + row * num_parts + part)]);
      }
      experts_[renamed(name.substr(0, at)) + ".ffn_" + parts[static_cast<std::size_t>(part)] + "_exps." +
               (is_bias ? "bias" : "weight")] = std::move(one);
    }
    return true;
  }

  // Of each head the rows [2][half] become [half][2].
  static void permute(Values& tensor, std::uint32_t num_heads) {
    const auto width = static_cast<std::size_t>(tensor.shape.size() < 2 ? 1 : tensor.shape[1]);
    const auto half = static_cast<std::size_t>(tensor.shape[0]) / num_heads / 2;
    const std::vector<float> from = tensor.values;
    auto to = tensor.values.begin();
    for (std::size_t head = 0; head < num_heads; ++head)
      for (std::size_t i = 0; i < half; ++i)
        for (std::size_t part = 0; part < 2; ++part)
          to = std::copy_n(&from[((head * 2 + part) * half + i) * width], width, to);
  }

  std::filesystem::path folder_;
  std::string architecture_;
  Json config_;
  Coding coding_ = Coding::kNone;
  std::map<std::string, Values> tensors_, experts_;
  GgufBuilder builder_;
};

}  // namespace quire::testing
