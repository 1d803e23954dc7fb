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

// Flags that several commands share. They are members of the command's state, which outlives the parsing.

// The positional MODEL, where it comes from, and how the engine runs.
void add_engine_options(CLI::App& command, EngineConfig& config, ModelSource& source);

// --shape NAME, instead of MODEL: a published model's sizes. `list` is list_shapes().
void add_shape_option(CLI::App& command, std::string& shape);
int list_shapes();  // prints their names; the exit code

struct SamplingOptions {
  int n = 1;
  std::optional<int> best_of;
  std::optional<int> max_tokens;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int> top_k;
  std::optional<float> min_p;
  std::optional<std::uint64_t> seed;
  std::optional<float> presence_penalty, frequency_penalty, repetition_penalty;
  std::vector<std::string> logit_bias;  // ID:BIAS
  std::vector<std::int32_t> allowed_token_ids;
  std::vector<std::string> bad_words;
  std::optional<int> min_tokens;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool keep_special_tokens = false;

  // The model's defaults, with what was given on the command line. Error where that cannot be read.
  SamplingParams over(SamplingParams defaults) const;
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
