// config.json, generation_config.json and the index of a sharded checkpoint, from arbitrary bytes. The first
// byte chooses which.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "backends/registry.h"
#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weight_index.h"
#include "parallel/lone_rank.h"
#include "runner/runtime_config.h"

namespace {

template <typename F>
void tolerate(F&& f) {
  try {
    f();
  } catch (const quire::Error&) {
  }
}

void read_model_config(std::string_view text) {
  const auto config = quire::ModelConfig::from_json(text, "config.json");
  tolerate([&] { config.architecture(); });
  tolerate([&] { config.rotary(1e4); });
  tolerate([&] { config.dtype(); });
  tolerate([&] { config.quantization_config(); });
  tolerate([&] { config.eos_token_ids(); });
  tolerate([&] { config.require_int({"hidden_size", "n_embd"}); });
  tolerate([&] { config.require_double("rms_norm_eps", quire::kPositive); });
  tolerate([&] { config.get_bool("tie_word_embeddings", false); });
  tolerate([&] { config.get_string("hidden_act", "silu"); });
  tolerate([&] {
    static const auto backend = quire::make_backend({});
    static quire::SingleRank comm(*backend);
    const auto runtime = quire::resolve_config(quire::EngineConfig{}, config, *backend, comm);
    if (runtime.num_blocks < 1 || runtime.max_model_len < 2) std::abort();
  });
}

void read_weight_index(std::string_view text) {
  for (const auto& [tensor, shard] : quire::parse_weight_index(text, "index.json")) {
    if (shard.empty() || shard == ".." || shard.find('/') != std::string::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  tolerate([&] {
    switch (data[0] % 3) {
      case 0:
        return read_model_config(text);
      case 1:
        return static_cast<void>(quire::parse_generation_config({text, "generation_config.json"}));
      default:
        return read_weight_index(text);
    }
  });
  return 0;
}
