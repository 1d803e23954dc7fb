#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/read_only_file.h"

namespace quire {

// A tensor as the header of a safetensors file describes it.
struct SafetensorsEntry {
  std::string dtype_name;      // as written in the file: "BF16", "F8_E4M3", …
  std::optional<DType> dtype;  // empty: a format that Quire has no type for
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of the first byte, from the start of the file
  std::uint64_t bytes = 0;
};

// A safetensors file, open for reading. The constructor checks the whole header, by the rules of the format's
// reference reader: sizes that agree with shapes, no holes, no overlaps, nothing missing at the end. Errors
// name file and tensor. Const members may be called from several threads.
class SafetensorsFile {
 public:
  using Entries = std::map<std::string, SafetensorsEntry, std::less<>>;

  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& path() const { return file_.path(); }
  const Entries& tensors() const { return tensors_; }
  // Error when there is no such tensor.
  const SafetensorsEntry& tensor(std::string_view name) const;

  // Reads bytes [begin, begin + dst.size()) of a tensor.
  void read(std::string_view name, std::uint64_t begin, std::span<std::byte> dst) const;

 private:
  std::string read_header(std::uint64_t file_bytes) const;

  ReadOnlyFile file_;
  Entries tensors_;
};

}  // namespace quire
