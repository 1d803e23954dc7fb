#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <future>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

constexpr std::uint64_t kAlignment = 8;

void check_written(const std::ofstream& file, const std::filesystem::path& path) {
  if (!file) fail("{}: cannot be written: {}", path.string(), std::generic_category().message(errno));
}

// Its length, and the header.
std::string header_of(std::span<const TensorToWrite> tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t end = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t begin = std::exchange(end, end + tensor.bytes());
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const std::uint64_t length = text.size();  // little-endian, as this machine is
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

// Some rows at a time, of which each thread makes some.
void write_tensor(std::ofstream& file, const TensorToWrite& tensor, const std::function<void()>& on_piece) {
  constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
  const auto step = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / tensor.row_bytes));
  std::vector<std::byte> piece;
  for (std::int64_t row = 0; row < tensor.rows; row += step) {
    const std::int64_t count = std::min(step, tensor.rows - row);
    const std::int64_t share = (count + usable_cores() - 1) / usable_cores();
    piece.resize(static_cast<std::size_t>(count) * tensor.row_bytes);
    std::vector<std::future<void>> parts;
    for (std::int64_t i = 0; i < count; i += share)
      parts.push_back(std::async(std::launch::async, tensor.make, row + i, std::min(share, count - i),
                                 &piece[static_cast<std::size_t>(i) * tensor.row_bytes]));
    for (std::future<void>& part : parts) part.get();
    file.write(reinterpret_cast<const char*>(piece.data()), std::ssize(piece));
    on_piece();
  }
}

}  // namespace

void write_safetensors(const std::filesystem::path& directory, std::vector<TensorToWrite> tensors,
                       std::uint64_t shard_bytes, const std::function<void(std::size_t done)>& on_piece) {
  // Elements are aligned, as safetensors' own writer has them: what would move the next tensor comes last.
  std::ranges::stable_sort(tensors, std::greater(), [](const TensorToWrite& tensor) {
    const std::uint64_t bytes = tensor.bytes() | kAlignment;
    return bytes & (~bytes + 1);
  });
  std::vector<std::size_t> ends;  // of shards
  std::uint64_t bytes = 0, total_bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (bytes > 0 && bytes + tensors[i].bytes() > shard_bytes) {
      ends.push_back(i);
      bytes = 0;
    }
    bytes += tensors[i].bytes();
    total_bytes += tensors[i].bytes();
  }
  ends.push_back(tensors.size());
  Json places = Json::object();
  for (std::size_t shard = 0, done = 0; shard < ends.size(); ++shard) {
    const std::string name = ends.size() == 1
                                 ? "model.safetensors"
                                 : format_text("model-{:05}-of-{:05}.safetensors", shard + 1, ends.size());
    std::ofstream file(directory / name, std::ios::binary);
    file << header_of(std::span(tensors).subspan(done, ends[shard] - done));
    for (; done < ends[shard]; ++done) {
      places[tensors[done].name] = name;
      write_tensor(file, tensors[done], [&] {
        check_written(file, directory / name);
        on_piece(done);
      });
    }
    file.close();
    check_written(file, directory / name);
    on_piece(done);
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(places)}};
  if (ends.size() > 1) write_text_file(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  check_written(file, path);
}

}  // namespace quire
