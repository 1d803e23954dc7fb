#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/config_object.h"

namespace quire {

// Sizes beyond what any model has; products of a few of them stay far below 2^63.
inline constexpr IntRange kLayerCount{1, 1 << 12};
inline constexpr IntRange kHeadCount{1, 1 << 12};
inline constexpr IntRange kHeadSize{1, 1 << 12};
inline constexpr IntRange kExpertCount{1, 1 << 12};
inline constexpr IntRange kWidth{1, 1 << 20};
inline constexpr IntRange kVocabSize{1, 1 << 24};
inline constexpr IntRange kPositions{1, 1 << 30};

// A checkpoint's config.json; of a model of several kinds of input its text_config, beside which the rest of
// the file is looked at for what concerns all of it. What a model family calls its sizes is the model file's
// business; here is what families share.
class ModelConfig : public ConfigObject {
 public:
  // Rotary embedding as the file has it. A field that the file leaves out holds transformers' default where
  // that is a constant or another key, and is empty where the default is a formula.
  struct RotaryConfig {
    std::string type =
        "default";  // default, linear, dynamic, yarn, llama3, longrope, proportional; others as written
    double theta = 0;
    double factor = 1;                 // linear, yarn, llama3, longrope, proportional
    std::optional<double> alpha = {};  // dynamic, where it is a fixed one (Hunyuan)
    double partial_rotary_factor = 1;
    int original_max_position_embeddings = 0;  // yarn, llama3, longrope
    double query_scaling_beta = 0;             // of queries by position (Llama 4, Ministral 3)
    // yarn and longrope: multiplies cos and sin. Empty: derived from factor (and mscale).
    std::optional<double> attention_factor = {};
    double attn_factor = 1;  // yarn: multiplies what is derived (vLLM; transformers passes it over)
    double beta_fast = 32;   // yarn from here on
    double beta_slow = 1;
    std::optional<double> mscale = {};
    std::optional<double> mscale_all_dim = {};
    bool truncate = true;
    double low_freq_factor = 0;  // llama3
    double high_freq_factor = 0;
    std::vector<double> short_factor = {};  // longrope
    std::vector<double> long_factor = {};

    bool operator==(const RotaryConfig&) const = default;
  };

  static ModelConfig from_file(const std::filesystem::path& path);
  static ModelConfig from_json(std::string_view text, std::string where);

  const std::string& architecture() const;  // the first of "architectures"

  // Reads rope_theta and rope_scaling, or rope_parameters. Where the latter are given for each type of
  // layers, those of layer_type; Error where it is null, or the file has none of it.
  RotaryConfig rotary(double default_theta, const char* layer_type = nullptr,
                      double default_partial_factor = 1) const;
  bool has_rotary_of(const char* layer_type) const;  // parameters that are given for it alone
  // Of the weights, as the file promises, or else as was supposed; empty where neither says.
  std::optional<DType> dtype() const;
  void suppose_dtype(std::optional<DType> dtype) { supposed_dtype_ = dtype; }
  // As the text part says, or else the whole.
  bool ties_word_embeddings(bool fallback) const;
  // How the weights are quantised; empty: the file does not say that they are.
  std::optional<ConfigObject> quantization_config() const;
  std::vector<std::int32_t> eos_token_ids() const;

 private:
  explicit ModelConfig(ConfigObject file);
  void read_extension(const ConfigObject& rope, RotaryConfig& rotary) const;

  ConfigObject file_;  // the whole
  std::optional<DType> supposed_dtype_;
  std::vector<std::string> architectures_;
};

// A checkpoint's generation_config.json: sampling defaults that its author recommends, and what ends an
// answer. As in vLLM, do_sample does not make sampling greedy: a request's temperature decides.
struct GenerationConfig {
  std::vector<std::int32_t> eos_token_ids;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int> top_k;
  std::optional<int> max_new_tokens;
};

// Without the file: empty.
GenerationConfig read_generation_config(const std::filesystem::path& directory);
// What the object lacks is as in `base`.
GenerationConfig parse_generation_config(const ConfigObject& object, GenerationConfig base = {});

}  // namespace quire
