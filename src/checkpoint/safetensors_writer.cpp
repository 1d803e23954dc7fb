#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <string_view>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{32} << 20;
constexpr std::size_t kHeaderAlignment = 8;

// A file that is new, and on the disk when it is finished.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path)
      : path_(path.string()), file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!file_) fail_with(errno);
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::write(file_.get(), bytes.data(), bytes.size());
      if (put < 0 && errno != EINTR) fail_with(errno);
      if (put > 0) bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
  }
  void finish() {
    if (::fsync(file_.get()) != 0) fail_with(errno);
  }

 private:
  [[noreturn]] void fail_with(int error) const {
    fail("{}: cannot be written: {}", path_, std::generic_category().message(error));
  }

  std::string path_;
  Descriptor file_;
};

std::string header_of(std::span<const TensorToWrite> tensors) {
  OrderedJson header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t end = 0;
  // Ordered JSON looks through all members to insert one by its name.
  auto& members = header.get_ref<OrderedJson::object_t&>();
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t begin = end;
    end += tensor.bytes();
    members.emplace_back(
        tensor.name,
        OrderedJson{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}});
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

class Writer {
 public:
  explicit Writer(const std::function<bool()>& stopped) : stopped_(stopped), pool_(usable_cores()) {}

  void write(NewFile& file, const TensorToWrite& tensor) {
    const auto step = static_cast<std::int64_t>(
        std::max<std::size_t>(1, kPieceBytes / std::max<std::size_t>(1, tensor.row_bytes)));
    for (std::int64_t row = 0; row < tensor.rows; row += step) {
      if (stopped_()) throw Stopped();
      const std::int64_t count = std::min(step, tensor.rows - row);
      piece_.resize(static_cast<std::size_t>(count) * tensor.row_bytes);
      make(tensor, row, count);
      file.write(piece_);
    }
  }

 private:
  // Each thread makes some of the rows.
  void make(const TensorToWrite& tensor, std::int64_t row, std::int64_t count) {
    constexpr std::int64_t kPartsPerThread = 4;
    const auto parts = std::min(count, kPartsPerThread * pool_.size());
    std::mutex mutex;
    std::exception_ptr failure;
    pool_.run(static_cast<int>(parts), [&](int part, int) {
      const std::int64_t begin = part * count / parts, end = (part + 1) * count / parts;
      try {
        tensor.make(row + begin, end - begin, &piece_[static_cast<std::size_t>(begin) * tensor.row_bytes]);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
  }

  const std::function<bool()>& stopped_;
  ThreadPool pool_;
  std::vector<std::byte> piece_;
};

// Of the tensors in their order.
std::vector<std::span<const TensorToWrite>> shards_of(std::span<const TensorToWrite> tensors,
                                                      std::uint64_t shard_bytes) {
  std::vector<std::span<const TensorToWrite>> shards;
  while (shards.empty() || !tensors.empty()) {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    while (count < tensors.size() && (count == 0 || bytes + tensors[count].bytes() <= shard_bytes))
      bytes += tensors[count++].bytes();
    shards.push_back(tensors.first(count));
    tensors = tensors.subspan(count);
  }
  return shards;
}

}  // namespace

void write_safetensors(const std::filesystem::path& directory, const std::vector<TensorToWrite>& tensors,
                       std::uint64_t shard_bytes,
                       const std::function<void(std::size_t done, std::size_t total)>& on_tensor,
                       const std::function<bool()>& stopped) {
  const auto shards = shards_of(tensors, shard_bytes);
  Writer writer(stopped);
  Json places = Json::object();
  std::uint64_t total_bytes = 0;
  std::size_t num_done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : format_text("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    const std::string header = header_of(shards[i]);
    NewFile file(directory / name);
    const std::uint64_t length = header.size();  // little-endian, as this machine is
    file.write(std::as_bytes(std::span(&length, 1)));
    file.write(std::as_bytes(std::span(header)));
    for (const TensorToWrite& tensor : shards[i]) {
      writer.write(file, tensor);
      places[tensor.name] = name;
      total_bytes += tensor.bytes();
      if (on_tensor) on_tensor(++num_done, tensors.size());
    }
    file.finish();
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", std::move(places)}};
  if (shards.size() > 1) write_file(directory / "model.safetensors.index.json", index.dump(2) + "\n");
}

void write_file(const std::filesystem::path& path, std::string_view contents) {
  NewFile file(path);
  file.write(std::as_bytes(std::span(contents)));
  file.finish();
}

}  // namespace quire
