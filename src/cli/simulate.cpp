#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/latency_plot.h"
#include "simulate/simulation.h"
#include "simulate/step_costs.h"

namespace quire::cli {
namespace {

constexpr const char* kSettings = "Settings";  // groups of options
constexpr const char* kLoad = "Generated load";

OrderedJson times_json(const Times& times) {
  return {{"mean", 1e3 * times.mean()},
          {"p50", 1e3 * times.percentile(0.5)},
          {"p90", 1e3 * times.percentile(0.9)},
          {"p99", 1e3 * times.percentile(0.99)}};
}

OrderedJson run_json(const SchedulerConfig& config, const SimulationResult& r) {
  return {{"completed", r.num_done},
          {"aborted", r.num_aborted},
          {"refused", r.num_refused},
          {"duration_s", r.seconds},
          {"busy_s", r.busy_seconds},
          {"steps", r.num_steps},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.output_tokens},
          {"computed_tokens", r.computed_tokens},
          {"output_tokens_per_s", static_cast<double>(r.output_tokens) / r.seconds},
          {"ttft_ms", times_json(r.ttft)},
          {"itl_ms", times_json(r.itl)},
          {"e2e_ms", times_json(r.e2e)},
          {"preemptions", r.scheduler.num_preemptions},
          {"saved_blocks", r.scheduler.num_saved_blocks},
          {"restored_blocks", r.scheduler.num_restored_blocks},
          {"cache_hit_rate", static_cast<double>(r.scheduler.prefix_cache_hits) /
                                 static_cast<double>(r.scheduler.prefix_cache_queries)},
          {"scheduler", to_json(config)}};
}

void print_header(const std::string& swept) {
  constexpr const char* kRow = "{:>16} {:>10} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>10} {:>7} {:>10}\n";
  print_text(stdout, kRow, swept, "output", "TTFT ms", "", "", "ITL ms", "", "", "", "cache", "");
  print_text(stdout, kRow, "", "tokens/s", "mean", "p50", "p99", "mean", "p50", "p99", "preempted", "hits %",
             "seconds");
}

void print_row(const std::string& label, OrderedJson& report) {
  print_text(stdout, "{:>16} {:>10}", label, figure(report["output_tokens_per_s"], 1));
  for (const auto& [name, width] : {std::pair{"ttft_ms", 9}, std::pair{"itl_ms", 8}})
    for (const char* const what : {"mean", "p50", "p99"})
      print_text(stdout, " {:>{}}", figure(report[name][what], 1), width);
  print_text(stdout, " {:>10} {:>7} {:>10}\n", report["preemptions"].get<std::uint64_t>(),
             figure(100 * report["cache_hit_rate"].get<double>(), 1), figure(report["duration_s"], 2));
}

struct Simulate {
  CLI::App* command = nullptr;
  std::string costs, trace, sweep, svg;
  bool json = false;
  // Where none is given, as the trace or the costs file has it.
  std::optional<int> max_num_seqs, max_num_batched_tokens, max_span, max_model_len, num_blocks;
  std::size_t kv_cache_memory = 0;
  std::optional<double> swap_space;
  std::string preemption_mode = "auto", policy;
  int prefix_caching = 0;  // 1: on, -1: off
  // The generated load.
  std::string workload = "random";
  int num_prompts = 0;
  RandomSizes random;
  GeneratedLoad load;
  double request_rate = std::numeric_limits<double>::infinity();
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max();
  std::uint64_t seed = 0;

  void add_to(Flags flags) {
    command = &flags.command;
    flags.value("--costs", costs, "what steps take on a machine: a file of `quire bench costs`")->required();
    flags.value("--trace", trace,
                "what came to an engine that ran with --record FILE, instead of a generated load");
    flags.value("--sweep", sweep, "a run for each value of a setting or load: max-num-seqs=16,64,256");
    flags.value("--svg", svg, "a drawing: throughput against latency, a point each run");
    flags.on("--json", json, "print one JSON object; null: there was none");
    command->option_defaults()->group(kSettings);
    flags.value("--max-num-seqs", max_num_seqs, "sequences that run at once");
    flags.value("--max-num-batched-tokens", max_num_batched_tokens, "tokens computed in one step");
    flags.value("--long-prefill-token-threshold", max_span, "of one sequence in one step; 0: no limit");
    flags.value("--max-model-len", max_model_len, "tokens of prompt and output");
    flags.value("--num-blocks", num_blocks, "of the KV cache", CLI::Range(1, 1 << 28));
    flags.bytes("--kv-cache-memory", kv_cache_memory, "instead: bytes, or with a unit such as 4GiB");
    flags.value("--swap-space", swap_space, "GiB of host memory for blocks of preempted sequences",
                CLI::Range(0.0, 1e6));
    flags.shown("--preemption-mode", preemption_mode, "with swap space: auto, swap or recompute",
                CLI::IsMember({"auto", "swap", "recompute"}));
    flags.value("--scheduling-policy", policy, "fcfs or priority", CLI::IsMember({"fcfs", "priority"}));
    command->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", prefix_caching,
                      "whether a prompt whose beginning is cached is not computed anew");
    const CLI::Range length(1, 1 << 20), count(1, 1 << 24);
    command->option_defaults()->group(kLoad);
    flags.shown("--workload", workload, "standard (256 requests of 100 to 1024 tokens) or random",
                CLI::IsMember({"standard", "random"}));
    flags.value("--num-prompts", num_prompts, "such as 1e6 (default: 100, or all of standard)")
        ->transform([](const std::string& text) {  // which the library's integers are not read from
          const auto value = parse_number<double>(text);
          return value && *value == std::floor(*value) ? format_text("{:.0f}", *value) : text;
        })
        ->check(count);
    flags.shown("--random-input-len", random.input_len, "tokens of a random prompt", length);
    flags.shown("--random-output-len", random.output_len, "tokens of its output", length);
    flags.shown("--random-range-ratio", random.range_ratio,
                "lengths are drawn from LEN * (1 - RATIO) to LEN * (1 + RATIO)", CLI::Range(0.0, 1.0));
    flags.shown("--random-prefix-len", load.prefix_len, "tokens before a prompt that others have, too",
                CLI::Range(0, 1 << 20));
    flags.shown("--num-prefixes", load.num_prefixes, "different ones of these", count);
    flags.shown("--n", load.num_outputs, "outputs of each request", CLI::Range(1, kMaxOutputs));
    flags.value("--request-rate", request_rate, "requests a second, at random times (default: all at once)",
                kPositive);
    flags.value("--max-concurrency", max_concurrency, "sequences under way at once (default: any number)",
                CLI::Range(1, 1 << 28));
    flags.shown("--seed", seed, "of lengths and arrivals");
  }

  int run() {
    if (!svg.empty()) check_writable("--svg", svg);
    const MachineCosts machine = read_machine(costs);
    const CacheLayout& layout = machine.scheduler.layout;
    SchedulerConfig defaults = machine.scheduler;
    std::vector<Arrival> arrivals;
    if (!trace.empty()) {
      const Recording recording{std::filesystem::path(trace)};
      arrivals = recorded_arrivals(recording, layout.block_size);
      const SchedulerConfig& recorded = recording.info().scheduler;
      // Of another model's cache, sizes say nothing.
      if (recorded.layout.windows == layout.windows && recorded.layout.block_size == layout.block_size)
        defaults = recorded;
    }
    CLI::Option* swept = nullptr;
    OrderedJson report = {
        {"model", machine.model}, {"device", machine.device}, {"runs", OrderedJson::array()}};
    OrderedJson& runs = report["runs"];
    for (const std::string& value : swept_values(swept)) {
      set(swept, value);
      SchedulerConfig config = defaults;
      configure(config, machine);
      OrderedJson& row = runs.emplace_back(run_json(config, simulate_once(machine, config, arrivals)));
      if (swept != nullptr) row[swept->get_name()] = value;
      if (json) continue;
      if (runs.size() == 1) print_header(swept == nullptr ? "" : swept->get_name());
      print_row(value, row);
    }
    if (json) print_json_line(report);
    if (!svg.empty()) write_svg(machine, swept, runs);
    return 0;
  }

 private:
  // The values of --sweep, and the option that is to have one after the other; without it, one value and
  // none.
  std::vector<std::string> swept_values(CLI::Option*& option) {
    if (sweep.empty()) return {""};
    const std::size_t equals = std::min(sweep.find('='), sweep.size());
    option = command->get_option_no_throw("--" + sweep.substr(0, equals));
    if (option == nullptr || (option->get_group() != kSettings && option->get_group() != kLoad))
      fail("--sweep: {} is no setting or load", in_quotes(sweep.substr(0, equals)));
    std::vector<std::string> values;
    for (std::size_t from = equals + 1; from <= sweep.size(); from += values.back().size() + 1)
      values.push_back(sweep.substr(from, sweep.find(',', from) - from));
    if (values.empty() || std::ranges::count(values, std::string()) > 0)
      fail("--sweep: {} has no values, or an empty one; give them as max-num-seqs=16,64", in_quotes(sweep));
    return values;
  }

  void set(CLI::Option* option, const std::string& value) {
    try {
      if (option != nullptr) {
        option->clear();
        option->add_result(value);
        option->run_callback();
      }
    } catch (const CLI::ParseError& e) {
      fail("--sweep: {}", e.what());
    }
    for (const CLI::Option* const other : command->get_options())
      if (!trace.empty() && other->get_group() == kLoad && other->count() > 0)
        fail("{} is of generated loads; --trace has its own", other->get_name());
    if (num_blocks && kv_cache_memory > 0) fail("--num-blocks and --kv-cache-memory exclude each other");
  }

  void configure(SchedulerConfig& config, const MachineCosts& machine) const {
    const auto blocks_of = [&](double bytes) {
      if (machine.block_bytes == 0)
        fail("the costs file does not say how large a block is; give --num-blocks");
      if (config.num_state_slots > 0)
        fail("the model has fixed states, which share the memory; give --num-blocks");
      return static_cast<int>(std::min(bytes / machine.block_bytes, double{1 << 28}));
    };
    config.max_num_seqs = max_num_seqs.value_or(config.max_num_seqs);
    config.max_num_batched_tokens = max_num_batched_tokens.value_or(config.max_num_batched_tokens);
    config.max_span = max_span.value_or(config.max_span);
    config.max_model_len = max_model_len.value_or(config.max_model_len);
    config.num_blocks = num_blocks.value_or(config.num_blocks);
    if (kv_cache_memory > 0) config.num_blocks = blocks_of(static_cast<double>(kv_cache_memory));
    if (swap_space) config.num_host_blocks = blocks_of(*swap_space * (1 << 30));
    if (preemption_mode == "swap") config.preemption = {};  // saving costs nothing, so it always pays
    if (preemption_mode == "recompute") config.num_host_blocks = 0;
    if (policy == "fcfs") config.policy = SchedulingPolicy::kFcfs;
    if (policy == "priority") config.policy = SchedulingPolicy::kPriority;
    if (prefix_caching != 0) config.enable_prefix_caching = prefix_caching > 0;
  }

  void make_load() {
    if (workload == "standard") {
      load.sizes = standard_workload();
      if (num_prompts > std::ssize(load.sizes))
        fail("--num-prompts is {}; the standard workload has {}", num_prompts, load.sizes.size());
      if (num_prompts > 0) load.sizes.resize(num_prompts);
    } else {
      random.count = num_prompts > 0 ? num_prompts : RandomSizes{}.count;
      load.sizes = random_sizes(random, seed);
    }
    load.times = arrival_times(load.sizes.size(), request_rate, seed);
  }

  SimulationResult simulate_once(const MachineCosts& machine, const SchedulerConfig& config,
                                 std::span<const Arrival> arrivals) {
    SimulationOptions options;
    options.scheduler = config;
    options.steps_in_flight = machine.steps_in_flight;
    options.seconds = [&](const StepPlan& plan) {
      return machine.costs.seconds(StepShape(plan, config.layout));
    };
    if (!trace.empty()) return simulate(options, replay(arrivals));
    make_load();
    options.max_concurrency = max_concurrency;
    if (config.policy == SchedulingPolicy::kFcfs)
      options.max_waiting = 2 * static_cast<std::size_t>(config.max_num_seqs);
    const std::size_t total = load.sizes.size() * static_cast<std::size_t>(load.num_outputs);
    options.on_progress = [total, bar = progress_bar("sequences")](std::size_t done) {
      if (bar) bar(done, total);
    };
    return simulate(options, generate(load));
  }

  void write_svg(const MachineCosts& machine, const CLI::Option* swept, OrderedJson& runs) const {
    std::vector<LatencyPanel> panels;
    for (const auto& [name, key] : {std::pair{"TTFT", "ttft_ms"}, {"ITL", "itl_ms"}, {"E2E", "e2e_ms"}}) {
      panels.push_back({name, {}});
      for (OrderedJson& row : runs)
        panels.back().points.push_back({swept == nullptr ? "" : row[swept->get_name()],
                                        row["output_tokens_per_s"], row[key]["p50"], row[key]["p99"]});
    }
    const std::string title = format_text("{} on {}, simulated {}", machine.model, machine.device,
                                          sweep.substr(0, sweep.find('=')));
    write_file("--svg", svg, latency_plot(title, panels));
  }
};

struct CostsBench : EngineOptions {
  std::string output, recording;
  double seconds = 60;

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    add_shape_to(flags);
    flags.value("--output", output, "the file, for `quire simulate --costs`")->required();
    flags.value("--recording", recording, "fit to the steps of this recording, and measure nothing")
        ->excludes(flags.command.get_option("MODEL"), flags.command.get_option("--shape"));
    flags.shown("--seconds", seconds, "to measure for, about", CLI::Range(1.0, 36000.0));
  }

  int run() {
    refuse_several_processes("bench");
    check_writable("--output", output);
    MachineCosts machine;
    if (!recording.empty()) {
      machine = fit_machine(Recording(std::filesystem::path(recording)));
    } else {
      if (config.record.empty()) config.record = output;  // which is read before it is written
      ModelFiles model = open();
      machine = measure_costs({config, seconds, progress_bar("seconds")}, std::move(model));
      if (machine.model.empty()) machine.model = shape ? shape->name : config.model;
    }
    write_file("--output", output, to_json(machine));
    print_text(stdout, "{} on {}: {:.0f} steps, {} % off in the median, {} % at most for nine in ten\n",
               machine.model, machine.device, machine.num_steps, figure(100 * machine.median_error, 1),
               figure(100 * machine.p90_error, 1));
    return 0;
  }
};

}  // namespace

void add_simulate(CLI::App& app, Command& chosen) {
  add_command<Simulate>(app, chosen, "simulate",
                        "What the scheduler makes of a load, by what steps cost; without a model");
}

void add_bench_costs(CLI::App& bench, Command& chosen) {
  add_command<CostsBench>(bench, chosen, "costs", "What steps take here, for `quire simulate`");
}

}  // namespace quire::cli
