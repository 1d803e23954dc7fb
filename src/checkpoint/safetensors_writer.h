#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace quire {

// A tensor of a checkpoint that is to be written.
struct TensorToWrite {
  std::string name;
  std::string dtype;  // as files write it: "BF16", "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::int64_t rows = 0;  // in which its bytes are made
  std::size_t row_bytes = 0;
  // Makes the bytes of rows [row, row + count). Thread contract: several threads at once.
  std::function<void(std::int64_t row, std::int64_t count, std::byte* out)> make;

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows) * row_bytes; }
};

// Writes model.safetensors into a folder; or, of more than shard_bytes, shards of at most so many (or of one
// tensor) and model.safetensors.index.json. The bytes are made as they are written, some rows at a time.
// on_piece: how many tensors are done; what it throws comes out. Error where the disk does not take it.
void write_safetensors(const std::filesystem::path& directory, std::vector<TensorToWrite> tensors,
                       std::uint64_t shard_bytes, const std::function<void(std::size_t done)>& on_piece);

// Writes a whole file; Error as above.
void write_text_file(const std::filesystem::path& path, const std::string& text);

}  // namespace quire
