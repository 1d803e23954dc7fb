#pragma once

#include <functional>

#include "checkpoint/config_object.h"
#include "checkpoint/quantization/stored_linear.h"

namespace quire {

// One way to quantise a checkpoint: what this has of a layer's matrix, with codes, scales and offsets in the
// form of a WeightGroup; plain where the layer is left out. Values are read as they are needed. Error that
// names the tensor where it is absent, or does not fit the matrix or the configuration.
using QuantizationMethod = std::function<WeightGroup(const StoredLinear&)>;

// Of a quantization_config; Error that names the key where it asks for what cannot be read.
QuantizationMethod make_fp8(const ConfigObject& config);
QuantizationMethod make_compressed_tensors(const ConfigObject& config);
QuantizationMethod make_modelopt(const ConfigObject& config);
QuantizationMethod make_gptq(const ConfigObject& config);
QuantizationMethod make_awq(const ConfigObject& config);
QuantizationMethod make_bitsandbytes(const ConfigObject& config);
QuantizationMethod make_mxfp4(const ConfigObject& config);

// Forms that several methods have.

// Columns of codes of E2M1 that have one scale.
inline constexpr std::int64_t kNvfp4Group = 16;
inline constexpr std::int64_t kMxGroup = 32;  // of E4M3, too

// Codes of OCP E4M3 as PREFIX.weight, and a scale for each block, PREFIX.SCALE.
WeightGroup take_e4m3(const StoredLinear& linear, std::string_view scale,
                      std::span<const std::string_view> scale_types, MatrixShape block);
// Inputs are rounded to E4M3 by one scale, PREFIX.SCALE, a scalar.
void add_static_input(WeightGroup& group, const StoredLinear& linear, std::string_view scale);
// Two codes of E2M1 a byte, the first in the lower half, as PREFIX.CODES, and PREFIX.weight_scale for each
// block_cols columns.
WeightGroup take_e2m1(const StoredLinear& linear, std::string_view codes,
                      std::span<const std::string_view> scale_types, std::int64_t block_cols);
// All scales of the group times PREFIX.SCALE, a scalar, or divided by it. Error where it is read, and is zero
// or not finite.
void multiply_by_global(WeightGroup& group, const StoredLinear& linear, std::string_view scale,
                        bool is_divisor);

}  // namespace quire
