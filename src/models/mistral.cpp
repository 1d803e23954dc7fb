// Mistral: as Llama, with a sliding window in older versions; Ministral 3 scales queries by their position
// beyond the original length. The text part of Mistral 3 is one of both. Architecture and defaults:
// transformers, configuration_mistral.py, configuration_ministral3.py and their models; Jiang et al.,
// "Mistral 7B", 2023.
#include "base/error.h"
#include "base/json.h"
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_mistral(const ModelConfig& config) {
  DecoderConfig decoder =
      read_llama_like(config, {.intermediate_size = 14336, .num_kv_heads = 8, .max_positions = 4096 * 32});
  decoder.attention.window = read_window(config, 4096);
  return decoder;
}

DecoderConfig read_ministral3(const ModelConfig& config) {
  if (!config.contains("rope_parameters") && !config.contains("rope_scaling"))
    config.fail_at("rope_parameters", "is missing");
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 131072,
                                                   .intermediate_size = 14336,
                                                   .num_layers = 34,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 262144,
                                                   .head_dim = 128,
                                                   .norm_eps = 1e-5F,
                                                   .scales_queries = true});
  decoder.attention.window = read_window(config, 0);
  return decoder;
}

DecoderConfig read_text_part(const ModelConfig& config) {
  const std::string type = config.get_string("model_type", "mistral");
  if (type == "ministral3") return read_ministral3(config);
  if (type != "mistral")  // Mistral Small 4 has another attention, and experts
    config.fail_at("model_type",
                   format_text("is {}; only \"mistral\" and \"ministral3\" are supported", in_quotes(type)));
  return read_mistral(config);
}

const DecoderRegistration mistral({"MistralForCausalLM"}, read_mistral);
const DecoderRegistration ministral3({"Ministral3ForCausalLM"}, read_ministral3);
const DecoderRegistration multimodal({"Mistral3ForConditionalGeneration"}, read_text_part,
                                     {.text_part = true});

}  // namespace
}  // namespace quire
