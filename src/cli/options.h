#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_source.h"
#include "quire/engine_config.h"
#include "quire/sampling_params.h"

namespace quire::cli {

// An option whose help shows its default.
template <typename T>
CLI::Option* add_shown_option(CLI::App& command, const std::string& names, T& value,
                              const std::string& what) {
  return command.add_option(names, value, what)->capture_default_str();
}

// Flags that several commands share. They are members of the command's state, which outlives the parsing.

// The positional MODEL, where it comes from, and how the engine runs.
void add_engine_options(CLI::App& command, EngineConfig& config, ModelSource& source);

// --shape NAME, instead of MODEL: a published model's sizes. `list` is list_shapes().
void add_shape_option(CLI::App& command, std::string& shape);
int list_shapes();  // prints their names; the exit code

struct SamplingOptions {
  SamplingParams given;  // apart from what follows, of which the model has defaults or the form differs
  std::optional<int> max_tokens, top_k;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::vector<std::string> logit_bias;  // ID:BIAS
  bool keep_special_tokens = false;
  bool no_text = false;

  // The model's defaults, with what was given on the command line. Error where that cannot be read.
  SamplingParams over(const SamplingParams& defaults) const;
};
void add_sampling_options(CLI::App& command, SamplingOptions& options);

// While it lives, SIGINT sets the flag instead of ending the program, and interrupts a blocking read. If the
// flag is still set when a second one comes, a third one ends the program. One at a time.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static std::atomic<bool>& raised();
};

}  // namespace quire::cli
