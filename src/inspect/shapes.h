#pragma once

#include <string>
#include <vector>

#include "engine/model_files.h"

namespace quire {

// The sizes of a published Qwen3 model; what they leave open is the same for all (shapes.cpp).
struct Shape {
  std::string name;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  bool tied = false;  // the embedding is also the output projection
  int num_kv_heads = 8;
  int vocab_size = 151936;
};

const std::vector<Shape>& published_shapes();
// Error that lists the names.
const Shape& find_shape(const std::string& name);

ModelConfig shape_config(const Shape& shape);
// A model of this shape with random weights and no tokenizer.
ModelFiles random_model(const Shape& shape);

}  // namespace quire
