#include "cli/options.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "cli/output.h"
#include "engine/ranks.h"

namespace quire::cli {
namespace {

std::pair<std::int32_t, float> parse_bias(const std::string& entry) {
  const std::size_t colon = std::min(entry.find(':'), entry.size());
  const auto id = parse_number<std::int32_t>(std::string_view(entry).substr(0, colon));
  const auto bias = parse_number<float>(std::string_view(entry).substr(std::min(colon + 1, entry.size())));
  if (!id || !bias) fail("--logit-bias: {} is no token id and bias; give it as 123:-5", in_quotes(entry));
  return {*id, *bias};
}

}  // namespace

void read_as_decimal(CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (!type.starts_with("INT") && !type.starts_with("UINT")) return;
  // A range, which stands behind the type, has its own error.
  const bool is_size = type.starts_with("UINT") && type.find(" in [") == type.npos;
  const auto read = [=](std::string& text) -> std::string {
    const char* const end = text.data() + text.size();
    const std::size_t first = std::min(text.find_first_of("0123456789"), text.size());
    std::uint64_t value = 0;
    const bool is_large =
        std::from_chars(text.data() + first, end, value).ec == std::errc::result_out_of_range;
    if (is_size && (is_large || text.find('-') < first))
      return text + " is no whole number from 0 to 18446744073709551615";
    const std::size_t zeros = std::min(text.find_first_not_of('0', first), text.size()) - first;
    if (std::isdigit(static_cast<unsigned char>(text[first + zeros])) != 0) text.erase(first, zeros);
    return {};
  };
  option.transform(CLI::Validator(read, ""));
}

std::string refuse_nan(const std::string& text) {
  double value = 0;
  const bool is_nan = CLI::detail::lexical_cast(text, value) && std::isnan(value);
  return is_nan ? text + " is not a number" : "";
}

void EngineOptions::add_model_to(Flags flags, const char* model) {
  flags.value(
      model, config.model,
      "Hugging Face checkpoint directory, a .gguf file, or a hub id such as Qwen/Qwen3-0.6B (default: the "
      "bundled model)");
  add_source_options(flags, source);
  // What computes, and in which numbers.
  flags.shown("--device", config.device, "auto (a GPU where there is one), cpu, cuda or cuda:N");
  flags.shown("--cpu-isa", config.cpu_isa,
              "instruction set of the CPU kernels: auto, reference, avx2, avx512, avx512_bf16 or amx");
  flags.value("--cpu-threads", config.cpu_threads, "threads of the CPU kernels (default: one a core)");
  flags.shown("--tensor-parallel-size", config.tensor_parallel_size,
              "ranks that the model is spread over: threads, or under `mpirun -np N` processes");
  flags.shown(
      "--watchdog", config.watchdog,
      "seconds until a rank is lost: a process that gives no sign of life, or a GPU that others wait for; a "
      "step in which nothing moves for 12 times as long is stuck (on a CPU, once more for each 256 of its "
      "tokens)",
      CLI::Range(0.5, 3600.0));
  flags.on("--disable-custom-all-reduce", config.disable_custom_all_reduce,
           "ranks on GPUs add up by NCCL alone");
  flags.shown("--dtype", config.dtype, "auto, float32, bfloat16 or float16");
}

void EngineOptions::add_numbers_to(Flags flags) {
  flags
      .shown(
          "--quantization", config.quantization,
          "make 16-bit weights into fp8 or int8 (a scale for each row), int4 (for each 128 columns) or nf4 "
          "(for each 64) as they are loaded")
      ->each([this](const std::string& name) {
        if (name != "none") config.on_layer = progress_bar("layers");
      });
  flags.on("--quantize-head", config.quantize_head, "with --quantization: the embedding and the head, too");
  flags.on("--weight-only", config.weight_only,
           "activations stay in --dtype, also where fp8, int8 or the checkpoint round them for a product");
  flags.shown("--kv-cache-dtype", config.kv_cache_dtype,
              "what the KV cache holds: auto (as --dtype), fp8 (or fp8_e4m3) or fp8_e5m2");
  flags.value("--kv-cache-dtype-skip-layers", config.kv_cache_dtype_skip_layers,
              "layers whose KV cache stays as --dtype: numbers, and sliding_window, with commas");
  flags.bytes("--kv-cache-memory,--kv-cache-memory-bytes", config.kv_cache_memory,
              "bytes of each rank, or with a unit such as 4GiB (default: what max-num-seqs full sequences "
              "need, on a CPU at most 4GiB)");
  flags.bytes("--state-cache-memory", config.state_cache_memory,
              "bytes of these for the states of recurrent layers (default: half of them, or what is of use)");
  flags.shown("--gpu-memory-utilization", config.gpu_memory_utilization,
              "share of the GPU's memory to take for weights, workspace and KV cache");
  flags.value("--swap-space", config.swap_space,
              "GiB of host memory for the KV cache of preempted sequences, of each rank (default: 0)");
  flags.on("--enforce-eager", config.enforce_eager, "record no graphs");
  flags.on("--deterministic", config.deterministic,
           "on a GPU too, a sequence's logits are bitwise the same whatever else runs; slower");
}

void EngineOptions::add_to(Flags flags) {
  add_model_to(flags);
  add_numbers_to(flags);
  flags.shown("--max-num-seqs", config.max_num_seqs, "sequences that run at once");
  flags.value("--max-num-batched-tokens", config.max_num_batched_tokens,
              "tokens computed in one step (default: 2048 on a CPU, 8192 on a GPU)");
  flags.value("--long-prefill-token-threshold", config.long_prefill_token_threshold,
              "tokens of one sequence computed in one step at most (default: no limit)");
  flags.value("--max-model-len", config.max_model_len, "tokens of prompt and output (default: the model's)");
  flags.shown("--block-size", config.block_size,
              "tokens in a block of the KV cache: a power of two, 8 to 256");
  flags.shown("--preemption-mode", config.preemption_mode,
              "with swap space: auto (what costs less), swap or recompute");
  flags.on("--disable-jump-forward", config.disable_jump_forward,
           "sample tokens, too, of which structured outputs leave no choice");
  flags.shown("--max-logprobs", config.max_logprobs,
              "most likely tokens that a request may have reported of each position: 0 to 512; -1: all");
  flags.shown("--scheduling-policy", config.scheduling_policy,
              "fcfs: first come, first served; priority: requests of lower priority numbers first");
  flags.value(
      "--max-num-queued-reqs", config.max_num_queued_reqs,
      "refuse a request that would make more than so many wait for their first step (default: never)");
  flags.value(
      "--max-num-queued-tokens", config.max_num_queued_tokens,
      "refuse a request that would make more than so many tokens wait for their first step (default: never)");
  flags.value(
      "--record", config.record,
      "write what is scheduled to this file, for quire replay (default: the last of it, where something "
      "fails)");
  flags.on("--record-tokens", config.record_tokens, "with --record: the ids of tokens, too");
  flags.value(
      "--check-invariants", config.check_invariants,
      "after so many steps check the scheduler's invariants; 0: never (default: as often as costs less "
      "than a thousandth of the time)",
      CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  flags.on("--enable-prefix-caching,!--no-enable-prefix-caching", config.enable_prefix_caching,
           "a prompt whose beginning is cached is not computed anew (default); --no-…: it is");
}

void EngineOptions::add_shape_to(Flags flags) {
  const auto choose = [this](const std::string& name) {
    if (name != "list") {
      shape = find_shape(name);
      return;
    }
    for (const Shape& known : published_shapes()) print_text(stdout, "{}\n", known.name);
    throw CLI::Success();
  };
  flags.command
      .add_option_function<std::string>(
          "--shape", choose, "random weights of a published model's shape; `list` prints the names")
      ->excludes(flags.command.get_option("MODEL"));
}

ModelFiles EngineOptions::open() {
  config.model = source.find(config.model);
  return shape ? random_model(*shape) : open_model(config.model);
}

bool EngineOptions::follows() {
  check_processes(config);
  if (!is_follower()) return false;
  source.interruptible = false;
  std::signal(SIGINT, SIG_IGN);  // mpirun sends them to all; rank 0 says when to end
  std::signal(SIGTERM, SIG_IGN);
  try {
    follow(config, [this] { return open(); });
  } catch (const std::exception& e) {
    print_text(stderr, "quire: {}\n", e.what());
    // Rank 0 has its clients to tell: once a process has died, mpirun gives the others a second, unless one
    // more ends meanwhile.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::_Exit(kFailed);  // MPI may still be at work in what would be destroyed
  }
  return true;
}

std::string nearest_flag(const CLI::App& command, std::string_view word) {
  std::string nearest;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;  // changes of a letter
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      std::vector<std::size_t> changes(name.size() + 1);  // from what was seen of word to so much of name
      std::iota(changes.begin(), changes.end(), 0);
      for (std::size_t i = 0; i < word.size(); ++i) {
        std::size_t before = std::exchange(changes[0], i + 1);
        for (std::size_t j = 0; j < name.size(); ++j) {
          const std::size_t replaced = before + (word[i] == name[j] ? 0 : 1);
          before = changes[j + 1];
          changes[j + 1] = std::min({replaced, before + 1, changes[j] + 1});
        }
      }
      if (changes.back() >= least) continue;
      least = changes.back();
      nearest = "; the nearest is --" + name;
    }
  }
  return nearest;
}

void refuse_several_processes(const char* command) {
  if (num_processes() > 1)
    fail("{} runs in one process; under mpirun there are serve, generate and chat", command);
}

void add_structure_options(Flags flags, std::shared_ptr<const StructuredOutputs>& outputs) {
  using Kind = StructuredOutputs::Kind;
  const auto take = [&outputs](Kind kind, std::string source) {
    if (outputs)
      fail(
          "of --json-schema, --json-object, --regex, --choice, --grammar and --structural-tag one can be "
          "given");
    outputs = std::make_shared<const StructuredOutputs>(
        StructuredOutputs{.kind = kind, .source = std::move(source)});
  };
  const auto add = [&](const char* name, Kind kind, bool is_file, const char* what) {
    const auto read = [=](const std::string& text) {
      take(kind, is_file ? read_text_file(text, std::size_t{16} << 20) : text);
    };
    flags.command.add_option_function<std::string>(name, read, what)->type_name(is_file ? "FILE" : "TEXT");
  };
  add("--json-schema", Kind::kJsonSchema, true, "the text is JSON of this schema");
  add("--grammar", Kind::kGrammar, true, "the text is as these rules say (GBNF, EBNF or Lark)");
  add("--structural-tag", Kind::kStructuralTag, true, "the text is as this JSON says");
  add("--regex", Kind::kRegex, false, "this regular expression matches the text");
  flags.command.add_flag_callback(
      "--json-object", [take] { take(Kind::kJsonObject, ""); }, "the text is a JSON object");
  const auto choose = [take](const std::vector<std::string>& texts) {
    take(Kind::kChoice, OrderedJson(texts).dump());
  };
  flags.command
      .add_option_function<std::vector<std::string>>("--choice", choose,
                                                     "the text is this, or another one of these (repeatable)")
      ->allow_extra_args(false);
}

void add_default_options(Flags flags, EngineConfig& config) {
  flags.value("--chat-template", config.chat_template,
              "a Jinja file, or the template's text, instead of the model's");
  flags.shown("--generation-config", config.generation_config,
              "whose sampling defaults hold: auto (the model author's), vllm (none), or a folder's "
              "generation_config.json");
  flags.value("--override-generation-config", config.override_generation_config,
              "a JSON object over those, such as '{\"temperature\": 0.5}'");
}

void add_sampling_options(Flags flags, SamplingOptions& options) {
  flags.value(
      "--max-tokens", options.max_tokens,
      "tokens to generate at most (default: the model's, at least 256; in a chat what the context holds)");
  flags.value("--temperature", options.temperature,
              "0: always the most likely token (default: the model's, or 1)");
  flags.value("--top-p", options.top_p,
              "most likely tokens up to this probability (default: the model's, or 1)");
  flags.value("--top-k", options.top_k, "this many most likely tokens, 0: all (default: the model's, or 0)");
  flags.value("--min-p", options.min_p,
              "tokens at least this likely, relative to the most likely one (default: the model's, or 0)");
  flags.value("--seed", options.given.seed, "the same seed and prompt give the same output");
  // What makes single tokens more or less likely.
  flags.value("--presence-penalty", options.given.presence_penalty,
              "subtracted from the logits of tokens in the output (default: 0)");
  flags.value("--frequency-penalty", options.given.frequency_penalty,
              "the same, for each time they are in it (default: 0)");
  flags.value("--repetition-penalty", options.repetition_penalty,
              "over 1: tokens of prompt and output are less likely (default: the model's, or 1)");
  flags.list("--logit-bias", options.logit_bias, "ID:BIAS, added to a token's logit (repeatable)");
  flags.comma_list("--allowed-token-ids", options.given.allowed_token_ids, "1,2,3: no other tokens");
  flags.list("--bad-words", options.given.bad_words, "a text that is not generated (repeatable)");
  // What ends the output, and what becomes of that.
  flags.value("--min-tokens", options.given.min_tokens, "tokens before which nothing but --max-tokens ends");
  flags.list("--stop", options.given.stop, "end before this text (repeatable)");
  flags.comma_list("--stop-token-ids", options.given.stop_token_ids, "1,2,3: end at these tokens");
  flags.on("--ignore-eos", options.given.ignore_eos, "go on after the end-of-sequence token");
  flags.on("--include-stop-str-in-output", options.given.include_stop_str_in_output,
           "end after the stop string or token, not before it");
  flags.off("--no-skip-special-tokens", options.given.skip_special_tokens,
            "special tokens have their text, too");
  add_structure_options(flags, options.given.structured_outputs);
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
  return params;
}

InterruptFlag::InterruptFlag(std::vector<int> signals) : signals_(std::move(signals)) {
  raised = false;
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    // Asked twice before anybody looked: the step in the way is too long to wait for.
    if (raised.exchange(true)) std::signal(signal, SIG_DFL);
  };
  for (const int signal : signals_) sigaction(signal, &action, nullptr);  // no SA_RESTART: a read returns
}

InterruptFlag::~InterruptFlag() {
  for (const int signal : signals_) std::signal(signal, SIG_DFL);
}

}  // namespace quire::cli
