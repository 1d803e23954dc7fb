#include "cli/options.h"

#include <charconv>
#include <csignal>

#include "base/error.h"
#include "base/json.h"
#include "inspect/shapes.h"

namespace quire::cli {
namespace {

// A whole number of 64 bits, which the library's own conversion lets wrap around.
std::string check_unsigned(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return text + " is no whole number from 0 to 18446744073709551615";
}

std::pair<std::int32_t, float> parse_bias(const std::string& entry) {
  const char* const end = entry.data() + entry.size();
  std::int32_t id = 0;
  float bias = 0;
  const auto [colon, id_error] = std::from_chars(entry.data(), end, id);
  if (id_error == std::errc() && colon != end && *colon == ':') {
    const auto [last, bias_error] = std::from_chars(colon + 1, end, bias);
    if (bias_error == std::errc() && last == end) return {id, bias};
  }
  fail("--logit-bias: {} is no token id and bias; give it as 123:-5", in_quotes(entry));
}

// What makes single tokens more or less likely.
void add_token_options(CLI::App& command, SamplingOptions& options) {
  command.add_option("--presence-penalty", options.given.presence_penalty,
                     "subtracted from the logits of tokens in the output (default: 0)");
  command.add_option("--frequency-penalty", options.given.frequency_penalty,
                     "the same, for each time they are in it (default: 0)");
  command.add_option("--repetition-penalty", options.repetition_penalty,
                     "over 1: tokens of prompt and output are less likely (default: the model's, or 1)");
  command.add_option("--logit-bias", options.logit_bias, "ID:BIAS, added to a token's logit (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--allowed-token-ids", options.given.allowed_token_ids, "1,2,3: no other tokens")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--bad-words", options.given.bad_words, "a text that is not generated (repeatable)")
      ->allow_extra_args(false);
}

// What ends the output, and what becomes of that.
void add_end_options(CLI::App& command, SamplingOptions& options) {
  command.add_option("--min-tokens", options.given.min_tokens,
                     "tokens before which nothing but --max-tokens ends");
  command.add_option("--stop", options.given.stop, "end before this text (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--stop-token-ids", options.given.stop_token_ids, "1,2,3: end at these tokens")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", options.given.ignore_eos, "go on after the end-of-sequence token");
  command.add_flag("--include-stop-str-in-output", options.given.include_stop_str_in_output,
                   "end after the stop string or token, not before it");
  command.add_flag("--no-skip-special-tokens", options.keep_special_tokens,
                   "special tokens have their text, too");
}

// What computes, and in which numbers.
void add_device_options(CLI::App& command, EngineConfig& config) {
  add_shown_option(command, "--device", config.device,
                   "auto (a GPU where there is one), cpu, cuda or cuda:N");
  add_shown_option(command, "--cpu-isa", config.cpu_isa,
                   "instruction set of the CPU kernels: auto, reference, avx2, avx512, avx512_bf16 or amx");
  command.add_option("--cpu-threads", config.cpu_threads, "threads of the CPU kernels (default: one a core)");
  add_shown_option(command, "--tensor-parallel-size", config.tensor_parallel_size,
                   "ranks that the model is spread over: threads, or under `mpirun -np N` processes");
  add_shown_option(command, "--watchdog", config.watchdog,
                   "seconds until a rank is lost: a process that gives no sign of life, or a GPU that others "
                   "wait for")
      ->check(CLI::Range(0.5, 3600.0));
  command.add_flag("--disable-custom-all-reduce", config.disable_custom_all_reduce,
                   "ranks on GPUs add up by NCCL alone");
  add_shown_option(command, "--dtype", config.dtype, "auto, float32, bfloat16 or float16");
}

}  // namespace

void add_engine_options(CLI::App& command, EngineConfig& config, ModelSource& source) {
  command.add_option("MODEL", config.model,
                     "Hugging Face checkpoint directory, or a hub id such as Qwen/Qwen3-0.6B (default: the "
                     "bundled model)");
  add_source_options(command, source);
  add_device_options(command, config);
  add_shown_option(command, "--max-num-seqs", config.max_num_seqs, "sequences that run at once");
  command.add_option("--max-num-batched-tokens", config.max_num_batched_tokens,
                     "tokens computed in one step (default: 2048 on a CPU, 8192 on a GPU)");
  command.add_option("--long-prefill-token-threshold", config.long_prefill_token_threshold,
                     "tokens of one sequence computed in one step at most (default: no limit)");
  command.add_option("--max-model-len", config.max_model_len,
                     "tokens of prompt and output (default: the model's)");
  add_shown_option(command, "--block-size", config.block_size,
                   "tokens in a block of the KV cache: a power of two, 8 to 256");
  command
      .add_option("--kv-cache-memory", config.kv_cache_memory,
                  "bytes of each rank, or with a unit such as 4GiB (default: what max-num-seqs full "
                  "sequences need, on a "
                  "CPU at most 4GiB)")
      ->transform(CLI::AsSizeValue(false));
  add_shown_option(command, "--gpu-memory-utilization", config.gpu_memory_utilization,
                   "share of the GPU's memory to take for weights, workspace and KV cache");
  command.add_option("--swap-space", config.swap_space,
                     "GiB of host memory for the KV cache of preempted sequences, of each rank (default: 0)");
  add_shown_option(command, "--preemption-mode", config.preemption_mode,
                   "with swap space: auto (what costs less), swap or recompute");
  command.add_flag("--enforce-eager", config.enforce_eager, "record no graphs");
  command.add_flag("--deterministic", config.deterministic,
                   "on a GPU too, a sequence's logits are bitwise the same whatever else runs; slower");
  add_shown_option(command, "--max-logprobs", config.max_logprobs,
                   "most likely tokens that a request may have reported of each position: 0 to 512");
  add_shown_option(command, "--scheduling-policy", config.scheduling_policy,
                   "fcfs: first come, first served; priority: requests of lower priority numbers first");
  command.add_option(
      "--max-num-queued-reqs", config.max_num_queued_reqs,
      "refuse a request that would make more than so many wait for their first step (default: never)");
  command.add_option(
      "--max-num-queued-tokens", config.max_num_queued_tokens,
      "refuse a request that would make more than so many tokens wait for their first step (default: never)");
  command.add_flag_callback(
      "--no-enable-prefix-caching", [&config] { config.enable_prefix_caching = false; },
      "compute every prompt anew, also where its beginning is cached");
}

void add_shape_option(CLI::App& command, std::string& shape) {
  command
      .add_option("--shape", shape, "random weights of a published model's shape; `list` prints the names")
      ->excludes(command.get_option("MODEL"));
}

int list_shapes() {
  for (const Shape& shape : published_shapes()) print_text(stdout, "{}\n", shape.name);
  return 0;
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command.add_option(
      "--max-tokens", options.max_tokens,
      "tokens to generate at most (default: the model's, at least 256; in a chat what the context holds)");
  command.add_option("--temperature", options.temperature,
                     "0: always the most likely token (default: the model's, or 1)");
  command.add_option("--top-p", options.top_p,
                     "most likely tokens up to this probability (default: the model's, or 1)");
  command.add_option("--top-k", options.top_k,
                     "this many most likely tokens, 0: all (default: the model's, or 0)");
  command.add_option(
      "--min-p", options.min_p,
      "tokens at least this likely, relative to the most likely one (default: the model's, or 0)");
  command.add_option("--seed", options.given.seed, "the same seed and prompt give the same output")
      ->check(check_unsigned);
  add_token_options(command, options);
  add_end_options(command, options);
}

SamplingParams SamplingOptions::over(const SamplingParams& defaults) const {
  SamplingParams params = given;
  params.max_tokens = max_tokens.value_or(defaults.max_tokens);
  params.temperature = temperature.value_or(defaults.temperature);
  params.top_p = top_p.value_or(defaults.top_p);
  params.top_k = top_k.value_or(defaults.top_k);
  params.min_p = min_p.value_or(defaults.min_p);
  params.repetition_penalty = repetition_penalty.value_or(defaults.repetition_penalty);
  for (const std::string& entry : logit_bias) {
    const auto [id, bias] = parse_bias(entry);
    params.logit_bias[id] = bias;
  }
  params.skip_special_tokens = !keep_special_tokens;
  params.detokenize = !no_text;
  return params;
}

std::atomic<bool>& InterruptFlag::raised() {
  static std::atomic<bool> flag{false};
  return flag;
}

InterruptFlag::InterruptFlag() {
  raised() = false;  // also creates the flag before a signal can ask for it
  struct sigaction action {};
  action.sa_handler = [](int) {
    // Asked twice before anybody looked: the step in the way is too long to wait for.
    if (raised().exchange(true)) std::signal(SIGINT, SIG_DFL);
  };
  sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: a read returns
}

InterruptFlag::~InterruptFlag() { std::signal(SIGINT, SIG_DFL); }

}  // namespace quire::cli
