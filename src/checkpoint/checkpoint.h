#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "ops/weight_source.h"

namespace quire {

// The float types of tensors, as files write them.
inline constexpr std::string_view kFloatTypes[] = {"F32", "F16", "BF16"};

// The tensors of a checkpoint folder: model.safetensors, or else the shards that
// model.safetensors.index.json names (as transformers chooses). Opening it reads and checks every header. As
// in transformers, a tensor of a shard that the index leaves out is there all the same; one that stands in
// two shards is an Error. Names and claims belong to one thread; tensors that were taken may be read from
// several, and outlive the checkpoint.
// Tensors are found with or without an outer prefix, whichever way the file spells them; the spelling asked
// for comes first.
class Checkpoint final : public WeightSource {
 public:
  explicit Checkpoint(const std::filesystem::path& directory);

  bool contains(std::string_view name) const override { return find(name) != files_.end(); }
  // Also an Error when the tensor is not of a float type. A tensor may be taken twice.
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return take_stored(name, kFloatTypes, shape, shape);
  }

  std::vector<float> take_vector(std::string_view name, std::int64_t n) override;

  // What the file says of a tensor; null: it is absent.
  const SafetensorsEntry* find_entry(std::string_view name) const;
  // Claims a tensor that has this shape and one of these types, as the file writes them, and shows its bytes
  // as the matrix `view`, of as many elements. 8-bit floats are codes, u8. Error that names the tensor else.
  WeightTensorPtr take_stored(std::string_view name, std::span<const std::string_view> dtypes,
                              const std::vector<std::int64_t>& shape, std::vector<std::int64_t> view);

  std::vector<std::string> unclaimed() const override;  // names as in the file
  std::uint64_t bytes() const;                          // of all tensors, as stored
  std::optional<DType> dtype() const;                   // the float type of most bytes; empty: there is none

 private:
  using FilePtr = std::shared_ptr<const SafetensorsFile>;
  using FileMap = std::map<std::string, FilePtr, std::less<>>;

  void open_shards(const std::filesystem::path& index);
  void add_file(const std::filesystem::path& path);
  FileMap::const_iterator find(std::string_view name) const;

  std::string directory_;
  FileMap files_;  // by tensor name
  std::set<std::string, std::less<>> claimed_;
};

}  // namespace quire
