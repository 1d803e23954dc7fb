#include "inspect/quantize_model.h"

#include <algorithm>
#include <array>
#include <set>

#include "backends/registry.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization/quantized_weights.h"
#include "checkpoint/quantization/written_linear.h"
#include "engine/gguf_model.h"
#include "engine/model_files.h"
#include "parallel/absent_ranks.h"
#include "runner/memory_plan.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeightEnding = ".weight";
constexpr std::string_view kHeadName = "lm_head";

// What is beside the weights: tokenizers, chat templates, defaults of generation, licences.
bool is_copied(const fs::path& path) {
  constexpr std::array<std::string_view, 7> kEndings = {".json",     ".jinja", ".txt", ".model",
                                                        ".tiktoken", ".py",    ""};
  const std::string name = path.filename().string();
  return name != "config.json" && !name.ends_with(".index.json") &&
         std::find(kEndings.begin(), kEndings.end(), path.extension().string()) != kEndings.end();
}

void copy_files(const fs::path& from, const fs::path& to) {
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    if (entry.is_regular_file() && is_copied(entry.path()) &&
        !fs::copy_file(entry.path(), to / entry.path().filename(), ec))
      fail("{}: cannot be copied: {}", entry.path().string(), ec.message());
  }
}

// A folder under a name of its own until it is whole.
class UnfinishedFolder {
 public:
  explicit UnfinishedFolder(const fs::path& out)
      : out_(out.has_filename() ? out : out.parent_path()), path_(out_.string() + ".incomplete") {
    std::error_code ec;
    if (fs::exists(out_, ec) && !fs::is_empty(out_, ec))
      fail("{}: is there already; name a new folder", out_.string());
    if (!fs::create_directory(path_, ec))
      fail("{}: {}", path_.string(),
           ec ? ec.message() : "is there already, of a run that was killed; remove it");
  }
  ~UnfinishedFolder() {
    std::error_code ec;
    if (!finished_) fs::remove_all(path_, ec);
  }
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  const fs::path& path() const { return path_; }
  void finish() {
    std::error_code ec;
    fs::rename(path_, out_, ec);  // also onto an empty folder
    if (ec) fail("{}: cannot be renamed to {}: {}", path_.string(), out_.string(), ec.message());
    finished_ = true;
  }

 private:
  fs::path out_, path_;
  bool finished_ = false;
};

// The tensors whose matrices become codes. The embedding does not: neither library has a form for it.
std::set<std::string> chosen_tensors(const QuantizeOptions& options, const ModelConfig& config,
                                     Checkpoint& file) {
  BackendOptions device;
  device.device = "cpu";
  device.cpu_isa = "reference";
  const auto backend = make_backend(device);
  AbsentRanks comm(0, 1);
  std::map<std::string, std::int64_t> columns =
      quantized_tensors(*backend, comm, config, file, options.format, /*quantize_head=*/false);
  if (options.quantize_head) {
    const std::size_t before = columns.size();
    for (auto& item : quantized_tensors(*backend, comm, config, file, options.format, true))
      if (item.first.ends_with(std::string(kHeadName) + std::string(kWeightEnding))) columns.insert(item);
    if (columns.size() == before)
      fail(
          "quantize-head: the head is the embedding, which has no form in codes that vLLM and transformers "
          "read");
  }
  std::set<std::string> names;
  for (const auto& [name, cols] : columns) {
    if (file.find_entry(name)->shape.back() != cols)
      fail(
          "tensor {} stands transposed, of which vLLM and transformers read no codes; --quantization does "
          "the "
          "same as the model is loaded",
          in_quotes(name));
    names.insert(name);
  }
  return names;
}

// A tensor as it is.
TensorToWrite copied(Checkpoint& file, const std::string& name) {
  const SafetensorsEntry& entry = *file.find_entry(name);
  const std::size_t element = entry.dtype ? size_of(*entry.dtype) : 1;
  const auto count = static_cast<std::int64_t>(entry.bytes / element);
  const std::array<std::string_view, 1> dtype = {entry.dtype_name};
  const WeightTensorPtr tensor = file.take_stored(name, dtype, entry.shape, {count, 1});
  return {name,
          entry.dtype_name,
          entry.shape,
          count,
          element,
          [tensor](std::int64_t row, std::int64_t n, std::byte* out) {
            tensor->read_rows(row, Tensor(out, tensor->dtype(), {n, 1}));
          }};
}

std::string prefix_of(const std::string& name) { return name.substr(0, name.size() - kWeightEnding.size()); }

struct Contents {
  std::vector<TensorToWrite> tensors;
  std::vector<std::string> plain_modules;
  std::string dtype;     // of the matrices that become codes
  int num_matrices = 0;  // of those
};

Contents contents_of(const QuantizeOptions& options, const ModelConfig& config, Checkpoint& file) {
  const std::vector<std::string> names = file.unclaimed();  // all there are
  const std::set<std::string> chosen = chosen_tensors(options, config, file);
  Contents contents;
  for (const std::string& name : names) {
    const SafetensorsEntry& entry = *file.find_entry(name);
    if (!chosen.contains(name)) {
      contents.tensors.push_back(copied(file, name));
      if (entry.shape.size() > 1 && name.ends_with(kWeightEnding))
        contents.plain_modules.push_back(prefix_of(name));
      continue;
    }
    contents.dtype = entry.dtype_name;
    ++contents.num_matrices;
    const WeightGroup group =
        quantized(file.take_linear(prefix_of(name), entry.shape[0], entry.shape[1]), options.format);
    for (TensorToWrite& tensor : written_linear(group, options.format, entry.dtype_name))
      contents.tensors.push_back(std::move(tensor));
  }
  // A head that is the embedding has no tensor, and is a module all the same.
  const auto is_head = [](const std::string& name) { return name.ends_with(kHeadName); };
  if (!options.quantize_head &&
      std::none_of(contents.plain_modules.begin(), contents.plain_modules.end(), is_head))
    contents.plain_modules.emplace_back(kHeadName);
  return contents;
}

void write_config(const fs::path& from, const fs::path& to, OrderedJson quantization) {
  constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;
  OrderedJson config = parse_ordered_json(read_text_file(from, kMaxConfigBytes), from.string());
  config["quantization_config"] = std::move(quantization);
  write_file(to, config.dump(2) + "\n");
}

}  // namespace

QuantizedSize quantize_model(const QuantizeOptions& options) {
  if (const fs::path gguf = find_gguf(options.model); !gguf.empty())
    fail("{}: a GGUF file has a form of its own; what is quantised is a checkpoint folder", gguf.string());
  const fs::path directory = find_model_directory(options.model);
  const fs::path config_path = directory / "config.json";
  const ModelConfig config = ModelConfig::from_file(config_path);
  if (find_quantization(config, directory) != nullptr)
    fail("{}: quantization_config says that the weights are quantised already", config_path.string());
  Checkpoint file(directory);
  QuantizedSize size = {.bytes_before = file.bytes()};
  const Contents contents = contents_of(options, config, file);
  for (const TensorToWrite& tensor : contents.tensors) size.bytes += tensor.bytes();
  size.num_matrices = contents.num_matrices;

  UnfinishedFolder folder(options.out);
  std::error_code ec;
  if (const fs::space_info space = fs::space(folder.path(), ec); !ec && space.available < size.bytes)
    fail("{}: {} bytes are needed there, {} are free", options.out.string(), size.bytes, space.available);
  try {
    write_safetensors(folder.path(), contents.tensors, options.shard_bytes, options.on_tensor,
                      options.stopped);
    copy_files(directory, folder.path());
    write_config(config_path, folder.path() / "config.json",
                 written_config(options.format, contents.plain_modules, contents.dtype));
    folder.finish();
  } catch (const Error& e) {
    fail("{} (nothing is left of {})", e.what(), options.out.string());
  }
  return size;
}

}  // namespace quire
