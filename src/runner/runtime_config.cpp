#include "runner/runtime_config.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "ops/sharding.h"

namespace quire {
namespace {

constexpr std::size_t kMaxAutoCacheBytes = std::size_t{4} << 30;

DType resolve_dtype(const std::string& name, const ModelConfig& model, const Backend& backend) {
  DType dtype = DType::kF32;
  if (name == "auto") {
    dtype = model.dtype().value_or(DType::kF32);
  } else if (name == "float32") {
    dtype = DType::kF32;
  } else if (name == "bfloat16") {
    dtype = DType::kBF16;
  } else if (name == "float16") {
    dtype = DType::kF16;
  } else {
    fail("dtype \"{}\" is not known; use auto, float32, bfloat16 or float16", name);
  }
  if (!backend.supports(dtype)) fail("dtype {} is not supported on {}", to_string(dtype), backend.name());
  return dtype;
}

int in_range(const char* flag, int value, int low, int high) {
  if (value < low || value > high) fail("{} is {}; it must be from {} to {}", flag, value, low, high);
  return value;
}

// Blocks that the memory asked for holds.
std::size_t affordable_blocks(const RuntimeConfig& runtime, std::size_t memory, const Backend& backend) {
  if (memory > backend.total_memory()) {
    fail("kv-cache-memory is {} bytes; {} has {}", memory, backend.name(), backend.total_memory());
  }
  const std::size_t bytes = memory == 0 ? std::min(kMaxAutoCacheBytes, backend.total_memory() / 2) : memory;
  const std::size_t blocks = bytes / runtime.block_bytes();
  if (blocks == 0) {
    fail("kv-cache-memory of {} bytes holds no block; one takes {} bytes", bytes, runtime.block_bytes());
  }
  // Slot numbers (block * block_size + offset) are int32.
  return std::min(blocks, static_cast<std::size_t>(std::numeric_limits<int>::max() / runtime.block_size));
}

}  // namespace

std::size_t RuntimeConfig::block_bytes() const {
  return std::size_t{2} * spec.num_layers * num_kv_heads * block_size * spec.head_dim * size_of(dtype);
}

int RuntimeConfig::max_blocks_per_sequence() const { return (max_model_len + block_size - 1) / block_size; }

RuntimeConfig resolve_config(const EngineConfig& config, const ModelConfig& model, const Backend& backend,
                             const Communicator& comm) {
  if (const auto method = model.quantization()) {
    fail("config.json: quantization_config {} is not supported; only plain float weights are",
         in_quotes(*method));
  }
  RuntimeConfig runtime;
  runtime.spec = find_model_family(model.architecture()).describe(model);
  if (runtime.spec.max_model_len < 2) {
    fail("config.json: a context of {} tokens; it must have at least 2", runtime.spec.max_model_len);
  }
  runtime.dtype = resolve_dtype(config.dtype, model, backend);
  runtime.max_num_seqs = in_range("max-num-seqs", config.max_num_seqs, 1, 1 << 16);
  runtime.max_num_batched_tokens =
      in_range("max-num-batched-tokens", config.max_num_batched_tokens, 1, 1 << 20);
  runtime.block_size = in_range("block-size", config.block_size, 8, 256);
  if ((runtime.block_size & (runtime.block_size - 1)) != 0) {
    fail("block-size is {}; it must be a power of two from 8 to 256", runtime.block_size);
  }
  runtime.num_kv_heads = local_kv_heads(runtime.spec.num_kv_heads, comm);
  const std::size_t blocks = affordable_blocks(runtime, config.kv_cache_memory, backend);
  // Unless it is asked for, nothing is prepared for sequences that the cache could not hold.
  const auto cached_tokens = static_cast<int>(blocks) * runtime.block_size;
  runtime.max_model_len = config.max_model_len == 0 ? std::min(runtime.spec.max_model_len, cached_tokens)
                                                    : in_range("max-model-len", config.max_model_len, 2,
                                                               runtime.spec.max_model_len);
  const std::size_t wanted =
      static_cast<std::size_t>(runtime.max_num_seqs) * runtime.max_blocks_per_sequence();
  runtime.num_blocks = static_cast<int>(config.kv_cache_memory == 0 ? std::min(blocks, wanted) : blocks);
  return runtime;
}

}  // namespace quire
