#pragma once

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire::testing {

using Kind = StructuredOutputs::Kind;

struct Named {
  std::string name;
  StructuredOutputs outputs;
};
inline void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

inline std::vector<Named> sources() {
  return {{"schema",
           {.kind = Kind::kJsonSchema,
            .source = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                          "additionalProperties": false})"}},
          {"regex", {.kind = Kind::kRegex, .source = "[a-e ]{60,90}"}},
          {"grammar", {.kind = Kind::kGrammar, .source = R"(root ::= "yes" | ("no" | "maybe") " " [0-9]+)"}},
          {"choice", {.kind = Kind::kChoice, .source = R"(["red", "green and blue", "green"])"}}};
}

inline EngineConfig toy_config() {
  EngineConfig config;
  config.model = QUIRE_SOURCE_DIR "/models/toy";
  const char* device = std::getenv("QUIRE_TEST_DEVICE");
  config.device = device == nullptr ? "cpu" : device;
  config.dtype = "float32";
  config.block_size = 8;
  config.max_num_seqs = 8;
  config.deterministic = true;
  return config;
}

inline std::vector<TokenId> prompt_of(int which) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < 30 + 5 * which; ++i) prompt.push_back((i * 37 + which * 101 + i * i % 11) % 4000);
  return prompt;
}

}  // namespace quire::testing
