#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/model_files.h"
#include "ops/weight_source.h"

namespace quire {

// Has every tensor that is asked for, in bfloat16, with values that depend on its name and their place alone:
// matrices are uniform with a variance of one over their columns, so that products keep the size of what
// they multiply; vectors, which are norms, are near one. Thread contract as for Checkpoint.
class RandomWeights final : public WeightSource {
 public:
  // A head that an embedding stands for is not asked for with take(), and none stands beside it.
  bool contains(std::string_view) const override { return false; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override;

 private:
  using Values = std::shared_ptr<const std::vector<BFloat16>>;
  std::map<std::int64_t, Values> values_;  // by columns; 0: vectors
};

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
