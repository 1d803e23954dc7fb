#include "inspect/verify.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/error.h"
#include "checkpoint/config_object.h"
#include "checkpoint/safetensors.h"
#include "inspect/forced_run.h"

namespace quire {
namespace {

constexpr int kChunk = 7;
constexpr int kSideBySide = 5;  // at least so many sequences

// How the tokens are given to the engine.
struct Pass {
  int chunk_size = 0;  // tokens a step; 0: all
  bool side_by_side = false;
};
constexpr Pass kPasses[] = {{}, {kChunk}, {1}, {1, true}};

// Limits by the dtype computed in: of the logits' relative error, and the gap between the reference's two
// best logits, relative to its largest, below which another argmax is excused.
struct Limits {
  double error;
  double excused_gap;
  double rms = 0;       // norm of the logits' differences over theirs; 0: any
  int rerouted_in = 0;  // one position in so many may be beyond the error; 0: none
};

constexpr Limits kLimits[] = {{2e-5, 0}, {1e-2, 3e-3}, {6e-2, 2.5e-2}};  // of float32, float16, bfloat16

// The looser ones where products round their inputs, and the model has a file of them.
Limits limits_of(const Engine& engine) {
  const bool rounds_inputs = engine.memory_plan().rounds_inputs;
  Limits limits = kLimits[static_cast<std::size_t>(engine.config().dtype)];
  // Gated DeltaNet makes more of a rounding (docs/decisions.md); its states alone have three dimensions.
  const auto is_matrix = [](const std::vector<std::int64_t>& shape) { return shape.size() == 3; };
  if (engine.config().dtype == DType::kBF16 && std::ranges::any_of(engine.config().cache.fixed, is_matrix))
    limits = {8e-2, 4e-2};
  const std::filesystem::path path = engine.model_directory() / "tolerance.json";
  if (std::error_code ec; rounds_inputs && std::filesystem::exists(path, ec)) {
    if (const auto looser = ConfigObject::read_file(path).find_object("activations"))
      limits = {looser->require_double("logits"), looser->require_double("gap"),
                looser->require_double("rms")};
  }
  // What the rounding of a cache makes of random models reaches 0.69 (tests/engine/verify_test.cpp), with
  // that of 16 bits 0.74.
  const auto has_codes = [](const StateSpec& spec) { return spec.code != CacheCode::kNone; };
  if (std::ranges::any_of(engine.config().cache.groups, has_codes)) limits = {0.75, 0.25};
  if ((rounds_inputs || engine.config().dtype != DType::kF32) && !engine.memory_plan().experts.empty())
    limits.rerouted_in = 8;
  return limits;
}

struct Reference {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  std::vector<float> logits;  // [prompt.size(), vocab]
  std::vector<float> gap;     // [greedy.size()]
};

template <typename T>
std::vector<T> read_values(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const SafetensorsEntry& entry = file.tensor(name);
  if (entry.dtype != dtype)
    fail("{}: tensor {} is {}, not {}", file.path(), name, entry.dtype_name, to_string(dtype));
  std::vector<T> values(entry.bytes / sizeof(T));
  file.read(name, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::vector<Reference> read_references(const std::filesystem::path& path, int vocab_size) {
  const SafetensorsFile file(path);
  std::vector<Reference> references;
  while (file.tensors().contains("prompt." + std::to_string(references.size()))) {
    const std::string suffix = "." + std::to_string(references.size());
    Reference reference{read_values<TokenId>(file, "prompt" + suffix, DType::kI32),
                        read_values<TokenId>(file, "greedy" + suffix, DType::kI32),
                        read_values<float>(file, "logits" + suffix, DType::kF32),
                        read_values<float>(file, "gap" + suffix, DType::kF32)};
    if (reference.prompt.empty() || reference.greedy.empty() ||
        reference.gap.size() != reference.greedy.size() ||
        reference.logits.size() != reference.prompt.size() * static_cast<std::size_t>(vocab_size)) {
      fail("{}: the tensors of prompt {} do not fit together, or not the vocabulary of {}", path.string(),
           references.size(), vocab_size);
    }
    references.push_back(std::move(reference));
  }
  if (references.empty()) fail("{}: no tensor prompt.0", path.string());
  return references;
}

// NaN is as far as can be from all; an infinity from all but itself.
double difference_of(float expected, float logit) {
  if (expected == logit) return 0;
  const double difference = std::abs(double{expected} - double{logit});
  return std::isnan(difference) ? INFINITY : difference;
}

// The largest error of each position's logits, largest first.
std::vector<double> position_errors(const Reference& reference, const std::vector<float>& logits,
                                    double largest) {
  const std::size_t vocab = reference.logits.size() / reference.prompt.size();
  std::vector<double> errors(reference.prompt.size());
  for (std::size_t i = 0; i < reference.logits.size(); ++i) {
    const double difference = difference_of(reference.logits[i], logits[i]);
    double& error = errors[i / vocab];
    if (difference > 0) error = std::max(error, difference / largest);
  }
  std::ranges::sort(errors, std::greater<>());
  return errors;
}

VerifyResult compare(const Reference& reference, const std::vector<float>& logits, Limits limits) {
  VerifyResult result;
  const std::size_t vocab = reference.logits.size() / reference.prompt.size();
  double largest = 0;
  double norm = 0, difference = 0;
  for (std::size_t i = 0; i < reference.logits.size(); ++i) {
    difference += std::pow(difference_of(reference.logits[i], logits[i]), 2);
    if (!std::isfinite(reference.logits[i])) continue;
    largest = std::max(largest, std::abs(double{reference.logits[i]}));
    norm += std::pow(double{reference.logits[i]}, 2);
  }
  const std::vector<double> errors = position_errors(reference, logits, largest);
  const std::size_t excusable =
      limits.rerouted_in == 0 ? 0 : errors.size() / static_cast<std::size_t>(limits.rerouted_in);
  std::size_t excused = 0;
  while (excused < excusable && errors[excused] > limits.error) ++excused;
  result.num_tokens = static_cast<int>(reference.prompt.size());
  result.error = errors[excused];
  result.rerouted = static_cast<int>(excused);
  result.limit = limits.error;
  result.rms = difference > 0 ? std::sqrt(difference / norm) : 0;
  result.rms_limit = limits.rms;
  result.num_steps = static_cast<int>(reference.greedy.size());
  bool may_reroute = limits.rerouted_in > 0;
  for (std::size_t step = 0; step < reference.greedy.size(); ++step) {
    const auto row =
        logits.begin() + static_cast<std::ptrdiff_t>((reference.prompt.size() - 1 + step) * vocab);
    const auto best = std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab)) - row;
    if (best == reference.greedy[step]) {
      ++result.argmax_equal;
    } else if (reference.gap[step] < limits.excused_gap * largest) {
      ++result.argmax_excused;
    } else if (std::exchange(may_reroute, false)) {
      ++result.rerouted;
      ++result.argmax_excused;
    }
  }
  return result;
}

std::vector<TokenId> forced_tokens(const Reference& reference) {
  std::vector<TokenId> tokens = reference.prompt;
  // The last greedy token is predicted, never read.
  tokens.insert(tokens.end(), reference.greedy.begin(), reference.greedy.end() - 1);
  return tokens;
}

EngineConfig config_of(EngineConfig config, const Pass& pass) {
  if (pass.chunk_size == kChunk) config.max_num_batched_tokens = kChunk;
  if (pass.chunk_size == 1) config.long_prefill_token_threshold = 1;
  return config;
}

// The results of one pass, in the order of the references; of one that ran several times the worst.
std::vector<VerifyResult> run_pass(Engine& engine, const std::vector<Reference>& references, const Pass& pass,
                                   const Limits& limits) {
  const std::size_t num_prompts = references.size();
  const std::size_t num_runs =
      pass.side_by_side ? std::max<std::size_t>(num_prompts, kSideBySide) : num_prompts;
  std::vector<std::shared_ptr<ForcedRun>> runs;
  std::vector<VerifyResult> results(num_prompts);
  const auto finish = [&](std::size_t i) {
    VerifyResult result = compare(references[i % num_prompts], runs[i]->take_all(), limits);
    result.prompt = static_cast<int>(i % num_prompts);
    result.chunk_size = pass.chunk_size;
    result.side_by_side = pass.side_by_side ? static_cast<int>(num_runs) : 1;
    VerifyResult& worst = results[i % num_prompts];
    if (i < num_prompts || !result.passed() || result.error > worst.error) worst = result;
  };
  for (std::size_t i = 0; i < num_runs; ++i) {
    runs.push_back(ForcedRun::start(engine, forced_tokens(references[i % num_prompts])));
    pass.side_by_side ? runs.back()->wait_until_under_way() : finish(i);
  }
  for (std::size_t i = 0; pass.side_by_side && i < num_runs; ++i) finish(i);
  return results;
}

}  // namespace

bool verify(const EngineConfig& config, const std::function<void(const VerifyResult&)>& on_result) {
  bool passed = true;
  std::vector<Reference> references;
  Limits limits = {};
  for (const Pass& pass : kPasses) {
    Engine engine(config_of(config, pass));
    if (references.empty()) {
      references =
          read_references(engine.model_directory() / "expected.safetensors", engine.config().spec.vocab_size);
      limits = limits_of(engine);
    }
    for (std::size_t i = 0; i < references.size(); ++i) {
      const std::size_t count = forced_tokens(references[i]).size();
      if (pass.chunk_size == 0 && std::cmp_greater(count, engine.config().max_num_batched_tokens)) {
        fail("max-num-batched-tokens is {}; verify needs {} to run prompt {} in one chunk",
             engine.config().max_num_batched_tokens, count, i);
      }
    }
    for (const VerifyResult& result : run_pass(engine, references, pass, limits)) {
      passed = passed && result.passed();
      on_result(result);
    }
  }
  return passed;
}

}  // namespace quire
