// A quantization_config, and what a checkpoint's tensors hold: scales, zero points, indices, the state of
// bitsandbytes. The input is the configuration, that state and the values, with a zero byte between them.
// Matrices of every method are read, and parts of them.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/quantized_file.h"

namespace {

constexpr std::int64_t kRows = 32, kCols = 64;

template <typename F>
void tolerate(F&& f) {
  try {
    f();
  } catch (const quire::Error&) {
  }
}

// Takes what is before the next zero byte.
std::string_view take_part(std::string_view& data) {
  const std::string_view part = data.substr(0, data.find('\0'));
  data.remove_prefix(std::min(data.size(), part.size() + 1));
  return part;
}

class FuzzedFile {
 public:
  FuzzedFile(std::string_view state, std::string_view values) : values_(values) {
    add("fp8.weight", "F8_E4M3", {32, 64}, 2048);
    add("fp8.weight_scale_inv", "F32", {1, 1}, 4);
    add("fp8.weight_scale", "BF16", {32, 1}, 64);
    add("gptq.qweight", "I32", {8, 32}, 1024);
    add("gptq.qzeros", "I32", {2, 4}, 32);
    add("gptq.scales", "F16", {2, 32}, 128);
    add("gptq.g_idx", "I32", {64}, 256);
    add("awq.qweight", "I32", {64, 4}, 1024);
    add("awq.qzeros", "I32", {2, 4}, 32);
    add("awq.scales", "F16", {2, 32}, 128);
    add("pack.weight_packed", "I32", {32, 8}, 1024);
    add("pack.weight_scale", "F16", {32, 2}, 128);
    add("pack.weight_zero_point", "I32", {4, 2}, 32);
    add("pack.weight_g_idx", "I32", {64}, 256);
    add("nvfp4.weight_packed", "U8", {32, 32}, 1024);
    add("nvfp4.weight_scale", "F8_E4M3", {32, 4}, 128);
    add("nvfp4.weight_global_scale", "F32", {1}, 4);
    add("mxfp4.weight_packed", "U8", {32, 32}, 1024);
    add("mxfp4.weight_scale", "U8", {32, 2}, 64);
    add("modelopt.weight", "U8", {32, 32}, 1024);
    add("modelopt.weight_scale", "F8_E4M3", {32, 4}, 128);
    add("modelopt.weight_scale_2", "F32", {}, 4);
    add("int8.weight", "I8", {32, 64}, 2048);
    add("int8.weight_scale", "F32", {32, 1}, 128);
    add("int8.weight_zero_point", "I8", {32, 1}, 32);
    add("int8.SCB", "F32", {32}, 128);
    add("int8.weight_format", "U8", {}, 1);
    add("bnb.weight", "U8", {1024, 1}, 1024);
    add("bnb.weight.absmax", "U8", {32}, 32);
    add("bnb.weight.nested_absmax", "F32", {1}, 4);
    add("bnb.weight.nested_quant_map", "F32", {256}, 1024);
    add("bnb.weight.quant_map", "F32", {16}, 64);
    file_.add("bnb.weight.quant_state.bitsandbytes__nf4", "U8", {static_cast<std::int64_t>(state.size())},
              state);
    add("moe.experts.gate_up_proj_blocks", "U8", {2, 64, 2, 16}, 4096);
    add("moe.experts.gate_up_proj_scales", "U8", {2, 64, 2}, 256);
  }

  quire::QuantizedWeights open(std::string_view config) const { return file_.open(std::string(config)); }

 private:
  // Each tensor begins with another of the values.
  void add(const std::string& name, std::string_view dtype, const std::vector<std::int64_t>& shape,
           std::size_t bytes) {
    std::string values(bytes, '\0');
    for (char& value : values)
      if (!values_.empty()) value = values_[next_++ % values_.size()];
    file_.add(name, dtype, shape, std::string_view(values));
  }

  quire::QuantizedFile file_;
  std::string_view values_;
  std::size_t next_ = 0;
};

void read(const quire::WeightGroup& group) {
  const quire::WeightTensorPtr values = quire::dequantized(group);
  std::vector<float> out(static_cast<std::size_t>(values->rows() * values->cols()));
  values->read_rows(0, quire::Tensor(out.data(), quire::DType::kF32, {values->rows(), values->cols()}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view config = take_part(rest);
  const std::string_view state = take_part(rest);
  tolerate([&] {
    const FuzzedFile file(state, rest);
    quire::QuantizedWeights weights = file.open(config);
    for (const char* name : {"fp8", "gptq", "awq", "pack", "nvfp4", "mxfp4", "modelopt", "int8", "bnb",
                             "moe.experts.1.up_proj"}) {
      tolerate([&] {
        const quire::WeightGroup group = weights.take_linear(name, kRows, kCols);
        if (group.rows != kRows || group.cols != kCols) std::abort();
        tolerate([&] { read(group); });
        tolerate([&] { read(quire::slice_rows(group, 5, 20)); });
        tolerate([&] { read(quire::slice_cols(group, 16, 32)); });
      });
    }
  });
  return 0;
}
