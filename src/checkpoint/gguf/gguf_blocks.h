#pragma once

#include <string>

#include "checkpoint/gguf/gguf_file.h"
#include "ops/weight_group.h"

namespace quire {

// A tensor's rows, [product of all dimensions but the last, the last], as what they are: codes, scales and
// minima, which are decoded as they are read, or values of a float type. A scale that is read and is not
// finite is an Error that names the tensor.
WeightGroup open_gguf_tensor(const std::string& name, const GgufTensor& tensor);

}  // namespace quire
