#include "hub/hub_cache.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <map>
#include <random>
#include <ranges>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/gguf/gguf_name.h"
#include "checkpoint/weight_index.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIdBytes = 96;  // huggingface_hub's
constexpr std::size_t kMaxListBytes = 100'000'000;

// Letters, digits and _; within also - and dots.
bool is_id_part(std::string_view part) {
  constexpr std::string_view kInside = "-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const auto at_end = [&](char c) { return kInside.find(c, 2) != std::string_view::npos; };
  return !part.empty() && at_end(part.front()) && at_end(part.back()) &&
         part.find_first_not_of(kInside) == std::string_view::npos;
}

// A name beside a file for what shall replace it. By chance, not by process: containers that share a cache
// may have the same process ids.
fs::path temporary_beside(fs::path path) {
  std::random_device random;
  path += format_text(".{:08x}.tmp", random());
  return path;
}

// The files of huggingface_hub's own list of a commit's, where it left one that this user can read.
std::vector<std::string> listed_files(const fs::path& list) try {
  std::vector<std::string> names;
  std::error_code ec;
  if (!fs::exists(list, ec)) return names;
  const Json object = read_json_file(list, {.max_bytes = kMaxListBytes});
  const auto files = object.find("files");
  if (files == object.end() || !files->is_object()) return names;
  for (const auto& file : files->items()) names.push_back(file.key());
  return names;
} catch (const Error& e) {
  log_info("{}; it is done without", e.what());
  return {};
}

constexpr std::string_view kEnding = ".gguf";
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool ends_in(std::string_view stem, std::string_view quantization) {
  if (stem.size() < quantization.size()) return false;
  const std::size_t begin = stem.size() - quantization.size();
  return std::ranges::equal(quantization, stem.substr(begin), {}, lower, lower) &&
         (begin == 0 || std::isalnum(static_cast<unsigned char>(stem[begin - 1])) == 0);
}

}  // namespace

bool is_hub_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  const bool parts_are = slash == std::string_view::npos
                             ? is_id_part(text)
                             : is_id_part(text.substr(0, slash)) && is_id_part(text.substr(slash + 1));
  return parts_are && text.size() <= kMaxIdBytes && text.find("--") == std::string_view::npos &&
         text.find("..") == std::string_view::npos && !text.ends_with(".git");
}

bool is_safe_path(std::string_view path) {
  const auto control = [](unsigned char c) { return c < ' ' || c == 0x7f || c == '\\'; };
  if (path.empty() || std::ranges::any_of(path, control)) return false;
  return std::ranges::none_of(std::views::split(path, '/'), [](const auto& part) {
    const std::string_view segment(part.begin(), part.end());
    return segment.empty() || segment == "." || segment == "..";
  });
}

bool is_hash(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

HubCache::HubCache(const fs::path& cache, std::string_view id) {
  std::string folder = "models--" + std::string(id);
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  model_ = cache / folder;
  locks_ = cache / ".locks" / folder;
}

std::optional<std::string> HubCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  const fs::path ref = model_ / "refs" / revision;
  std::error_code ec;
  if (!fs::exists(ref, ec)) return std::nullopt;
  std::string commit = read_text_file(ref, 1024);
  while (commit.ends_with('\n')) commit.pop_back();
  return is_commit(commit) ? std::optional(commit) : std::nullopt;  // it may be empty after a loss of power
}

void HubCache::set_commit(const std::string& revision, const std::string& commit) const {
  // The cache may be read-only: what stands there is not written again.
  if (commit_of(revision) == commit) return;
  const fs::path ref = model_ / "refs" / revision;
  const fs::path temporary = temporary_beside(ref);  // so that nobody sees a part of it
  std::error_code ec;
  fs::create_directories(ref.parent_path(), ec);
  std::ofstream file(temporary, std::ios::binary);
  file << commit;
  file.close();
  if (file) fs::rename(temporary, ref, ec);
  if (file && !ec) return;
  fs::remove(temporary, ec);
  fail("{}: cannot be written", ref.string());
}

std::optional<std::string> HubCache::missing_file(const std::string& commit, bool with_weights) const {
  if (!has(commit, kConfigFile)) return kConfigFile;
  std::vector<std::string> files = text_files(listed_files(model_ / "trees" / (commit + ".json")));
  if (with_weights && !has(commit, kWeightFile)) {
    if (!has(commit, kIndexFile)) return kWeightFile;
    for (const std::string& shard : shards_of(snapshot(commit) / kIndexFile)) files.push_back(shard);
  }
  const auto missing =
      std::ranges::find_if(files, [&](const std::string& file) { return !has(commit, file); });
  return missing == files.end() ? std::nullopt : std::optional(*missing);
}

std::vector<std::string> HubCache::find_gguf(const std::string& commit, const std::string& wanted) const {
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& item : fs::recursive_directory_iterator(snapshot(commit), ec))
    if (item.is_regular_file(ec)) names.push_back(item.path().lexically_relative(snapshot(commit)).string());
  std::vector<std::string> found = choose_gguf(names, wanted);
  if (!found.empty() && found.size() != num_gguf_parts(found.front())) found.clear();
  return found;
}

bool HubCache::has(const std::string& commit, const std::string& file) const {
  std::error_code ec;
  return fs::exists(snapshot(commit) / file, ec);  // false also for a link that leads nowhere
}

void HubCache::link(const std::string& commit, const std::string& file, const std::string& etag) const {
  const fs::path link = snapshot(commit) / file;
  const fs::path temporary = temporary_beside(link);
  std::error_code ec;
  fs::create_directories(link.parent_path(), ec);
  // Relative, so that the cache can be moved as a whole.
  fs::create_symlink(blob(etag).lexically_relative(link.parent_path()), temporary, ec);
  if (!ec) fs::rename(temporary, link, ec);  // over a link that leads nowhere
  if (!ec) return;
  const std::string reason = ec.message();
  fs::remove(temporary, ec);
  fail("{}: cannot link to {}: {}", link.string(), blob(etag).string(), reason);
}

std::vector<std::string> text_files(const std::vector<std::string>& files) {
  constexpr std::array<std::string_view, 7> kNames{
      kConfigFile,         "generation_config.json", "hf_quant_config.json",
      "tokenizer.json",    "tokenizer_config.json",  "chat_template.jinja",
      "chat_template.json"};
  constexpr std::string_view kTemplates = "additional_chat_templates/";
  std::vector<std::string> wanted;
  for (const std::string& file : files) {
    const bool is_template = file.starts_with(kTemplates) && file.ends_with(".jinja") &&
                             file.find('/', kTemplates.size()) == std::string::npos;
    if (is_template || std::ranges::find(kNames, file) != kNames.end()) wanted.push_back(file);
  }
  return wanted;
}

std::vector<std::string> shards_of(const fs::path& index) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] :
       parse_weight_index(read_text_file(index, kMaxListBytes), index.string())) {
    if (!is_safe_path(shard) || !shard.ends_with(".safetensors"))
      fail("{}: {} is no name of a shard", index.string(), in_quotes(shard));
    shards.insert(shard);
  }
  return {shards.begin(), shards.end()};
}

std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const std::string& wanted) {
  std::map<std::pair<std::string_view, int>, std::set<std::string>> found;  // by stem and number of parts
  const GgufName asked = parse_gguf_name(wanted);
  const bool is_file = std::ranges::find(files, wanted) != files.end();
  for (const std::string& file : files) {
    if (!file.ends_with(kEnding)) continue;
    const auto [stem, part, count] = parse_gguf_name(file);
    const std::string_view name = stem.substr(stem.rfind('/') + 1);
    const bool matches = is_file ? wanted.ends_with(kEnding) && stem == asked.stem && count == asked.count
                                 : !name.starts_with("mmproj") && ends_in(stem, wanted);
    if (matches) found[{stem, count}].insert(file);
  }
  if (found.empty()) return {};
  if (found.size() > 1) {
    std::vector<std::string> names;
    for (const auto& item : found) names.push_back(*item.second.begin());
    fail("{} may be {}; name one of them", in_quotes(wanted), join_text(names, " or "));
  }
  const std::set<std::string>& parts = found.begin()->second;
  return {parts.begin(), parts.end()};
}

std::size_t num_gguf_parts(const std::string& file) {
  return static_cast<std::size_t>(std::max(1, parse_gguf_name(file).count));
}

}  // namespace quire
