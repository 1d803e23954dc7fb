#pragma once

#include "base/json_fwd.h"
#include "checkpoint/safetensors_writer.h"
#include "ops/quantize.h"

namespace quire {

// How a checkpoint has what `quantized` makes: fp8, int8 and int4 as compressed-tensors, nf4 as bitsandbytes.
// dtype: of the weights that it was made of, as files write it.

// The tensors of a matrix whose name is that of the group. Error that names it where its columns do not fill
// groups: both libraries refuse that.
std::vector<TensorToWrite> written_linear(const WeightGroup& group, Quantization quantization,
                                          std::string_view dtype);

// A tensor's rows of bytes under this name, type and shape, of as many elements.
TensorToWrite written_as_is(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                            const WeightTensorPtr& tensor);

// The quantization_config of a model of which all modules but these are quantised.
OrderedJson written_config(Quantization quantization, const std::vector<std::string>& plain_modules,
                           std::string_view dtype);

}  // namespace quire
