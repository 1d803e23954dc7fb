#include "inspect/checksums.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <sstream>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/read_only_file.h"
#include "checkpoint/safetensors_writer.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr std::size_t kMaxManifest = std::size_t{16} << 20;

std::string checksum(const fs::path& path) {
  const ReadOnlyFile file(path);
  Digest sum(Digest::Kind::kSha256);
  std::string piece(kPiece, 0);
  for (std::uint64_t at = 0; at < file.size(); at += kPiece) {
    piece.resize(std::min<std::uint64_t>(kPiece, file.size() - at));
    file.read(at, std::as_writable_bytes(std::span(piece)), "the file");
    sum.add(piece);
  }
  return sum.hex();
}

// Names of the files that a manifest is to have, in order.
std::vector<std::string> file_names(const fs::path& model) {
  if (!fs::is_directory(model)) return {model.filename().string()};
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(model)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && !name.starts_with('.') && name != kManifestName) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

fs::path folder_of(const fs::path& model) { return fs::is_directory(model) ? model : model.parent_path(); }

// A checksum by each name. A name is no path: nothing outside the folder is read.
std::map<std::string, std::string> read_manifest(const fs::path& path) {
  std::istringstream text(read_text_file(path, kMaxManifest));
  std::map<std::string, std::string> sums;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    const std::string digits = line.substr(0, 64), name = line.substr(std::min<std::size_t>(66, line.size()));
    const bool is_sum = digits.size() == 64 && digits.find_first_not_of("0123456789abcdef") == digits.npos;
    if (!is_sum || line.substr(64, 2) != "  " || name.empty() || name.find('/') != name.npos || name == "..")
      fail("{}, line {}: {} is no SHA-256, two blanks and a file's name", path.string(), number,
           in_quotes(line));
    if (!sums.emplace(name, digits).second)
      fail("{}, line {}: {} stands there twice", path.string(), number, in_quotes(name));
  }
  if (sums.empty()) fail("{}: it names no file", path.string());
  return sums;
}

}  // namespace

fs::path manifest_path(const fs::path& model) {
  return fs::is_directory(model) ? model / kManifestName : fs::path(model.string() + ".sha256");
}

std::size_t write_checksums(const fs::path& model) {
  const std::vector<std::string> names = file_names(model);
  if (names.empty()) fail("{}: there is no file", model.string());
  std::string text;
  for (const std::string& name : names) {
    if (name.find('\n') != name.npos) fail("{}: the name {} has two lines", model.string(), in_quotes(name));
    text += checksum(folder_of(model) / name) + "  " + name + "\n";
  }
  write_text_file(manifest_path(model), text);
  return names.size();
}

std::vector<std::string> check_checksums(const fs::path& model) {
  const fs::path manifest = manifest_path(model);
  if (!fs::exists(manifest))
    fail("{}: there is none; `quire checksum {}` writes it", manifest.string(), model.string());
  const std::map<std::string, std::string> sums = read_manifest(manifest);
  std::vector<std::string> wrong;
  for (const auto& [name, sum] : sums) {
    const fs::path path = folder_of(model) / name;
    if (!fs::exists(path)) {
      wrong.push_back(format_text("{}: it is gone", path.string()));
    } else if (const std::string found = checksum(path); found != sum) {
      wrong.push_back(format_text("{}: its SHA-256 is {}, and was {}", path.string(), found, sum));
    }
  }
  for (const std::string& name : file_names(model))
    if (!sums.contains(name))
      wrong.push_back(format_text("{}: the manifest has no such file", (folder_of(model) / name).string()));
  return wrong;
}

}  // namespace quire
