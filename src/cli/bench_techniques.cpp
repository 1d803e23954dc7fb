#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/technique_plot.h"

namespace quire::cli {
namespace {

struct TechniqueBench : EngineOptions {
  TechniqueOptions options;
  bool json = false;
  std::string svg;

  int run();
};

std::string mebibytes(double bytes) { return figure(bytes / (1 << 20), 1); }

OrderedJson report_json(const TechniqueReport& report) {
  OrderedJson rows = OrderedJson::array();
  for (const TechniqueRow& row : report.rows) {
    OrderedJson object = {{"technique", row.name}, {"workload", report.workloads[row.workload]}};
    for (const TechniqueFigure* shown :
         {&kThroughputFigure, &kFirstTokenFigure, &kPauseFigure, &kSequencesFigure, &kProductFigure})
      object[shown->key] = row.*shown->value;
    object["weight_bytes"] = row.weight_bytes;
    object["kv_cache_bytes"] = row.kv_cache_bytes;
    object["figure"] = row.figure->key;
    object["against"] = row.against.empty() ? OrderedJson() : OrderedJson(row.against);
    object["factor"] = row.factor;
    object["same_tokens_share"] = row.agreement;
    object["skipped"] = row.skipped.empty() ? OrderedJson() : OrderedJson(row.skipped);
    rows.push_back(std::move(object));
  }
  return {{"device", report.device}, {"dtype", report.dtype}, {"rows", std::move(rows)}};
}

void print_row(const TechniqueRow& row) {
  if (!row.skipped.empty()) {
    print_text(stdout, "  {:<26} not measured: {}\n", row.name, row.skipped);
    return;
  }
  const double value = row.*row.figure->value;
  const std::string factor = std::isnan(row.factor) ? "" : "x" + figure(row.factor, 2) + " ";
  const std::string same = std::isnan(row.agreement) ? "" : figure(100 * row.agreement, 1) + " %";
  print_text(stdout, "  {:<26} {:>9} {:>10} {:>9} {:>8} {:>8}  {}{} {}\n", row.name,
             figure(row.tokens_per_s, 1), figure(row.first_token_ms, 1), mebibytes(row.weight_bytes),
             mebibytes(row.kv_cache_bytes), same, factor, figure(value, value < 10 ? 2 : 1),
             row.figure->unit);
}

void print_table(const TechniqueReport& report) {
  print_text(stdout, "{}, {}\n  {:<26} {:>9} {:>10} {:>9} {:>8} {:>8}  {}\n", report.device, report.dtype,
             "technique", "tokens/s", "first, ms", "weights", "KV, MiB", "tokens", "what it brings");
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const TechniqueRow& row = report.rows[i];
    if (i == 0 || row.workload != report.rows[i - 1].workload)
      print_text(stdout, "{}\n", report.workloads[row.workload]);
    print_row(row);
  }
}

int TechniqueBench::run() {
  refuse_several_processes("bench");
  if (!svg.empty() && !std::ofstream(svg, std::ios::app)) fail("--svg: cannot write {}", svg);
  options.engine = config;
  options.open = [this] { return open(); };
  options.on_progress = progress_bar("tokens");
  const TechniqueReport report = measure_techniques(options);
  json ? print_json_line(report_json(report)) : print_table(report);
  if (!svg.empty()) {
    const std::string name = shape ? shape->name : config.model;
    std::ofstream file(svg);
    file << technique_plot(
        format_text("What each technique brings: {} on {}", name.empty() ? "toy" : name, report.device),
        report);
    if (!file.flush()) fail("--svg: cannot write {}", svg);
  }
  int code = 0;
  for (const TechniqueRow& row : report.rows) {
    if (row.difference.empty()) continue;
    print_text(stderr, "quire: {}: {}\n", row.name, row.difference);
    code = kFailed;
  }
  return code;
}

}  // namespace

void add_bench_techniques(CLI::App& bench, Command& chosen) {
  const CLI::Range count(1, 1 << 16), length(8, 1 << 16);
  auto [flags, techniques] =
      add_command<TechniqueBench>(bench, chosen, "techniques", "What each technique of the engine brings");
  techniques.add_model_to(flags);
  techniques.add_shape_to(flags);
  flags.shown("--block-size", techniques.config.block_size,
              "tokens in a block of the KV cache: a power of two, 8 to 256");
  flags.on("--deterministic", techniques.config.deterministic,
           "on a GPU too, rows must have the same tokens, bit for bit; slower");
  flags.value("--num-prompts", techniques.options.num_prompts, "requests (default: 32, on a GPU 64)", count);
  flags.value("--batch", techniques.options.batch,
              "sequences that the cache has memory for at their longest (default: 8, on a GPU 16)", count);
  flags.value("--input-len", techniques.options.input_len,
              "most tokens of a prompt, the least are an eighth (default: 64, on a GPU 512)", length);
  flags.value("--output-len", techniques.options.output_len,
              "most tokens of an output, the least are an eighth (default: 32, on a GPU 128)", length);
  flags.shown("--seed", techniques.options.seed, "of lengths and tokens");
  flags.on("--json", techniques.json, "print one JSON object; null: not measured");
  flags.value("--svg", techniques.svg, "a file for a drawing of it");
}

}  // namespace quire::cli
