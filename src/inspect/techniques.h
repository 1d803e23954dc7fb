// What each technique of an inference engine brings: the same requests without it and with it, one after the
// other on one machine.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/bench.h"

namespace quire {

struct TechniqueOptions {
  EngineConfig engine;  // what computes, and in which numbers; the rows decide the rest
  std::function<ModelFiles()> open;
  // Requests, sequences that the cache has memory for at their longest, and the most tokens of a prompt and
  // of an output, of which the least are an eighth. 0: 24, 8, 64 and 16; on a GPU 64, 16, 512 and 128.
  int num_prompts = 0, batch = 0, input_len = 0, output_len = 0;
  std::uint64_t seed = 0;                                                     // of lengths and tokens
  std::function<void(std::size_t done, std::size_t total)> on_progress = {};  // rows
};

struct TechniqueFigure {
  std::string_view key, unit;
};
// The first token since submission, of requests that come late where some do; the longest pause between two
// tokens of the others: medians. Sequences: the most at once. Bytes: of a rank.
inline constexpr TechniqueFigure kTechniqueFigures[] = {
    {"tokens_per_s", "tokens/s"},     {"first_token_ms", "ms to the first token"},
    {"longest_pause_ms", "ms pause"}, {"sequences", "sequences at once"},
    {"product_ms", "ms a product"},   {"weight_bytes", "bytes"},
    {"kv_cache_bytes", "bytes"}};

struct TechniqueRow {
  std::string name;
  // The row that it is compared with: the last one of its workload that has figures, or its first; empty: it
  // is a baseline.
  std::string against = {};
  std::size_t workload = 0;             // of TechniqueReport::workloads
  std::string figure = "tokens_per_s";  // that the technique is about
  std::map<std::string, double, std::less<>> figures = {};
  double factor = std::numeric_limits<double>::quiet_NaN();  // of the figure; over 1: better. NaN: a baseline
  double agreement = factor;    // share of output tokens up to an output's first that is not the baseline's
  std::string difference = {};  // where that is, in a row that must have the same tokens
  std::string skipped = {};     // why there are no figures

  double value(std::string_view key) const;  // NaN: not measured
  double value() const { return value(figure); }
  std::string_view unit() const;
};

struct TechniqueReport {
  std::string device, dtype;
  std::vector<std::string> workloads;
  std::vector<TechniqueRow> rows;

  const TechniqueRow* before(const TechniqueRow& row) const;  // that it is compared with, or null
};

// Error where the model or the sizes cannot be measured. What a model has no use for, such as 8-bit weights
// where it is quantised, is a row that says so.
TechniqueReport measure_techniques(const TechniqueOptions& options);

// Writes a row's agreement with a baseline, and with must_agree the difference.
void compare_outputs(std::span<const TimedOutput> baseline, std::span<const TimedOutput> outputs,
                     bool must_agree, TechniqueRow& row);

// An SVG drawing in light and dark, as the viewer prefers: of each row a bar as long as the logarithm of its
// factor, and the figures that it was made of.
std::string technique_plot(std::string_view title, const TechniqueReport& report);

}  // namespace quire
