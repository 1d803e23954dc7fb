#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/weight_index.h"

namespace quire {
namespace {

constexpr std::size_t kMaxIndexBytes = 100'000'000;
constexpr std::array<std::string_view, 2> kOuterPrefixes = {"model.", "transformer."};

void read_converted(const SafetensorsFile& file, const std::string& name, DType dtype, std::uint64_t begin,
                    const Tensor& dst) {
  // Small enough to be converted while still in the cache, large enough to hide the system call.
  constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
  const auto total = static_cast<std::size_t>(dst.numel());
  const std::size_t step = std::min(total, kScratchBytes / size_of(dtype));
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(step * size_of(dtype));
  auto* out = dst.data_as<std::byte>();
  for (std::size_t done = 0; done < total; done += step) {
    const std::size_t n = std::min(step, total - done);
    file.read(name, begin + done * size_of(dtype), {scratch.get(), n * size_of(dtype)});
    convert(dtype, scratch.get(), dst.dtype(), out + done * size_of(dst.dtype()), n);
  }
}

WeightTensorPtr file_tensor(const std::shared_ptr<const SafetensorsFile>& file, const std::string& name,
                            std::vector<std::int64_t> shape) {
  const DType dtype = file->tensor(name).dtype.value_or(DType::kU8);
  return make_weight_tensor(name, dtype, std::move(shape), [=](std::int64_t row, const Tensor& dst) {
    const std::uint64_t begin =
        static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(dst.dim(1)) * size_of(dtype);
    if (dst.dtype() == dtype) {
      file->read(name, begin, {dst.data_as<std::byte>(), dst.bytes()});
    } else {
      read_converted(*file, name, dtype, begin, dst);
    }
  });
}

// Why a folder without safetensors cannot be loaded.
[[noreturn]] void fail_without_weights(const std::filesystem::path& directory) {
  constexpr std::array<std::string_view, 5> kOtherFormats{".bin", ".pt", ".pth", ".ckpt", ".gguf"};
  std::error_code ec;
  if (!std::filesystem::is_directory(directory, ec)) fail("{}: no such folder", directory.string());
  for (const auto& item : std::filesystem::directory_iterator(directory, ec)) {
    const std::string extension = item.path().extension().string();
    if (std::ranges::find(kOtherFormats, extension) != kOtherFormats.end()) {
      fail("{}: only safetensors is read, and the folder holds only {} and the like", directory.string(),
           in_quotes(item.path().filename().string()));
    }
  }
  fail("{}: neither model.safetensors nor model.safetensors.index.json", directory.string());
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& directory) : directory_(directory.string()) {
  const std::filesystem::path single = directory / "model.safetensors";
  const std::filesystem::path index = directory / "model.safetensors.index.json";
  std::error_code ec;
  if (std::filesystem::exists(single, ec)) {
    add_file(single);
  } else if (std::filesystem::exists(index, ec)) {
    open_shards(index);
  } else {
    fail_without_weights(directory);
  }
}

void Checkpoint::open_shards(const std::filesystem::path& index) {
  const WeightMap shards = parse_weight_index(read_text_file(index, kMaxIndexBytes), index.string());
  std::set<std::string> names;
  std::error_code ec;
  for (const auto& [tensor, shard] : shards) {
    if (!names.insert(shard).second) continue;
    const std::filesystem::path path = index.parent_path() / shard;
    if (!std::filesystem::exists(path, ec)) {
      fail("{}: no such file, but {} says that tensor {} is in it", path.string(), index.string(),
           in_quotes(tensor));
    }
    add_file(path);
  }
  for (const auto& [tensor, shard] : shards) {
    const std::string path = (index.parent_path() / shard).string();
    const auto found = files_.find(tensor);
    if (found == files_.end() || found->second->path() != path)
      fail("{}: no tensor {}, which {} says is in it", path, in_quotes(tensor), index.string());
  }
}

void Checkpoint::add_file(const std::filesystem::path& path) {
  const auto file = std::make_shared<const SafetensorsFile>(path);
  for (const auto& item : file->tensors()) {
    const auto [position, added] = files_.emplace(item.first, file);
    if (!added)
      fail("{}: tensor {} is also in {}", path.string(), in_quotes(item.first), position->second->path());
  }
}

Checkpoint::FileMap::const_iterator Checkpoint::find(std::string_view name) const {
  const auto found = files_.find(name);
  if (found != files_.end()) return found;
  for (const std::string_view prefix : kOuterPrefixes) {
    const auto other = name.starts_with(prefix) ? files_.find(name.substr(prefix.size()))
                                                : files_.find(std::string(prefix) + std::string(name));
    if (other != files_.end()) return other;
  }
  return files_.end();
}

std::vector<float> Checkpoint::take_vector(std::string_view name, std::int64_t n) {
  const SafetensorsEntry* const entry = find_entry(name);
  std::vector<std::int64_t> shape = {n};
  if (entry != nullptr) {
    const auto size =
        std::accumulate(entry->shape.begin(), entry->shape.end(), std::int64_t{1}, std::multiplies());
    if (size == 1 || size == n) {
      shape = entry->shape;
      n = size;
    }
  }
  return read_values<float>(*take_stored(name, kFloatTypes, shape, {1, n}));
}

const SafetensorsEntry* Checkpoint::find_entry(std::string_view name) const {
  const auto found = find(name);
  return found == files_.end() ? nullptr : &found->second->tensor(found->first);
}

WeightTensorPtr Checkpoint::take_stored(std::string_view name, std::span<const std::string_view> dtypes,
                                        const std::vector<std::int64_t>& shape,
                                        std::vector<std::int64_t> view) {
  const auto found = find(name);
  if (found == files_.end()) fail("{}: the checkpoint has no tensor {}", directory_, in_quotes(name));
  const auto& [stored_name, file] = *found;
  const SafetensorsEntry& entry = file->tensor(stored_name);
  const bool is_stack =
      entry.shape.size() == 3 && shape == std::vector{entry.shape[0] * entry.shape[1], entry.shape[2]};
  if (entry.shape != shape && !is_stack) {
    fail("{}: tensor {} has shape [{}], the configuration asks for [{}]", file->path(),
         in_quotes(stored_name), join_text(entry.shape, ", "), join_text(shape, ", "));
  }
  if (std::ranges::find(dtypes, entry.dtype_name) == dtypes.end()) {
    const std::string others = join_text(dtypes.first(dtypes.size() - 1), ", ");
    fail("{}: tensor {} has dtype {}; it must be {}{}{}", file->path(), in_quotes(stored_name),
         entry.dtype_name, others, others.empty() ? "" : " or ", dtypes.back());
  }
  claimed_.insert(stored_name);
  return file_tensor(file, stored_name, std::move(view));
}

std::vector<std::string> Checkpoint::unclaimed() const {
  std::vector<std::string> names;
  for (const auto& item : files_)
    if (!claimed_.contains(item.first)) names.push_back(item.first);
  return names;
}

std::uint64_t Checkpoint::bytes() const {
  std::uint64_t total = 0;
  for (const auto& [name, file] : files_) total += file->tensor(name).bytes;
  return total;
}

std::optional<DType> Checkpoint::dtype() const {
  std::map<DType, std::uint64_t> bytes;
  for (const auto& [name, file] : files_) {
    const SafetensorsEntry& entry = file->tensor(name);
    if (std::ranges::find(kFloatTypes, entry.dtype_name) != std::end(kFloatTypes))
      bytes[entry.dtype.value()] += entry.bytes;
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& type) { return type.second; });
  return most == bytes.end() ? std::nullopt : std::optional(most->first);
}

}  // namespace quire
