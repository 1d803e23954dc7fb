#pragma once

#include <string>
#include <vector>

#include "engine/model_files.h"

namespace quire {

// The sizes of a published model, as its config.json has them.
struct Shape {
  std::string name;
  std::string architecture;
  int num_layers = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int vocab_size = 0;
  std::string others = "{}";  // further keys, where they are not the family's defaults: JSON
};

const std::vector<Shape>& published_shapes();
// Error that lists the names.
const Shape& find_shape(const std::string& name);

ModelConfig shape_config(const Shape& shape);
// A model of this shape with random weights and no tokenizer.
ModelFiles random_model(const Shape& shape);

}  // namespace quire
