#pragma once

#include "layers/step.h"
#include "layers/workspace.h"
#include "ops/communicator.h"
#include "ops/weight_source.h"

namespace quire {

// What a layer's constructor is given to load itself.
struct LoadContext {
  Backend& backend;
  Communicator& comm;
  WeightSource& weights;
  Workspace& workspace;
  StateDeclarations& states;
  DType dtype;          // of weights and activations
  int max_output_rows;  // positions of one step that may want logits
  int max_model_len;    // positions of a sequence

  // The same with other weights.
  LoadContext with_weights(WeightSource& source) const {
    return {backend, comm, source, workspace, states, dtype, max_output_rows, max_model_len};
  }
};

}  // namespace quire
