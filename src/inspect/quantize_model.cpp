#include "inspect/quantize_model.h"

#include <algorithm>
#include <array>

#include "backends/registry.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization/quantized_weights.h"
#include "checkpoint/quantization/written_linear.h"
#include "engine/model_files.h"
#include "parallel/lone_rank.h"
#include "runner/memory_plan.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeightEnding = ".weight";

// Names and columns of the matrices that become codes.
std::map<std::string, std::int64_t> chosen_tensors(const QuantizeOptions& options, const ModelConfig& config,
                                                   Checkpoint& file) {
  const auto backend = make_backend({.device = "cpu"});
  AbsentRanks comm(0, 1);
  auto chosen = quantized_tensors(*backend, comm, config, file, options.format, /*quantize_head=*/false);
  if (options.quantize_head) {
    auto all = quantized_tensors(*backend, comm, config, file, options.format, true);
    std::erase_if(all, [](const auto& item) { return !item.first.ends_with("lm_head.weight"); });
    if (all.empty())
      fail("quantize-head: the head is the embedding, of which vLLM and transformers read no codes");
    chosen.merge(all);
  }
  for (const auto& [name, cols] : chosen)
    if (const auto& shape = file.find_entry(name)->shape; shape.size() > 2 || shape.back() != cols)
      fail(
          "tensor {} is transposed or several matrices, of which vLLM and transformers read no codes; "
          "--quantization makes them as the model is loaded",
          in_quotes(name));
  return chosen;
}

// A tensor as it is.
TensorToWrite copied(Checkpoint& file, const std::string& name) {
  const SafetensorsEntry& entry = *file.find_entry(name);
  const auto count = static_cast<std::int64_t>(entry.bytes / (entry.dtype ? size_of(*entry.dtype) : 1));
  return written_as_is(
      name, entry.dtype_name, entry.shape,
      file.take_stored(name, std::array<std::string_view, 1>{entry.dtype_name}, entry.shape, {count, 1}));
}

// The matrices of a chosen tensor: itself, or of experts that are stacked, [experts, rows, columns], each as
// a module of its own.
std::vector<WeightGroup> matrices_of(Checkpoint& file, const std::string& name) {
  const std::vector<std::int64_t> shape = file.find_entry(name)->shape;
  const std::size_t last = name.rfind('.');
  if (shape.size() == 2) return {file.take_linear(name.substr(0, last), shape[0], shape[1])};
  std::vector<std::string> parts = {".gate_proj.weight", ".up_proj.weight"};
  if (name.ends_with(".down_proj")) parts = {".down_proj.weight"};
  const std::int64_t rows = shape[1] / std::ssize(parts);
  const WeightTensorPtr all = file.take(name, {shape[0] * shape[1], shape[2]});
  std::vector<WeightGroup> matrices;
  for (std::int64_t i = 0; i < shape[0] * std::ssize(parts); ++i) {
    const std::string module = name.substr(0, last + 1) + std::to_string(i / std::ssize(parts));
    const WeightTensorPtr own = slice_rows(all, i * rows, rows);
    matrices.push_back(WeightGroup::plain(make_weight_tensor(
        module + parts[static_cast<std::size_t>(i) % parts.size()], own->dtype(), {rows, shape[2]},
        [own](std::int64_t row, const Tensor& dst) { own->read_rows(row, dst); })));
  }
  return matrices;
}

// How the modules of a part that Quire leaves out are named to readers, which spell them in ways of their
// own: by the part's component, anywhere. Empty: the tensor is of no such part.
std::string left_out_part(const std::string& name, const ModelConfig& config, Quantization format) {
  for (const std::string& beginning : find_model_family(config.architecture()).ignorable.beginnings) {
    if (!name.starts_with(beginning)) continue;
    const std::string path = beginning.substr(0, beginning.size() - 1);
    const std::string component = path.substr(path.rfind('.') + 1);
    return format == Quantization::kNf4 ? component : "re:.*" + component + ".*";
  }
  return {};
}

struct Contents {
  std::vector<TensorToWrite> tensors;
  OrderedJson quantization;
  QuantizedSize size;
};

Contents contents_of(const QuantizeOptions& options, const ModelConfig& config, Checkpoint& file) {
  Contents contents;
  contents.size.bytes_before = file.bytes();
  const std::vector<std::string> names = file.unclaimed();  // all there are
  const auto chosen = chosen_tensors(options, config, file);
  std::vector<std::string> plain_modules;
  if (!options.quantize_head) plain_modules.emplace_back("lm_head");  // which may have no tensor
  std::string dtype;
  for (const std::string& name : names) {
    const SafetensorsEntry& entry = *file.find_entry(name);
    const std::string prefix = name.substr(0, name.rfind('.'));
    if (!chosen.contains(name)) {
      contents.tensors.push_back(copied(file, name));
      if (const std::string part = left_out_part(name, config, options.format); !part.empty()) {
        if (std::ranges::find(plain_modules, part) == plain_modules.end()) plain_modules.push_back(part);
      } else if (entry.shape.size() > 1 && name.ends_with(kWeightEnding) && prefix != "lm_head") {
        plain_modules.push_back(prefix);
      }
      continue;
    }
    dtype = entry.dtype_name;
    for (const WeightGroup& matrix : matrices_of(file, name)) {
      ++contents.size.num_matrices;
      for (TensorToWrite& tensor : written_linear(quantized(matrix, options.format), options.format, dtype))
        contents.tensors.push_back(std::move(tensor));
    }
  }
  for (const TensorToWrite& tensor : contents.tensors) contents.size.bytes += tensor.bytes();
  contents.quantization = written_config(options.format, plain_modules, dtype);
  return contents;
}

// Tokenizer, chat template, defaults of generation, licence.
void copy_others(const fs::path& from, const fs::path& to) {
  constexpr std::array<std::string_view, 7> kEndings = {".json",     ".jinja", ".txt", ".model",
                                                        ".tiktoken", ".py",    ""};
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "config.json" && !name.ends_with(".index.json") &&
        std::ranges::find(kEndings, entry.path().extension().string()) != kEndings.end())
      fs::copy_file(entry.path(), to / name);
  }
  constexpr std::string_view kTemplates = "additional_chat_templates";
  if (fs::is_directory(from / kTemplates)) fs::copy(from / kTemplates, to / kTemplates);
}

void write_all(const QuantizeOptions& options, const Contents& contents, const fs::path& from,
               const fs::path& to) {
  if (const auto free = fs::space(to).available; free < contents.size.bytes)
    fail("{} bytes are needed, {} are free", contents.size.bytes, free);
  write_safetensors(to, contents.tensors, options.shard_bytes, [&](std::size_t done) {
    if (options.stopped()) throw Stopped();
    if (options.on_tensor) options.on_tensor(done, contents.tensors.size());
  });
  copy_others(from, to);
  constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
  OrderedJson config =
      parse_ordered_json(read_text_file(from / "config.json", kMaxConfigBytes), "config.json");
  config["quantization_config"] = contents.quantization;
  write_text_file(to / "config.json", config.dump(2) + "\n");
}

}  // namespace

fs::path output_directory(const fs::path& out) {
  if (out.empty()) fail("OUT is empty; it must be a directory to write");
  std::error_code ec;
  const fs::path resolved =
      fs::weakly_canonical(fs::absolute(out.has_filename() ? out : out.parent_path()), ec);
  const fs::path path = ec ? out : resolved;
  if (!fs::exists(path, ec)) {
    if (fs::is_symlink(path, ec)) fail("{}: a symbolic link to nothing", path.string());
    if (!fs::is_directory(path.parent_path(), ec)) fail("{}: no such directory", path.parent_path().string());
  } else if (!fs::is_directory(path, ec)) {
    fail("{}: no directory", path.string());
  } else if (!fs::is_empty(path, ec)) {
    fail("{}: is there already", path.string());
  }
  return path;
}

QuantizedSize quantize_model(const QuantizeOptions& options) {
  if (const fs::path gguf = find_gguf(options.model); !gguf.empty())
    fail("{}: a GGUF file has a form of its own; what is quantised is a checkpoint folder", gguf.string());
  const fs::path directory = find_model_directory(options.model);
  const ModelConfig config = ModelConfig::from_file(directory / "config.json");
  if (find_quantization(config, directory) != nullptr)
    fail("{}: its quantization_config says that the weights are quantised already", directory.string());
  Checkpoint file(directory);
  const Contents contents = contents_of(options, config, file);

  const fs::path out = output_directory(options.out);
  const fs::path unfinished = out.string() + ".incomplete";
  std::error_code ec;
  if (!fs::create_directory(unfinished, ec))
    fail("{}: {}", unfinished.string(),
         ec ? ec.message() : "is there: another run writes it, or was killed; remove it then");
  try {
    if (fs::exists(out)) {  // and can be replaced: not so where something is mounted
      fs::remove(out);
      fs::create_directory(out);
    }
    write_all(options, contents, directory, unfinished);
    fs::rename(unfinished, out);  // also onto an empty folder
  } catch (const std::exception& e) {
    fs::remove_all(unfinished, ec);
    if (dynamic_cast<const Stopped*>(&e) != nullptr) throw;
    fail("{}; nothing is left of {}", e.what(), out.string());
  }
  return contents.size;
}

}  // namespace quire
