#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "layers/embedding.h"

namespace quire {

// What the rest of the engine must know of a model, from its config.json alone.
struct ModelSpec {
  int num_layers = 0;
  int num_heads = 0;     // over all ranks
  int num_kv_heads = 0;  // over all ranks
  int head_dim = 0;
  int hidden_size = 0;
  int vocab_size = 0;
  int max_model_len = 0;  // positions the model was made for
};

// A model family: queues a step's ops on its backend. Holds no state but weights and activations.
class Model {
 public:
  virtual ~Model() = default;

  // Hidden states after the final norm: [tokens, hidden_size], until the next call.
  virtual Tensor forward(const Step& step) = 0;
  // What makes logits of them.
  virtual const LmHead& head() const = 0;
};

// Tensors that nobody needs to claim, by their names.
struct IgnorableTensors {
  std::vector<std::string> endings = {};
  std::vector<std::string> beginnings = {};  // of parts that are left out, which is said
};

// A family's entry: its line in the registry.
struct ModelFamily {
  std::function<ModelSpec(const ModelConfig& config)> describe;
  std::function<std::unique_ptr<Model>(const ModelConfig& config, const LoadContext& context)> load;
  IgnorableTensors ignorable;
};

// Before main, under a name that config.json's "architectures" may have. Names are unique.
void register_family(const std::string& architecture, ModelFamily family);

// Error that lists the architectures known.
const ModelFamily& find_model_family(const std::string& architecture);

}  // namespace quire
