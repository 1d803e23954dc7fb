#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// ORG/NAME or NAME, as huggingface_hub takes them.
bool is_hub_id(std::string_view text);

// A path that stays below the folder it is relative to.
bool is_safe_path(std::string_view path);

bool is_hash(std::string_view text, std::size_t digits);  // hexadecimal ones
inline bool is_commit(std::string_view revision) { return is_hash(revision, 40); }

// The files of a model in huggingface_hub's cache, which other programs share:
//   models--ORG--NAME/blobs/ETAG              a file's bytes, named by their hash; whole, or not there
//   models--ORG--NAME/blobs/ETAG.incomplete   what has come of them
//   models--ORG--NAME/snapshots/COMMIT/NAME   a link to a blob
//   models--ORG--NAME/refs/REVISION           the commit that a branch or tag was when last asked for
//   .locks/models--ORG--NAME/ETAG.lock        held (flock) by who writes a blob
class HubCache {
 public:
  HubCache(const std::filesystem::path& cache, std::string_view id);

  std::filesystem::path blob(const std::string& etag) const { return model_ / "blobs" / etag; }
  std::filesystem::path lock(const std::string& etag) const { return locks_ / (etag + ".lock"); }
  std::filesystem::path snapshot(const std::string& commit) const { return model_ / "snapshots" / commit; }

  // A commit for itself, what refs/ has for a branch or tag.
  std::optional<std::string> commit_of(const std::string& revision) const;
  void set_commit(const std::string& revision, const std::string& commit) const;

  // The first file found to be missing from a snapshot, or nothing. Without the hub's list of files this
  // looks at configuration, weights if they are wanted, and what a list that huggingface_hub left
  // (trees/COMMIT.json) names.
  std::optional<std::string> missing_file(const std::string& commit, bool with_weights) const;

  // The names of a GGUF file in a snapshot, as choose_gguf; empty where a part of it is missing.
  std::vector<std::string> find_gguf(const std::string& commit, const std::string& wanted) const;

  bool has(const std::string& commit, const std::string& file) const;
  // Makes a snapshot's link to a whole blob.
  void link(const std::string& commit, const std::string& file, const std::string& etag) const;

 private:
  std::filesystem::path model_;
  std::filesystem::path locks_;
};

// Which of a repository's files make a model.

// The ones that Quire reads beside the weights.
std::vector<std::string> text_files(const std::vector<std::string>& files);

// The shards that a model.safetensors.index.json names, each once. Error where one cannot be a shard.
std::vector<std::string> shards_of(const std::filesystem::path& index);

// Of a repository's files the GGUF file of that name, or the one whose name ends in that quantisation
// (Q4_K_M, in any case), as llama.cpp and Ollama have it; the parts of a split one in order. Empty: there is
// none. Error where there are several.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const std::string& wanted);
// The parts that a file of such a name has in all; 1: it is not split.
std::size_t num_gguf_parts(const std::string& file);

inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kWeightFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace quire
