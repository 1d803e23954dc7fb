#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "ops/quantize.h"

namespace quire {

struct QuantizeOptions {
  std::string model;  // a checkpoint directory of plain weights; empty: the bundled model
  std::filesystem::path out;
  Quantization format = Quantization::kFp8;
  bool quantize_head = false;  // the head, too
  std::uint64_t shard_bytes = 5'000'000'000;
  std::function<void(std::size_t done, std::size_t total)> on_tensor = {};
  std::function<bool()> stopped = [] { return false; };  // polled
};

struct QuantizedSize {
  int num_matrices = 0;                       // that were made into codes
  std::uint64_t bytes_before = 0, bytes = 0;  // of all tensors
};

// Makes the model into a checkpoint directory whose matrices have the codes that EngineConfig::quantization
// makes of them as they are loaded; all else is copied. It is written under another name, OUT.incomplete,
// which it loses when it is whole: nothing stays of one that fails or is stopped. Error where OUT has files,
// where MODEL is quantised, and where a matrix has no such form in a checkpoint. Throws Stopped.
QuantizedSize quantize_model(const QuantizeOptions& options);

}  // namespace quire
