// What each technique of an inference engine brings: the same requests with it and without it, one after the
// other on one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "inspect/request_round.h"

namespace quire {

struct TechniqueOptions {
  EngineConfig engine;  // what computes, and in which numbers; the rows decide the rest
  std::function<ModelFiles()> open;
  // 0: 32 requests of at most 64 tokens in and 32 out, in batches of 8; on a GPU 64 of 512 and 128, of 16.
  // Lengths are drawn evenly from an eighth of the most.
  int num_prompts = 0, batch = 0, input_len = 0, output_len = 0;
  std::uint64_t seed = 0;                                                // of lengths and tokens
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // output tokens; from any thread
};

struct TechniqueRow;
// What a row shows of its technique.
struct TechniqueFigure {
  const char* key;
  const char* unit;
  double TechniqueRow::*value;
  bool is_cost;  // less is better
};

// What was not measured is NaN.
struct TechniqueRow {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  std::string name;
  std::size_t workload = 0;  // of TechniqueReport::workloads
  const TechniqueFigure* figure = nullptr;
  double tokens_per_s = kNone;    // output tokens by the time from the first submission to the last answer
  double first_token_ms = kNone;  // since submission: the median of the requests, or of those that come late
  double longest_pause_ms = kNone;  // between two tokens: the median of the requests that were there before
  double sequences = kNone;         // at once, at most
  double product_ms = kNone;
  double weight_bytes = kNone, kv_cache_bytes = kNone;  // of a rank
  std::string against;    // the row it is compared with; empty: it is a baseline
  double factor = kNone;  // of its figure; over 1: better
  double agreement =
      kNone;               // share of output tokens before an output's first that differs from the baseline's
  std::string difference;  // where that is, in a row that must have the same tokens
  std::string skipped;     // why there are no figures
};

struct TechniqueReport {
  std::string device, dtype;
  std::vector<std::string> workloads;
  std::vector<TechniqueRow> rows;
};

inline constexpr TechniqueFigure kThroughputFigure{"tokens_per_s", "tokens/s", &TechniqueRow::tokens_per_s,
                                                   false};
inline constexpr TechniqueFigure kFirstTokenFigure{"first_token_ms", "ms to the first token",
                                                   &TechniqueRow::first_token_ms, true};
inline constexpr TechniqueFigure kPauseFigure{"longest_pause_ms", "ms longest pause",
                                              &TechniqueRow::longest_pause_ms, true};
inline constexpr TechniqueFigure kSequencesFigure{"sequences", "sequences at once", &TechniqueRow::sequences,
                                                  false};
inline constexpr TechniqueFigure kProductFigure{"product_ms", "ms a product", &TechniqueRow::product_ms,
                                                true};

// Error where the model or the sizes cannot be measured. What a model has no use for, such as 8-bit weights
// of one that is quantised, is a row that says so.
TechniqueReport measure_techniques(const TechniqueOptions& options);

// Compares outputs with those of a baseline, and writes agreement and difference. must_agree: a token that
// differs is a fault.
void compare_outputs(std::span<const TimedOutput> baseline, std::span<const TimedOutput> outputs,
                     bool must_agree, TechniqueRow& row);

}  // namespace quire
