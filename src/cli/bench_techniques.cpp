#include <cmath>
#include <utility>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/techniques.h"

namespace quire::cli {
namespace {

OrderedJson text_or_null(const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); }

void print_techniques_json(const TechniqueReport& report) {
  OrderedJson object = {{"device", report.device}, {"dtype", report.dtype}};
  for (const TechniqueRow& row : report.rows) {
    OrderedJson& one = object["rows"].emplace_back();
    one = {{"technique", row.name}, {"workload", report.workloads[row.workload]}};
    for (const TechniqueFigure& figure : kTechniqueFigures)
      one[std::string(figure.key)] = row.value(figure.key);
    one["figure"] = row.figure;
    one["against"] = text_or_null(row.against);
    one["factor"] = row.factor;
    one["same_tokens_share"] = row.agreement;
    one["skipped"] = text_or_null(row.skipped);
  }
  print_json_line(object);
}

void print_techniques(const TechniqueReport& report) {
  constexpr double kMiB = 1 << 20;
  print_text(stdout, "{}, {}\n  {:<25} {:>9} {:>10} {:>9} {:>8} {:>8}  what it brings\n", report.device,
             report.dtype, "technique", "tokens/s", "first, ms", "weights", "KV, MiB", "tokens");
  const std::string* workload = nullptr;
  for (const TechniqueRow& row : report.rows) {
    if (const std::string& own = report.workloads[row.workload]; std::exchange(workload, &own) != &own)
      print_text(stdout, "{}\n", own);
    const double value = row.value();
    std::string brings = figure(value, row.figure == "sequences" ? 0 : value < 10 ? 2 : 1) + " ";
    if (!std::isnan(row.factor)) brings = "x" + figure(row.factor, 2) + " " + brings;
    if (!row.skipped.empty()) brings = "not measured: " + row.skipped;
    print_text(stdout, "  {:<25} {:>9} {:>10} {:>9} {:>8} {:>8}  {}{}\n", row.name,
               figure(row.value("tokens_per_s"), 1), figure(row.value("first_token_ms"), 1),
               figure(row.value("weight_bytes") / kMiB, 1), figure(row.value("kv_cache_bytes") / kMiB, 1),
               figure(100 * row.agreement, 1), brings, row.skipped.empty() ? row.unit() : "");
  }
}

struct TechniqueBench : EngineOptions {
  TechniqueOptions options;
  bool json = false;
  std::string svg;

  void add_to(Flags flags) {
    const CLI::Range count(1, 1 << 16), length(8, 1 << 16);
    add_model_to(flags);
    add_shape_to(flags);
    flags.on("--deterministic", config.deterministic,
             "on a GPU too, rows must have the same tokens, bit for bit; slower");
    flags.value("--num-prompts", options.num_prompts, "requests (default: 24, on a GPU 64)", count);
    flags.value("--batch", options.batch,
                "sequences that the cache has memory for at their longest (default: 8, on a GPU 16)", count);
    flags.value("--input-len", options.input_len,
                "most tokens of a prompt; the least are an eighth (default: 64, on a GPU 512)", length);
    flags.value("--output-len", options.output_len,
                "most tokens of an output; the least are an eighth (default: 16, on a GPU 128)", length);
    flags.shown("--seed", options.seed, "of lengths and tokens");
    flags.on("--json", json, "print one JSON object; null: not measured");
    flags.value("--svg", svg, "a file for a drawing of it");
  }

  int run() {
    refuse_several_processes("bench");
    if (!svg.empty()) check_writable("--svg", svg);
    options.engine = config;
    options.open = [this] { return open(); };
    options.on_progress = progress_bar("rows");
    const TechniqueReport report = measure_techniques(options);
    (json ? print_techniques_json : print_techniques)(report);
    if (!svg.empty()) {
      const std::string name = shape ? shape->name : config.model.empty() ? "toy" : config.model;
      write_file("--svg", svg,
                 technique_plot(name + " on " + report.device + ": what each technique brings", report));
    }
    int code = 0;
    for (const TechniqueRow& row : report.rows) {
      if (row.difference.empty()) continue;
      print_text(stderr, "quire: {}: {}\n", row.name, row.difference);
      code = kFailed;
    }
    return code;
  }
};

}  // namespace

void add_bench_techniques(CLI::App& bench, Command& chosen) {
  add_command<TechniqueBench>(bench, chosen, "techniques", "What each technique of the engine brings");
}

}  // namespace quire::cli
