#pragma once

#include <functional>

#include "layers/step.h"
#include "layers/workspace.h"
#include "ops/communicator.h"
#include "ops/quantize.h"
#include "ops/weight_source.h"

namespace quire {

// What a layer's constructor is given to load itself.
struct LoadContext {
  Backend& backend;
  Communicator& comm;
  WeightSource& weights;
  Workspace& workspace;
  StateDeclarations& states;
  DType dtype;                                      // of weights and activations
  int max_output_rows;                              // positions of one step that may want logits
  int max_model_len;                                // positions of a sequence
  Quantization quantization = Quantization::kNone;  // of plain matrices, as they are loaded
  bool quantize_head = false;                       // and of the embedding and the head
  bool weight_only = false;                         // no product rounds its input
  std::function<void(std::size_t done, std::size_t total)> on_layer = {};  // where it is loaded

  // A linear layer's matrix, as the checkpoint has it; a plain one becomes one of `made`.
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols,
                          Quantization made) const {
    return settle_input(quantized(weights.take_linear(prefix, rows, cols), made), weight_only);
  }
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) const {
    return take_linear(prefix, rows, cols, quantization);
  }
  // The same with other weights.
  LoadContext with_weights(WeightSource& source) const {
    return {backend,         comm,          source,       workspace,     states,      dtype,
            max_output_rows, max_model_len, quantization, quantize_head, weight_only, on_layer};
  }
  LoadContext with_weight_only() const {
    LoadContext context = *this;
    context.weight_only = true;
    return context;
  }
};

}  // namespace quire
