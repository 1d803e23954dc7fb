// compressed-tensors 0.20 (compressors/, quantization/quant_config.py); bitsandbytes 0.50 (functional.py,
// QuantState) and transformers 5.23 (utils/quantization_config.py).
#include "checkpoint/quantization/written_linear.h"

#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::string_view kWeight = ".weight";

// Two codes a byte, of an even number of columns.
void pack_nibbles(const std::uint8_t* codes, std::size_t cols, bool high_first, std::byte* out) {
  for (std::size_t i = 0; i < cols; i += 2)
    *out++ = static_cast<std::byte>(codes[i + (high_first ? 1 : 0)] | codes[i + (high_first ? 0 : 1)] << 4);
}

// The rows of codes, each as `bytes` of what the format has.
TensorToWrite written_codes(std::string name, std::string_view dtype, std::vector<std::int64_t> shape,
                            const WeightGroup& group, Quantization quantization) {
  const auto cols = static_cast<std::size_t>(group.cols);
  const std::size_t row_bytes = group.format.bits == 8 ? cols : cols / 2;
  return {std::move(name),
          std::string(dtype),
          std::move(shape),
          group.rows,
          row_bytes,
          [=, codes = group.find(WeightPart::kWeight)](std::int64_t row, std::int64_t count, std::byte* out) {
            std::vector<std::uint8_t> values(cols);
            for (std::int64_t i = 0; i < count; ++i, out += row_bytes) {
              codes->read_rows(row + i, Tensor(values.data(), DType::kU8, {1, codes->cols()}));
              if (quantization == Quantization::kInt8)
                for (std::uint8_t& value : values) value ^= 0x80;  // less the offset of 128
              if (row_bytes < cols) {
                pack_nibbles(values.data(), cols, quantization == Quantization::kNf4, out);
              } else {
                std::memcpy(out, values.data(), cols);
              }
            }
          }};
}

TensorToWrite written_scales(std::string name, std::string_view dtype, std::vector<std::int64_t> shape,
                             const WeightTensorPtr& scales) {
  const auto row_bytes = static_cast<std::size_t>(scales->cols()) * size_of(scales->dtype());
  return {std::move(name),
          std::string(dtype),
          std::move(shape),
          scales->rows(),
          row_bytes,
          [scales](std::int64_t row, std::int64_t count, std::byte* out) {
            scales->read_rows(row, Tensor(out, scales->dtype(), {count, scales->cols()}));
          }};
}

// A vector.
template <typename T>
TensorToWrite written_values(std::string name, std::string_view dtype, const std::vector<T>& values) {
  return {std::move(name),
          std::string(dtype),
          {std::ssize(values)},
          std::ssize(values),
          sizeof(T),
          [values](std::int64_t row, std::int64_t count, std::byte* out) {
            std::memcpy(out, &values[static_cast<std::size_t>(row)],
                        static_cast<std::size_t>(count) * sizeof(T));
          }};
}

std::string_view torch_name(std::string_view dtype) {
  return dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
}

// bitsandbytes has blocks of the flattened matrix, which are these where they end with its rows.
std::vector<TensorToWrite> written_nf4(const std::string& name, const WeightGroup& group,
                                       std::string_view dtype) {
  const std::int64_t rows = group.rows, cols = group.cols, block = group.format.block_cols;
  const std::string state = OrderedJson{
      {"quant_type", "nf4"},
      {"blocksize", block},
      {"dtype", torch_name(dtype)},
      {"shape", {rows, cols}}}.dump();
  return {
      written_codes(name, "U8", {rows * cols / 2, 1}, group, Quantization::kNf4),
      written_scales(name + ".absmax", "F32", {rows * cols / block}, group.find(WeightPart::kScale)),
      written_values(name + ".quant_map", "F32",
                     std::vector(group.format.table.begin(), group.format.table.end())),
      written_values(name + ".quant_state.bitsandbytes__nf4", "U8", std::vector(state.begin(), state.end()))};
}

}  // namespace

std::vector<TensorToWrite> written_linear(const WeightGroup& group, Quantization quantization,
                                          std::string_view dtype) {
  const std::int64_t rows = group.rows, cols = group.cols, block = group.format.block_cols;
  const bool in_rows = block == LinearFormat::kWhole;
  if (!in_rows && cols % block != 0)
    fail(
        "tensor {}: its {} columns do not fill groups of {}, which {} has in a checkpoint; fp8 and int8 take "
        "any number",
        in_quotes(group.name()), cols, block, to_string(quantization));
  const std::string& name = group.name();
  if (quantization == Quantization::kNf4) return written_nf4(name, group, dtype);
  std::vector<TensorToWrite> tensors;
  if (quantization == Quantization::kInt4) {
    constexpr std::int64_t kPerWord = 8;
    tensors.push_back(written_codes(name + "_packed", "I32", {rows, cols / kPerWord}, group, quantization));
    tensors.push_back(written_values(name + "_shape", "I64", std::vector{rows, cols}));
  } else {
    const bool is_float = quantization == Quantization::kFp8;
    tensors.push_back(written_codes(name, is_float ? "F8_E4M3" : "I8", {rows, cols}, group, quantization));
  }
  tensors.push_back(written_scales(name + "_scale", in_rows ? "F32" : "F16",
                                   {rows, in_rows ? 1 : cols / block}, group.find(WeightPart::kScale)));
  return tensors;
}

OrderedJson written_config(Quantization quantization, const std::vector<std::string>& plain_modules,
                           std::string_view dtype) {
  if (quantization == Quantization::kNf4)
    return {{"quant_method", "bitsandbytes"},
            {"load_in_4bit", true},
            {"load_in_8bit", false},
            {"bnb_4bit_quant_type", "nf4"},
            {"bnb_4bit_quant_storage", "uint8"},
            {"bnb_4bit_use_double_quant", false},
            {"bnb_4bit_compute_dtype", torch_name(dtype)},
            {"llm_int8_skip_modules", plain_modules}};
  const bool is_float = quantization == Quantization::kFp8;
  const bool in_groups = quantization == Quantization::kInt4;
  OrderedJson weights = {{"num_bits", in_groups ? 4 : 8},
                         {"type", is_float ? "float" : "int"},
                         {"symmetric", true},
                         {"strategy", in_groups ? "group" : "channel"},
                         {"dynamic", false}};
  OrderedJson inputs;
  if (in_groups) {
    weights["group_size"] = 128;
  } else {
    inputs = weights;
    inputs["strategy"] = "token";
    inputs["dynamic"] = true;
  }
  const char* const layout = is_float ? "float-quantized" : in_groups ? "pack-quantized" : "int-quantized";
  return {{"quant_method", "compressed-tensors"},
          {"format", layout},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", OrderedJson::array({"Linear"})},
              {"weights", weights},
              {"input_activations", inputs}}}}},
          {"ignore", plain_modules}};
}

}  // namespace quire
