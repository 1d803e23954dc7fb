#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace quire {

// What an engine is started with; nothing changes afterwards. Names are vLLM's.
struct EngineConfig {
  std::string model;             // checkpoint directory or .gguf file; empty: the bundled model
  std::string device = "auto";   // auto (a GPU where there is one), cpu, cuda, cuda:1: the first rank's
  std::string cpu_isa = "auto";  // auto, reference, avx2, avx512, avx512_bf16, amx
  int cpu_threads = 0;           // 0: one for each core this process may use
  int tensor_parallel_size = 1;  // ranks the model is spread over
  // Seconds until a rank that gives no sign, or is waited for, is lost. A step in which nothing moves for 12
  // times as long is stuck; on a CPU, for each 256 of its tokens once more.
  double watchdog = 5;
  bool disable_custom_all_reduce = false;  // ranks on GPUs add up by NCCL alone
  std::string dtype = "auto";              // auto (the checkpoint's), float32, bfloat16, float16
  // What 16-bit weights are made into as they are loaded: none, fp8 or int8 (a scale for each row), int4 (for
  // each 128 columns) or nf4 (for each 64); the embedding and the head only with quantize_head.
  std::string quantization = "none";
  bool quantize_head = false;
  bool weight_only = false;              // products take activations as they are, whatever the format says
  int max_num_seqs = 256;                // sequences that run at once
  int max_num_batched_tokens = 0;        // tokens computed in one step; 0: 2048 on a CPU, 8192 on a GPU
  int long_prefill_token_threshold = 0;  // of one sequence in one step at most; 0: no limit
  int max_model_len = 0;                 // prompt and output of a sequence; 0: the model's
  int block_size = 16;                   // tokens in a block of the KV cache: a power of two, 8 to 256
  // What the KV cache holds: auto (numbers of dtype), fp8 or fp8_e4m3, or fp8_e5m2: codes of 8 bits with a
  // scale for each token and KV head, or those of the checkpoint. Layers that keep numbers of dtype: their
  // numbers, and sliding_window for all of those, with commas.
  std::string kv_cache_dtype = "auto";
  std::string kv_cache_dtype_skip_layers;
  // Instead of what the model's files say: a Jinja file or a template's text; whose sampling defaults hold:
  // auto (the model's), vllm (nobody's), or those of a folder; and a JSON object of some over those.
  std::string chat_template;
  std::string generation_config = "auto";
  std::string override_generation_config;
  // Bytes of each rank; 0: what max_num_seqs full sequences need, at most 4 GiB on a CPU, and on a GPU what
  // gpu_memory_utilization leaves.
  std::size_t kv_cache_memory = 0;
  // Bytes of them for fixed states, of models whose layers have some; 0: half of them, as far as they could
  // be of use.
  std::size_t state_cache_memory = 0;
  double gpu_memory_utilization = 0.9;  // share of the GPU's memory that may be taken, weights and all
  // GiB of each rank's host memory that preempted sequences' blocks may go to, where that costs less than
  // computing them again (auto), always (swap), or never (recompute).
  double swap_space = 0;
  std::string preemption_mode = "auto";
  bool enforce_eager = false;  // no recorded graphs
  bool deterministic = false;  // on a GPU too, logits are bitwise the same alone and in any batch; slower
  bool enable_prefix_caching = true;
  bool disable_jump_forward = false;  // tokens that structured outputs leave no choice of are sampled, too
  // Most likely tokens that a request may have reported of each position; 0 to 512, or -1: all.
  int max_logprobs = 20;
  std::string scheduling_policy = "fcfs";  // first come, first served; or priority: lower numbers first
  // Requests, and tokens that they count as (docs/admission.md), that may wait for their first step: while
  // others do, what would be more is refused; 0: no limit.
  int max_num_queued_reqs = 0;
  std::int64_t max_num_queued_tokens = 0;
  // Called by rank 0 as layers are loaded: how many are.
  std::function<void(std::size_t done, std::size_t total)> on_layer = {};
  // Called by every rank, any thread, as layers are loaded, and between the parts of a start; true: the
  // engine's constructor throws Stopped.
  std::function<bool()> stopped = {};
  // Where to write what the scheduler does (docs/recording.md); empty: the last of it is kept in memory.
  // Whether the ids of tokens are in it.
  std::string record;
  bool record_tokens = false;
  // After so many steps the scheduler's invariants are checked; 0: never; -1: as often as costs less than a
  // thousandth of the time.
  std::int64_t check_invariants = -1;
  std::uint64_t seed = 0;  // from which requests without a seed get theirs
};

}  // namespace quire
