// compressed-tensors 0.20 (compressors/, quantization/quant_config.py); bitsandbytes 0.50 (functional.py,
// QuantState) and transformers 5.23 (utils/quantization_config.py).
#include "checkpoint/quantization/written_linear.h"

#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

using Shape = std::vector<std::int64_t>;

// One code a byte, or two of four bits.
TensorToWrite written_codes(std::string name, const char* dtype, Shape shape, const WeightGroup& group,
                            Quantization quantization) {
  const auto cols = static_cast<std::size_t>(group.cols);
  const std::size_t row_bytes = group.format.bits == 8 ? cols : cols / 2;
  const auto make = [=, codes = group.find(WeightPart::kWeight)](std::int64_t row, std::int64_t count,
                                                                 std::byte* out) {
    // int8 is stored without the offset of 128; of two codes bitsandbytes has the first in the upper half.
    const unsigned flip = quantization == Quantization::kInt8 ? 0x80 : 0;
    const std::size_t low = quantization == Quantization::kNf4 ? 1 : 0;
    std::vector<std::uint8_t> values(cols);
    for (std::int64_t i = 0; i < count; ++i) {
      codes->read_rows(row + i, Tensor(values.data(), DType::kU8, {1, codes->cols()}));
      for (std::size_t k = 0; k < row_bytes; ++k)
        *out++ = static_cast<std::byte>(
            row_bytes == cols ? values[k] ^ flip : values[2 * k + low] | values[2 * k + 1 - low] << 4);
    }
  };
  return {std::move(name), dtype, std::move(shape), group.rows, row_bytes, make};
}

template <typename Values>
TensorToWrite written_vector(std::string name, const char* dtype, const Values& values) {
  const std::size_t bytes = values.size() * sizeof(values[0]);
  const auto make = [=](std::int64_t, std::int64_t, std::byte* out) {
    std::memcpy(out, values.data(), bytes);
  };
  return {std::move(name), dtype, {std::ssize(values)}, 1, bytes, make};
}

std::string_view torch_name(std::string_view dtype) {
  return dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
}

}  // namespace

TensorToWrite written_as_is(std::string name, std::string dtype, std::vector<std::int64_t> shape,
                            const WeightTensorPtr& tensor) {
  const std::size_t row_bytes = static_cast<std::size_t>(tensor->cols()) * size_of(tensor->dtype());
  const auto make = [tensor](std::int64_t row, std::int64_t count, std::byte* out) {
    tensor->read_rows(row, Tensor(out, tensor->dtype(), {count, tensor->cols()}));
  };
  return {std::move(name), std::move(dtype), std::move(shape), tensor->rows(), row_bytes, make};
}

std::vector<TensorToWrite> written_linear(const WeightGroup& group, Quantization quantization,
                                          std::string_view dtype) {
  const std::string& name = group.name();
  const std::int64_t rows = group.rows, cols = group.cols, block = group.format.block_cols;
  if (block != LinearFormat::kWhole && cols % block != 0)
    fail(
        "tensor {}: its {} columns do not fill groups of {}, as {} in a checkpoint must; fp8 and int8 have "
        "none",
        in_quotes(name), cols, block, to_string(quantization));
  const WeightTensorPtr scales = group.find(WeightPart::kScale);
  const auto codes = [&](std::string as, const char* type, Shape shape) {
    return written_codes(std::move(as), type, std::move(shape), group, quantization);
  };
  if (quantization == Quantization::kNf4) {  // blocks of the flattened matrix
    const std::string state =
        format_text(R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "{}", "shape": [{}, {}]}})", block,
                    torch_name(dtype), rows, cols);
    return {codes(name, "U8", {rows * cols / 2, 1}),
            written_as_is(name + ".absmax", "F32", {rows * cols / block}, scales),
            written_vector(name + ".quant_map", "F32", group.format.table),
            written_vector(name + ".quant_state.bitsandbytes__nf4", "U8", state)};
  }
  if (quantization == Quantization::kInt4)  // eight codes a word
    return {codes(name + "_packed", "I32", {rows, cols / 8}),
            written_as_is(name + "_scale", "F16", {rows, cols / block}, scales),
            written_vector(name + "_shape", "I64", Shape{rows, cols})};
  return {codes(name, quantization == Quantization::kFp8 ? "F8_E4M3" : "I8", {rows, cols}),
          written_as_is(name + "_scale", "F32", {rows, 1}, scales)};
}

OrderedJson written_config(Quantization quantization, const std::vector<std::string>& plain_modules,
                           std::string_view dtype) {
  if (quantization == Quantization::kNf4)
    return {{"quant_method", "bitsandbytes"},
            {"load_in_4bit", true},
            {"bnb_4bit_quant_type", "nf4"},
            {"bnb_4bit_compute_dtype", torch_name(dtype)},
            {"llm_int8_skip_modules", plain_modules}};
  const bool is_int4 = quantization == Quantization::kInt4, is_fp8 = quantization == Quantization::kFp8;
  const auto arguments = [&](const char* strategy, bool is_dynamic) {
    return OrderedJson{{"num_bits", is_int4 ? 4 : 8},
                       {"type", is_fp8 ? "float" : "int"},
                       {"symmetric", true},
                       {"strategy", strategy},
                       {"dynamic", is_dynamic}};
  };
  OrderedJson group = {{"targets", OrderedJson::array({"Linear"})},
                       {"weights", arguments(is_int4 ? "group" : "channel", false)}};
  if (is_int4)
    group["weights"]["group_size"] = 128;
  else
    group["input_activations"] = arguments("token", true);
  return {{"quant_method", "compressed-tensors"},
          {"format", is_int4  ? "pack-quantized"
                     : is_fp8 ? "float-quantized"
                              : "int-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", plain_modules}};
}

}  // namespace quire
