#pragma once

#include <set>
#include <string>

#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/model_config.h"

namespace quire {

// How a GGUF file's tensors differ from those of the checkpoint that it was made of.
struct GgufLayout {
  // Rows of q and k: those that rotate together are neighbours. 0: they are as they were.
  int permuted_heads = 0, permuted_kv_heads = 0;
  // Value heads of Gated DeltaNet: where a key head has several, the first of each key head stand first, then
  // the second ones. 0: they are as they were.
  int key_heads = 0, value_heads = 0, value_dim = 0;
  float norm_offset = 0;       // what was added to the weights of norms
  int first_further = 0;       // blocks from there on predict further tokens; 0: there are none
  std::set<std::string> read;  // tensors that are part of the configuration
};

// A file's keys as the config.json of the model that it was made of.
struct GgufConfig {
  ModelConfig config;
  GgufLayout layout;
};

// Error that names the key, or an architecture and those that are supported.
GgufConfig read_gguf_config(const GgufModel& model);

}  // namespace quire
