// GPTQ as AutoGPTQ and GPTQModel write it (gptqmodel/nn_modules/qlinear/__init__.py): codes packed along the
// inputs, zero points along the outputs; those of format v1 are stored less one.

#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

// How a module is quantised, or that it is not.
struct GptqScheme {
  int bits = 4;
  std::int64_t group_size = LinearFormat::kWhole;
  bool is_symmetric = true;
  bool is_skipped = false;

  bool operator==(const GptqScheme&) const = default;
};

GptqScheme read_scheme(const ConfigObject& config, GptqScheme scheme) {
  scheme.bits = config.get_int("bits", scheme.bits);
  if (scheme.bits != 2 && scheme.bits != 4 && scheme.bits != 8)
    config.fail_at("bits", format_text("{} is not supported; 2, 4 and 8 are", scheme.bits));
  if (const auto size = config.find_int("group_size", {.min = -1, .max = 1 << 20})) {
    if (*size == 0) config.fail_at("group_size", "must be a positive number, or -1 for whole rows");
    scheme.group_size = *size < 0 ? LinearFormat::kWhole : *size;
  }
  scheme.is_symmetric = config.get_bool("sym", scheme.is_symmetric);
  return scheme;
}

// The scales of a matrix that promises zero points in the middle of the codes, which are then not kept. Error
// where it has others.
WeightTensorPtr symmetric_scales(const WeightTensorPtr& scales, const WeightTensorPtr& zeros, int middle) {
  return make_weight_tensor(
      scales->name(), scales->dtype(), scales->shape(), [=](std::int64_t row, const Tensor& dst) {
        scales->read_rows(row, dst);
        for (const std::uint8_t zero : read_values<std::uint8_t>(*zeros, row, dst.dim(0))) {
          if (zero != middle)
            fail("tensor {}: it holds the zero point {}, where \"sym\" promises {}", in_quotes(zeros->name()),
                 zero, middle);
        }
      });
}

void add_scales(WeightGroup& group, const StoredLinear& linear, const GptqScheme& scheme, bool is_v1) {
  const std::int64_t num_groups = ceil_div(group.cols, scheme.group_size);
  Packing packing = Packing::words(scheme.bits, /*along_rows=*/true);
  // One for each code of a word: all of them were stored less one, as one number.
  if (is_v1)
    for (const std::uint8_t shift : packing.shifts) packing.added |= 1U << shift;
  WeightTensorPtr zeros =
      unpacked(transpose(linear.take("qzeros", kI32Types, {num_groups, packing.num_words(group.rows)})),
               packing, group.rows, num_groups);
  auto [scales, type] = linear.take_transposed_scales("scales", num_groups);
  group.format.scale = type;
  if (scheme.is_symmetric) {
    group.format.code_offset = 1 << (scheme.bits - 1);
    scales = symmetric_scales(scales, zeros, group.format.code_offset);
  } else {
    group.format.offset = OffsetType::kZero;
    group.tensors.push_back({WeightPart::kOffset, std::move(zeros)});
  }
  group.tensors.push_back({WeightPart::kScale, std::move(scales)});
}

WeightGroup take_gptq(const StoredLinear& linear, const GptqScheme& scheme, bool is_v1) {
  const std::int64_t rows = linear.rows(), cols = linear.cols();
  const Packing packing = Packing::words(scheme.bits);
  const auto per_word = std::ssize(packing.shifts);
  if (cols % per_word != 0 || rows % per_word != 0)
    linear.fail_at("qweight", format_text("[{}, {}] does not fill words of {} codes", rows, cols, per_word));
  const WeightTensorPtr words = transpose(linear.take("qweight", kI32Types, {packing.num_words(cols), rows}));
  WeightGroup group =
      linear.group_of({{WeightPart::kWeight, unpacked(words, packing, rows, cols)}},
                      {.code = CodeType::kInt, .bits = scheme.bits, .block_cols = scheme.group_size});
  add_scales(group, linear, scheme, is_v1);
  if (linear.has("g_idx")) order_columns(group, linear, "g_idx");
  return group;
}

using GptqOverrides = std::vector<std::pair<ModulePattern, GptqScheme>>;

// Keys are regular expressions of module names: behind "-:" of those that are left out, behind "+:" or
// nothing of those that are quantised in another way.
GptqOverrides read_overrides(const ConfigObject& config, const GptqScheme& scheme_of_others) {
  GptqOverrides overrides;
  const auto dynamic = config.find_object("dynamic");
  if (!dynamic) return overrides;
  for (const std::string& key : dynamic->keys()) {
    std::string_view pattern = key;
    GptqScheme scheme = scheme_of_others;
    if (pattern.starts_with("-:")) {
      scheme.is_skipped = true;
    } else if (const auto changes = dynamic->find_object({key})) {
      scheme = read_scheme(*changes, scheme);
    }
    if (pattern.starts_with("-:") || pattern.starts_with("+:")) pattern.remove_prefix(2);
    overrides.emplace_back(ModulePattern(pattern, true, config, "dynamic"), scheme);
  }
  return overrides;
}

// Null: none is for it. Of several the file's first one would count, but a JSON object has no order.
const GptqScheme* find_override(const GptqOverrides& overrides, const StoredLinear& linear) {
  const GptqScheme* found = nullptr;
  for (const auto& [pattern, scheme] : overrides) {
    if (!pattern.matches(linear.prefix()) && !pattern.matches(linear.spellings()[1])) continue;
    if (found != nullptr && *found != scheme)
      fail("quantization_config.dynamic: several patterns match {} and ask for different things",
           in_quotes(linear.prefix()));
    found = &scheme;
  }
  return found;
}

}  // namespace

QuantizationMethod make_gptq(const ConfigObject& config) {
  config.require_int("bits");
  const GptqScheme scheme_of_others = read_scheme(config, {});
  const std::string format = config.get_string({"checkpoint_format", "format"}, "gptq");
  const bool is_v1 = format == "gptq";
  if (!is_v1 && format != "gptq_v2")
    config.fail_at("checkpoint_format",
                   format_text("{} is not supported; gptq and gptq_v2 are", in_quotes(format)));
  if (config.get_bool("is_marlin_format", false))
    config.fail_at("is_marlin_format", "is true, which is not supported");
  if (const std::string type = config.get_string("pack_dtype", "int32"); type != "int32")
    config.fail_at("pack_dtype", format_text("must be int32, not {}", in_quotes(type)));
  return [=, overrides = read_overrides(config, scheme_of_others)](const StoredLinear& linear) {
    const GptqScheme* const found = find_override(overrides, linear);
    const GptqScheme& scheme = found == nullptr ? scheme_of_others : *found;
    if (scheme.is_skipped || linear.has("weight", kFloatTypes)) return linear.take_plain();
    return take_gptq(linear, scheme, is_v1);
  };
}

}  // namespace quire
