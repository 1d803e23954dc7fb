#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "ops/quantize.h"

namespace quire {

struct QuantizeOptions {
  std::string model;  // a checkpoint directory of plain weights
  std::filesystem::path out;
  Quantization format = Quantization::kFp8;
  bool quantize_head = false;  // too
  std::uint64_t shard_bytes = 5'000'000'000;
  std::function<void(std::size_t done, std::size_t total)> on_tensor = {};
  std::function<bool()> stopped = [] { return false; };  // polled
};

struct QuantizedSize {
  int num_matrices = 0;                       // that became codes
  std::uint64_t bytes_before = 0, bytes = 0;  // of all tensors
};

// Where a directory is to be written, resolved. Error where it has files, is none, or cannot be made.
std::filesystem::path output_directory(const std::filesystem::path& out);

// Makes a checkpoint directory of a model's, whose matrices are the codes that EngineConfig::quantization
// makes of them as they are loaded. All else is copied. It is written as OUT.incomplete and renamed when it
// is whole: nothing stays of one that fails or is stopped. Error where OUT has files, where MODEL is
// quantised, and where a matrix has no such form in a checkpoint. Throws Stopped.
QuantizedSize quantize_model(const QuantizeOptions& options);

}  // namespace quire
