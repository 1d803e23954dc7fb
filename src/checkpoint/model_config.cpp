#include "checkpoint/model_config.h"

#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

// The rope_scaling or else the rope_parameters object; an empty one counts as absent, as in transformers.
std::optional<ConfigObject> find_rope(const ConfigObject& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    std::optional<ConfigObject> rope = config.find_object(key);
    if (rope && !rope->empty()) return rope;
  }
  return {};
}

// transformers takes a zero for "not given".
std::optional<double> find_nonzero(const ConfigObject& rope, const char* key) {
  const std::optional<double> value = rope.find_double(key, kNonNegative);
  return value == 0.0 ? std::nullopt : value;
}

void read_llama3(const ConfigObject& rope, ModelConfig::RotaryConfig& rotary) {
  rotary.low_freq_factor = rope.require_double("low_freq_factor", kPositive);
  rotary.high_freq_factor = rope.require_double("high_freq_factor", kPositive);
  if (rotary.high_freq_factor <= rotary.low_freq_factor)
    rope.fail_at("high_freq_factor", "must be greater than low_freq_factor");
}

void read_longrope(const ConfigObject& rope, ModelConfig::RotaryConfig& rotary) {
  rotary.attention_factor = rope.find_double("attention_factor", kPositive);
  rotary.short_factor = rope.get_doubles("short_factor", kPositive);
  rotary.long_factor = rope.get_doubles("long_factor", kPositive);
  if (rotary.short_factor.empty()) rope.fail_at("short_factor", "must be a list of numbers");
  if (rotary.long_factor.size() != rotary.short_factor.size())
    rope.fail_at("long_factor", "must be a list of numbers as long as short_factor");
}

void read_yarn(const ConfigObject& rope, ModelConfig::RotaryConfig& rotary) {
  rotary.attention_factor = rope.find_double("attention_factor", kPositive);
  rotary.attn_factor = rope.find_double("attn_factor", kPositive).value_or(rotary.attn_factor);
  rotary.beta_fast = find_nonzero(rope, "beta_fast").value_or(rotary.beta_fast);
  rotary.beta_slow = find_nonzero(rope, "beta_slow").value_or(rotary.beta_slow);
  if (rotary.beta_fast < rotary.beta_slow) rope.fail_at("beta_fast", "must not be less than beta_slow");
  rotary.mscale = find_nonzero(rope, "mscale");
  rotary.mscale_all_dim = find_nonzero(rope, "mscale_all_dim");
  rotary.truncate = rope.get_bool("truncate", true);
}

}  // namespace

ModelConfig::ModelConfig(ConfigObject file)
    : ConfigObject(file.find_object("text_config").value_or(file)),
      file_(std::move(file)),
      architectures_(file_.get_strings("architectures")) {
  // A classifier that is its causal model's head is that model.
  constexpr std::string_view kClassifier = "ForSequenceClassification";
  if (architectures_.empty() || !file_.contains("classifier_from_token")) return;
  if (std::string& name = architectures_.front(); name.ends_with(kClassifier))
    name.replace(name.size() - kClassifier.size(), kClassifier.size(), "ForCausalLM");
}

ModelConfig ModelConfig::from_file(const std::filesystem::path& path) { return ModelConfig(read_file(path)); }

ModelConfig ModelConfig::from_json(std::string_view text, std::string where) {
  return ModelConfig(ConfigObject(text, std::move(where)));
}

const std::string& ModelConfig::architecture() const {
  if (architectures_.empty()) file_.fail_at("architectures", "must name the model's architecture");
  return architectures_.front();
}

bool ModelConfig::has_rotary_of(const char* layer_type) const {
  const std::optional<ConfigObject> rope = find_rope(*this);
  return rope && rope->contains(layer_type);
}

ModelConfig::RotaryConfig ModelConfig::rotary(double default_theta, const char* layer_type,
                                              double default_partial_factor) const {
  std::optional<ConfigObject> rope = find_rope(*this);
  for (const char* type : {"full_attention", "sliding_attention"}) {
    if (!rope || !rope->contains(type)) continue;
    if (layer_type == nullptr)
      rope->fail_at(type,
                    "is there, but rotary parameters of each layer type are not supported for this family");
    if (!rope->contains(layer_type)) rope->fail_at(layer_type, format_text("is missing beside {}", type));
    rope = rope->find_object(layer_type);
  }
  RotaryConfig rotary;
  rotary.theta = get_double("rope_theta", default_theta, kPositive);
  std::optional<double> partial;
  if (rope) {
    rotary.type = rope->get_string({"rope_type", "type"}, rotary.type);
    if (rotary.type == "su") rotary.type = "longrope";    // its first name
    if (rotary.type == "mrope") rotary.type = "default";  // of text: three equal positions
    rotary.theta = rope->get_double("rope_theta", rotary.theta, kPositive);
    partial = rope->find_double("partial_rotary_factor", kFraction);
  }
  rotary.partial_rotary_factor =
      get_double("partial_rotary_factor", partial.value_or(default_partial_factor), kFraction);

  if (rotary.type == "linear") {
    rotary.factor = rope->require_double("factor", kPositive);
  } else if (rotary.type == "proportional") {
    rotary.factor = rope->find_double("factor", kPositive).value_or(1);
  } else if (rotary.type == "dynamic") {
    rotary.alpha = rope->find_double("alpha", kPositive);
  } else if (rotary.type == "yarn" || rotary.type == "llama3" || rotary.type == "longrope") {
    read_extension(*rope, rotary);
  }
  if (rope) rotary.query_scaling_beta = rope->find_double("llama_4_scaling_beta", kNonNegative).value_or(0);
  if (rotary.query_scaling_beta > 0 && rotary.original_max_position_embeddings == 0)
    rotary.original_max_position_embeddings = rope->require_int("original_max_position_embeddings");
  return rotary;
}

// The types that stretch a model beyond the length it was trained on.
void ModelConfig::read_extension(const ConfigObject& rope, RotaryConfig& rotary) const {
  // The outer key wins, as in transformers.
  const std::optional<int> inner = rope.find_int("original_max_position_embeddings");
  const std::optional<int> outer = find_int("original_max_position_embeddings");
  rotary.original_max_position_embeddings = outer   ? *outer
                                            : inner ? *inner
                                                    : require_int("max_position_embeddings");
  if (rotary.type == "longrope" && !rope.contains("factor")) {
    rotary.factor =
        static_cast<double>(require_int("max_position_embeddings")) / rotary.original_max_position_embeddings;
  } else {
    rotary.factor = rope.require_double("factor", kPositive);
  }
  if (rotary.type == "yarn") read_yarn(rope, rotary);
  if (rotary.type == "llama3") read_llama3(rope, rotary);
  if (rotary.type == "longrope") read_longrope(rope, rotary);
}

std::optional<DType> ModelConfig::dtype() const {
  const ConfigKey key = {"dtype", "torch_dtype"};
  const ConfigObject& where = file_.contains(key) ? file_ : *this;
  const std::optional<std::string> name = where.find_string(key);
  if (!name) return supposed_dtype_;
  if (*name == "float32" || *name == "float") return DType::kF32;
  if (*name == "bfloat16") return DType::kBF16;
  if (*name == "float16" || *name == "half") return DType::kF16;
  where.fail_at(where.contains("dtype") ? "dtype" : "torch_dtype",
                format_text("must be float32, bfloat16 or float16, not {}", in_quotes(*name)));
}

bool ModelConfig::ties_word_embeddings(bool fallback) const {
  const ConfigKey key = "tie_word_embeddings";
  return find_bool(key).value_or(file_.get_bool(key, fallback));
}

std::optional<ConfigObject> ModelConfig::quantization_config() const {
  const ConfigKey key = "quantization_config";
  if (auto config = (file_.contains(key) ? file_ : *this).find_object(key)) return config;
  // As compressed-tensors called it in 2024; without groups it tells of sparsity alone.
  auto older = file_.find_object("compression_config");
  return older && older->contains("config_groups") ? older : std::nullopt;
}

std::vector<std::int32_t> ModelConfig::eos_token_ids() const {
  const ConfigKey key = "eos_token_id";
  return (file_.contains(key) ? file_ : *this).get_token_ids(key);
}

GenerationConfig parse_generation_config(const ConfigObject& object, GenerationConfig base) {
  const auto read = [](auto& value, const auto& found) { value = found ? found : value; };
  if (object.contains("eos_token_id")) base.eos_token_ids = object.get_token_ids("eos_token_id");
  read(base.temperature, object.find_float("temperature", {.min = 0, .max = 1e4}));
  read(base.top_p, object.find_float("top_p", kFraction));
  read(base.min_p, object.find_float("min_p", {.min = 0, .max = 1}));
  read(base.repetition_penalty, object.find_float("repetition_penalty", {.min = 1e-4, .max = 1e4}));
  read(base.top_k, object.find_int("top_k", {.min = -1}));
  read(base.max_new_tokens, object.find_int("max_new_tokens"));
  return base;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return {};
  return parse_generation_config(ConfigObject::read_file(path));
}

}  // namespace quire
