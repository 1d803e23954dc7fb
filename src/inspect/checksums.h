#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quire {

// SHA-256 of the files of a checkpoint, in a manifest that sha256sum reads, too: of a directory its
// kManifestName, of a single file the one with ".sha256" behind its name.
inline constexpr const char* kManifestName = "quire.sha256";

std::filesystem::path manifest_path(const std::filesystem::path& model);
// Writes it anew; returns how many files it has. Files whose names begin with a dot, the manifest and folders
// are left out. Error where a file cannot be read, or the manifest not written.
std::size_t write_checksums(const std::filesystem::path& model);
// What is wrong, a line each: files that differ, that are gone, and that the manifest lacks. Error where
// there is no manifest, or it is none.
std::vector<std::string> check_checksums(const std::filesystem::path& model);

}  // namespace quire
