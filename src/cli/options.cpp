#include "cli/options.h"

#include <charconv>
#include <csignal>

#include "base/format.h"
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

}  // namespace

void add_engine_options(CLI::App& command, EngineConfig& config) {
  command.add_option("MODEL", config.model, "Hugging Face checkpoint directory (default: the bundled model)");
  command.add_option("--device", config.device, "auto (a GPU where there is one), cpu, cuda or cuda:N")
      ->capture_default_str();
  command
      .add_option("--cpu-isa", config.cpu_isa,
                  "instruction set of the CPU kernels: auto, reference, avx2, avx512, avx512_bf16 or amx")
      ->capture_default_str();
  command.add_option("--cpu-threads", config.cpu_threads, "threads of the CPU kernels (default: one a core)");
  command.add_option("--dtype", config.dtype, "auto, float32, bfloat16 or float16")->capture_default_str();
  command.add_option("--max-num-seqs", config.max_num_seqs, "sequences that run at once")
      ->capture_default_str();
  command.add_option("--max-num-batched-tokens", config.max_num_batched_tokens,
                     "tokens computed in one step (default: 2048 on a CPU, 8192 on a GPU)");
  command.add_option("--max-model-len", config.max_model_len,
                     "tokens of prompt and output (default: the model's)");
  command
      .add_option("--block-size", config.block_size,
                  "tokens in a block of the KV cache: a power of two, 8 to 256")
      ->capture_default_str();
  command
      .add_option("--kv-cache-memory", config.kv_cache_memory,
                  "bytes, or with a unit such as 4GiB (default: what max-num-seqs full sequences need, on a "
                  "CPU at most "
                  "4GiB)")
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--gpu-memory-utilization", config.gpu_memory_utilization,
                  "share of the GPU's memory to take for weights, workspace and KV cache")
      ->capture_default_str();
  command.add_flag("--enforce-eager", config.enforce_eager, "record no graphs");
  command.add_flag("--deterministic", config.deterministic,
                   "on a GPU too, a sequence's logits are bitwise the same whatever else runs; slower");
  command
      .add_option("--max-logprobs", config.max_logprobs,
                  "most likely tokens that a request may have reported of each position: 0 to 512")
      ->capture_default_str();
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
  command.add_option("--seed", options.seed, "the same seed and prompt give the same output")
      ->check(check_unsigned);
  command.add_option("--stop", options.stop, "end before this text (repeatable)")->allow_extra_args(false);
  command.add_flag("--ignore-eos", options.ignore_eos, "go on after the end-of-sequence token");
}

SamplingParams SamplingOptions::over(SamplingParams defaults) const {
  defaults.max_tokens = max_tokens.value_or(defaults.max_tokens);
  defaults.temperature = temperature.value_or(defaults.temperature);
  defaults.top_p = top_p.value_or(defaults.top_p);
  defaults.top_k = top_k.value_or(defaults.top_k);
  defaults.min_p = min_p.value_or(defaults.min_p);
  defaults.seed = seed;
  defaults.stop = stop;
  defaults.ignore_eos = ignore_eos;
  return defaults;
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
