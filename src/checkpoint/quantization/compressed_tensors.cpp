// compressed-tensors (vLLM's library, of llm-compressor): groups of modules, each quantised in a way of its
// own.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::string_view kLayouts[] = {"pack-quantized",  "int-quantized",        "float-quantized",
                                         "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                         "mxfp8-quantized"};
constexpr std::string_view kClassOfAll = "Linear";
constexpr std::string_view kPacked = "weight_packed";
constexpr std::string_view kZeroPoint = "weight_zero_point";
constexpr std::string_view kGroupIndex = "weight_g_idx";

// One of config_groups.
struct ModuleGroup {
  std::string layout;
  int bits = 8;
  bool is_symmetric = true;
  bool is_ordered = false;  // "actorder" in groups
  MatrixShape block = kWholeMatrix;
  InputFormat input;
  bool has_static_input = false;  // by input_scale, in the file
  ModuleList targets;
  bool targets_class = false;  // all linear layers
};

MatrixShape read_block(const ConfigObject& weights) {
  constexpr IntRange kSizes{.min = 1, .max = 1 << 20};
  const std::string strategy = weights.get_string("strategy", "tensor");
  if (strategy == "tensor") return kWholeMatrix;
  if (strategy == "channel") return {1, LinearFormat::kWhole};
  if (strategy == "group" || strategy == "tensor_group")
    return {1, weights.require_int("group_size", kSizes)};
  if (strategy == "block") {
    const std::vector<int> block = weights.get_ints("block_structure", kSizes);
    if (block.size() != 2) weights.fail_at("block_structure", "must be two numbers, of rows and columns");
    return {block[0], block[1]};
  }
  weights.fail_at("strategy", format_text("{} is not supported; tensor, channel, group, tensor_group and "
                                          "block are",
                                          in_quotes(strategy)));
}

// What products do with input_activations; for what is not here nothing is rounded.
void read_input(const ConfigObject& activations, ModuleGroup& group) {
  const std::string type = activations.get_string("type", "int");
  const std::string strategy = activations.get_string("strategy", "tensor");
  const bool is_dynamic = activations.get_bool("dynamic", false);
  const bool of_rows = group.block.cols == LinearFormat::kWhole;
  if (activations.get_int("num_bits", 8) != 8) return;
  if (group.layout == "float-quantized" && type == "float") {
    const bool in_blocks = is_dynamic && strategy == "group" && !of_rows &&
                           activations.get_int("group_size", 0) == group.block.cols;
    group.has_static_input = !is_dynamic && strategy == "tensor" && of_rows;
    if (in_blocks || (is_dynamic && strategy == "token" && of_rows))
      group.input = {.code = InputFormat::Code::kE4m3, .in_blocks = in_blocks};
  } else if (group.layout == "int-quantized" && type == "int" && is_dynamic && strategy == "token" &&
             activations.get_bool("symmetric", true) && group.is_symmetric && of_rows) {
    group.input = {.code = InputFormat::Code::kI8};
  }
}

// Where the format settles what else the configuration says, that must be the same.
void check_fits(const ConfigObject& weights, const ModuleGroup& group, std::string_view type) {
  const bool packs_ints = group.layout == "pack-quantized";
  const bool is_float4 = group.layout.starts_with("nvfp4") || group.layout.starts_with("mxfp4");
  const std::string_view wanted = group.layout == "naive-quantized"               ? type
                                  : packs_ints || group.layout == "int-quantized" ? "int"
                                                                                  : "float";
  if (type != wanted) weights.fail_at("type", format_text("must be {} for {}", wanted, group.layout));
  if (packs_ints ? group.bits != 2 && group.bits != 4 && group.bits != 8 : group.bits != (is_float4 ? 4 : 8))
    weights.fail_at("num_bits", format_text("{} is not supported for {}; {}", group.bits, group.layout,
                                            packs_ints  ? "2, 4 and 8 are"
                                            : is_float4 ? "4 is"
                                                        : "8 is"));
  const std::int64_t size = group.layout.starts_with("nvfp4") ? kNvfp4Group : kMxGroup;
  if ((is_float4 || group.layout == "mxfp8-quantized") && (group.block.rows != 1 || group.block.cols != size))
    weights.fail_at("group_size", format_text("must be {} for {}", size, group.layout));
}

ModuleGroup read_group(const ConfigObject& config, const ConfigObject& weights, std::string_view layout) {
  ModuleGroup group;
  group.layout = config.get_string("format", layout);
  if (std::ranges::find(kLayouts, group.layout) == std::end(kLayouts))
    config.fail_at("format", format_text("{} is not supported; {} are", in_quotes(group.layout),
                                         join_text(kLayouts, ", ")));
  const std::string type = weights.get_string("type", "int");
  group.bits = weights.get_int("num_bits", 8);
  group.is_symmetric = weights.get_bool("symmetric", true);
  group.block = read_block(weights);
  check_fits(weights, group, type);
  // The naive form is that of its type.
  if (group.layout == "naive-quantized") group.layout = type + "-quantized";
  if (const auto activations = config.find_object("input_activations");
      activations && (group.layout == "float-quantized" || group.layout == "int-quantized"))
    read_input(*activations, group);
  const std::string order = weights.get_string("actorder", "");
  group.is_ordered = order == "group" || order == "dynamic";
  const std::vector<std::string> targets = config.get_strings("targets");
  group.targets_class = std::ranges::find(targets, kClassOfAll) != targets.end();
  group.targets = ModuleList(config, "targets");
  return group;
}

// Signed values of 8 bits as codes, each plus 128; packed ones have their own offset already.
WeightGroup take_codes(const StoredLinear& linear, const ModuleGroup& module) {
  const std::int64_t rows = linear.rows(), cols = linear.cols();
  WeightTensorPtr codes;
  if (module.layout == "pack-quantized") {
    const Packing packing = Packing::words(module.bits);
    codes = unpacked(linear.take(kPacked, kI32Types, {rows, packing.num_words(cols)}), packing, rows, cols);
  } else {
    codes = unpacked(linear.take("weight", kI8Types, {rows, cols}), Packing::bytes(128), rows, cols);
  }
  return linear.group_of({{WeightPart::kWeight, std::move(codes)}}, {.code = CodeType::kInt,
                                                                     .bits = module.bits,
                                                                     .code_offset = 1 << (module.bits - 1),
                                                                     .block_rows = module.block.rows,
                                                                     .block_cols = module.block.cols});
}

// Zero points have the codes' offset; they are packed along the rows, or one byte each.
WeightTensorPtr take_zero_points(const StoredLinear& linear, const ModuleGroup& module,
                                 const WeightTensor& scales) {
  const std::int64_t rows = scales.rows(), cols = scales.cols();
  if (linear.has(kZeroPoint, kI8Types)) {
    const SafetensorsEntry& entry = *linear.find(kZeroPoint);
    const bool is_flat = cols == 1 && entry.shape.size() < 2 && entry.bytes == static_cast<std::size_t>(rows);
    const auto shape = is_flat ? entry.shape : std::vector<std::int64_t>{rows, cols};
    return unpacked(linear.take(kZeroPoint, kI8Types, shape, {rows, cols}),
                    Packing::bytes(1 << (module.bits - 1)), rows, cols);
  }
  const Packing packing = Packing::words(module.bits, /*along_rows=*/true);
  return unpacked(linear.take(kZeroPoint, kI32Types, {packing.num_words(rows), cols}), packing, rows, cols);
}

void check_stored_shape(const StoredLinear& linear) {
  constexpr std::string_view kShape = "weight_shape";
  if (!linear.has(kShape)) return;
  std::vector<std::int64_t> shape;
  if (linear.has(kShape, kI64Types)) {
    shape = read_values<std::int64_t>(*linear.take(kShape, kI64Types, {2}));
  } else {
    const auto narrow = read_values<std::int32_t>(*linear.take(kShape, kI32Types, {2}));
    shape.assign(narrow.begin(), narrow.end());
  }
  if (shape[0] != linear.rows() || shape[1] != linear.cols())
    linear.fail_at(kShape, format_text("holds [{}], the configuration asks for [{}, {}]",
                                       join_text(shape, ", "), linear.rows(), linear.cols()));
}

WeightGroup take_integers(const StoredLinear& linear, const ModuleGroup& module) {
  check_stored_shape(linear);
  WeightGroup group = take_codes(linear, module);
  const auto [scales, type] = linear.take_scales("weight_scale", kFloatTypes, module.block);
  group.format.scale = type;
  group.tensors.push_back({WeightPart::kScale, scales});
  if (!module.is_symmetric) {
    group.tensors.push_back({WeightPart::kOffset, take_zero_points(linear, module, *scales)});
    group.format.offset = OffsetType::kZero;
    group.format.code_offset = 0;
  }
  if (module.is_ordered) order_columns(group, linear, kGroupIndex);
  return group;
}

// The group that names the module, or else has a regular expression for it, or is of all linear layers.
const ModuleGroup* find_group(const std::vector<ModuleGroup>& groups, const StoredLinear& linear) {
  using Match = ModuleList::Match;
  const ModuleGroup* found = nullptr;
  Match best = Match::kNone;
  for (const ModuleGroup& group : groups) {
    const Match match = group.targets.match(linear.spellings());
    if (match > best || (found == nullptr && group.targets_class)) found = &group;
    best = std::max(best, match);
  }
  return found;
}

WeightGroup take_module(const StoredLinear& linear, const ModuleGroup& module) {
  if (module.layout == "nvfp4-pack-quantized") {
    WeightGroup group = take_e2m1(linear, kPacked, kE4m3Types, kNvfp4Group);
    multiply_by_global(group, linear, "weight_global_scale", true);
    return group;
  }
  if (module.layout == "mxfp4-pack-quantized") return take_e2m1(linear, kPacked, kE8m0Types, kMxGroup);
  if (module.layout == "mxfp8-quantized") return take_e4m3(linear, "weight_scale", kE8m0Types, module.block);
  WeightGroup group = module.layout == "float-quantized"
                          ? take_e4m3(linear, "weight_scale", kFloatTypes, module.block)
                          : take_integers(linear, module);
  group.format.input = module.input;
  if (module.has_static_input) add_static_input(group, linear, "input_scale");
  return group;
}

}  // namespace

QuantizationMethod make_compressed_tensors(const ConfigObject& config) {
  const ModuleList ignored(config, "ignore");
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const auto other = config.find_object(key);
    if (other && !other->empty() && other->get_string("format", "") != "dense")
      config.fail_at(key, "is not supported");
  }
  const std::string layout = config.get_string("format", "");
  const auto described = config.find_object("config_groups");
  const auto sparsity = config.find_object("sparsity_config");
  const bool may_be_plain = config.contains("kv_cache_scheme") || (sparsity && !sparsity->empty());
  if ((!described || described->empty()) && !may_be_plain)
    config.fail_at("config_groups", "must say how modules are quantised");
  std::vector<ModuleGroup> groups;
  for (const std::string& name : described ? described->keys() : std::vector<std::string>()) {
    const auto group = described->find_object({name});
    const auto weights = group ? group->find_object("weights") : std::nullopt;
    if (weights) groups.push_back(read_group(*group, *weights, layout));
  }
  return [ignored, groups](const StoredLinear& linear) {
    const bool is_plain = ignored.contains(linear.spellings()) || linear.has("weight", kFloatTypes);
    const ModuleGroup* module = is_plain ? nullptr : find_group(groups, linear);
    return module == nullptr ? linear.take_plain() : take_module(linear, *module);
  };
}

}  // namespace quire
