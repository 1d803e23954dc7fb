#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "checkpoint/safetensors_writer.h"
#include "ops/quantize.h"

namespace quire {

// How a checkpoint has matrices in the forms of `quantized`: fp8, int8 and int4 as compressed-tensors, nf4 as
// bitsandbytes. What is written is read here, by vLLM and by transformers.

// The tensors PREFIX.* of a matrix. PREFIX.weight is the group's name. dtype: of the weights it was made of,
// as files write it. Error that names the tensor where its columns do not fill groups: both libraries refuse
// those.
std::vector<TensorToWrite> written_linear(const WeightGroup& group, Quantization quantization,
                                          std::string_view dtype);

// The quantization_config of a model whose modules but these are quantised.
OrderedJson written_config(Quantization quantization, const std::vector<std::string>& plain_modules,
                           std::string_view dtype);

}  // namespace quire
