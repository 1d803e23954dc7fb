#pragma once

#include <string>
#include <vector>

#include "engine/model_files.h"

namespace quire {

// A published model's sizes.
struct Shape {
  std::string name;
  std::string config;  // the text of a config.json
};

const std::vector<Shape>& published_shapes();
// Error that lists the names.
const Shape& find_shape(const std::string& name);

ModelConfig shape_config(const Shape& shape);
// A model of this shape with random weights and no tokenizer.
ModelFiles random_model(const Shape& shape);

}  // namespace quire
