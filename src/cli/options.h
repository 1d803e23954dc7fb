#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/parse_number.h"
#include "cli/commands.h"
#include "inspect/shapes.h"
#include "quire/engine_config.h"
#include "quire/sampling_params.h"

namespace quire::cli {

// Flags that several commands share. They are members of the command's state, which outlives the parsing.

// The positional MODEL, where it comes from, and how the engine runs.
struct EngineOptions {
  EngineConfig config;
  ModelSource source;
  std::optional<Shape> shape;  // random weights of that shape, instead of MODEL

  void add_to(Flags flags);
  // Of these: MODEL, or what it is called, and what computes.
  void add_model_to(Flags flags, const char* model = "MODEL");
  void add_numbers_to(Flags flags);  // in which numbers, with how much memory
  void add_shape_to(Flags flags);    // --shape
  // Finds MODEL, of which config.model is the directory then, and opens it; or makes what --shape names.
  ModelFiles open();
  // Where mpirun started this process as another rank than 0: does what rank 0 says until that ends, and
  // returns true. Error where there is not one process for each rank. What fails, a rank that is lost
  // included, ends the program here.
  bool follows();
};

// Error where mpirun started several processes, for a command that has no use for them.
void refuse_several_processes(const char* command);

// The flag of a command that is most like another word, as the end of an error's line; empty: none is.
std::string nearest_flag(const CLI::App& command, std::string_view word);

// How a chat is written for the model, and what sampling begins with.
void add_default_options(Flags flags, EngineConfig& config);

struct SamplingOptions {
  SamplingParams given;  // apart from what follows, of which the model has defaults or the form differs
  std::optional<int> max_tokens, top_k;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::vector<std::string> logit_bias;  // ID:BIAS

  // The model's defaults, with what was given on the command line. Error where that cannot be read.
  SamplingParams over(const SamplingParams& defaults) const;
};
void add_sampling_options(Flags flags, SamplingOptions& options);
// What the text must be: one of several flags, which sampling options have, too.
void add_structure_options(Flags flags, std::shared_ptr<const StructuredOutputs>& outputs);

// While it lives, each of the signals sets the flag instead of ending the program, and interrupts a blocking
// read. If the flag is still set when a second one comes, a third one ends the program. One at a time.
class InterruptFlag {
 public:
  explicit InterruptFlag(std::vector<int> signals = {SIGINT});
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  static inline std::atomic<bool> raised{false};
  static bool is_raised() { return raised; }

 private:
  std::vector<int> signals_;
};

}  // namespace quire::cli
