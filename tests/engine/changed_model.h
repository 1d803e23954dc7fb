#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "engine/golden_models.h"
#include "temp_dir.h"

namespace quire::testing {

// A copy of a golden model in float32, to be changed before it is loaded.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& name) : directory_(temporary_.path() / "model") {
    std::filesystem::copy(golden_directory(name), directory_);
  }

  // Overwrites a row of a tensor.
  void set_row(const std::string& tensor, std::size_t row, const std::vector<float>& values) const {
    const std::filesystem::path path = directory_ / "model.safetensors";
    const std::size_t bytes = values.size() * sizeof(float);
    const SafetensorsEntry entry = SafetensorsFile(path).tensor(tensor);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(entry.offset + row * bytes));
    file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(bytes));
  }

  std::string directory() const { return directory_.string(); }

 private:
  TempDir temporary_;
  std::filesystem::path directory_;
};

}  // namespace quire::testing
