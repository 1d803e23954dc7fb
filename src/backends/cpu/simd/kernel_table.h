#pragma once

// All kernels of a translation unit, over the vectors of the vec_*.h that it has included before.

#include "backends/cpu/simd/attention.h"
#include "backends/cpu/simd/causal_conv.h"
#include "backends/cpu/simd/coded_matmul.h"
#include "backends/cpu/simd/delta_rule.h"
#include "backends/cpu/simd/elementwise.h"
#include "backends/cpu/simd/sampling.h"

namespace quire::simd {
namespace {

constexpr Kernels make_kernels(decltype(Kernels::prepare_activations) prepare = prepare_activations,
                               decltype(Kernels::linear_panels) linear = linear_panels) {
  return {.scale_inputs = scale_inputs,
          .prepare_activations = prepare,
          .linear_panels = linear,
          .norm = norm,
          .activate = activate,
          .activate_gate = activate_gate,
          .causal_conv = causal_conv,
          .gated_delta_rule = gated_delta_rule,
          .sigmoid_gate = sigmoid_gate,
          .gated_norm = gated_norm,
          .cap = cap,
          .rotate_and_store = rotate_and_store,
          .attention = attention,
          .top = top,
          .race = race};
}

}  // namespace
}  // namespace quire::simd
