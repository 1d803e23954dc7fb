#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config_object.h"
#include "checkpoint/read_only_file.h"

namespace quire {

// The container GGUF, versions 2 and 3 (ggml, docs/gguf.md): keys with values, tensors in blocks of elements,
// and their bytes. Everything in it is untrusted.

// How elements are stored, by the file's number for it. Other types are refused.
enum class GgufType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIq4Nl = 20,
  kIq4Xs = 23,
  kBF16 = 30,
  kMxfp4 = 39,
};

// Elements of a row stand in blocks of so many, each of so many bytes.
struct GgufBlock {
  GgufType type;
  std::string_view name;
  std::int64_t elements = 1;
  std::int64_t bytes = 0;
};
const GgufBlock& block_of(GgufType type);

struct GgufTensor {
  GgufType type = GgufType::kF32;
  std::vector<std::int64_t> shape;  // the last dimension is the one whose elements follow one another
  std::uint64_t offset = 0;         // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
  std::shared_ptr<const ReadOnlyFile> file;
};

// The keys of a file.
class GgufKeys : public ConfigObject {
 public:
  using ConfigObject::ConfigObject;

  // A list of one number for each layer counts as that number where they are all the same.
  std::optional<int> find_int(const ConfigKey& key, IntRange range = {}) const;
  int require_int(const ConfigKey& key, IntRange range = {}) const {
    return required(key, find_int(key, range));
  }
  // One number for each layer, or one for all; a Boolean counts as 0 or 1. Absent: empty.
  std::vector<int> get_layer_ints(const ConfigKey& key, int num_layers, IntRange range = {}) const;
};

// A model in one file, or in several, FILE-00001-of-00003.gguf and so on, of which any may be named; their
// keys stand in the first. The constructor checks all headers: that every tensor lies in its file, at the
// alignment, in whole blocks. It takes no memory by the file's numbers before it has found the bytes.
class GgufModel {
 public:
  using Tensors = std::map<std::string, GgufTensor, std::less<>>;

  explicit GgufModel(const std::filesystem::path& path);

  const std::string& path() const { return path_; }  // of the first file
  const GgufKeys& keys() const { return *keys_; }
  const Tensors& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;  // null: absent

 private:
  void open_part(const std::filesystem::path& path, int index, int count);

  std::string path_;
  std::optional<GgufKeys> keys_;
  Tensors tensors_;
};

}  // namespace quire
