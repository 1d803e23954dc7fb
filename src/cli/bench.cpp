#include "inspect/bench.h"

#include <unistd.h>

#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "cli/bench_output.h"
#include "cli/commands.h"
#include "cli/follower.h"
#include "cli/options.h"
#include "inspect/shapes.h"

namespace quire::cli {
namespace {

// What both commands share.
struct Bench {
  BenchOptions options;
  ModelSource source;
  std::string shape;
  bool json = false;

  int run();
};

struct Throughput : Bench {
  std::string workload = "standard";
  int num_requests = 0;
  int input_len = 0;
  int output_len = 0;

  std::vector<RequestSize> requests() const;
};

struct Latency : Bench {
  RequestSize size{512, 32};
  int batch = 1;
};

std::vector<RequestSize> Throughput::requests() const {
  if (workload == "random") {
    const RequestSize size{input_len == 0 ? 512 : input_len, output_len == 0 ? 128 : output_len};
    return std::vector<RequestSize>(static_cast<std::size_t>(num_requests == 0 ? 8 : num_requests), size);
  }
  if (input_len != 0 || output_len != 0)
    fail("--input-len and --output-len are for --workload random; standard has lengths of its own");
  std::vector<RequestSize> sizes = standard_workload();
  if (num_requests > static_cast<int>(sizes.size()))
    fail("--requests is {}; the standard workload has {}", num_requests, sizes.size());
  if (num_requests > 0) sizes.resize(static_cast<std::size_t>(num_requests));
  return sizes;
}

double op_ms(const DecodeBreakdown& decode, OpKind kind) { return decode.ms[static_cast<std::size_t>(kind)]; }

void print_breakdown(const DecodeBreakdown& d) {
  print_text(
      stdout,
      "step     {:>10.3f} ms mean of a decode step: attention {:.3f} ({:.1f} % of the read ceiling), "
      "products {:.3f} ({:.1f} % of theirs), sampling {:.3f}, other {:.3f}, gaps less overlap {:.3f}\n",
      d.step_ms, op_ms(d, OpKind::kAttention), 100 * d.attention_share, op_ms(d, OpKind::kLinear),
      100 * d.linear_share, op_ms(d, OpKind::kSampling), op_ms(d, OpKind::kOther), d.gap_ms);
}

void print_table(const BenchResult& r) {
  print_figure("prefill", figure(r.prefill_tokens_per_s, 1),
               format_text("tokens/s   {} % of the {} GFLOP/s of this machine",
                           figure(100 * r.matrix_share, 1), figure(r.ceiling.matrix_gflop_per_s, 0)));
  print_figure("decode", figure(r.decode_tokens_per_s, 1),
               format_text("tokens/s   {} % of the {} GB/s of this machine", figure(100 * r.read_share, 1),
                           figure(r.ceiling.read_gb_per_s, 1)));
  print_figure("output", figure(r.output_tokens_per_s, 1), "tokens/s   end to end");
  print_figure("TTFT", figure(r.ttft_ms.p50, 1),
               format_text("ms median, {} ms p99", figure(r.ttft_ms.p99, 1)));
  print_figure("ITL", figure(r.itl_ms.p50, 1), format_text("ms median, {} ms p99", figure(r.itl_ms.p99, 1)));
  if (r.decode) print_breakdown(*r.decode);
  double start = 0;
  for (const StartupPhase& phase : r.startup) start += phase.seconds;
  std::string phases;
  for (const StartupPhase& phase : r.startup)
    phases += format_text("{}{} {:.2f}", phases.empty() ? "" : ", ", phase.name, phase.seconds);
  print_figure("start", figure(start, 2), format_text("s          {}", phases));
}

OrderedJson breakdown_json(const DecodeBreakdown& d) {
  return {{"step_ms", d.step_ms},
          {"attention_ms", op_ms(d, OpKind::kAttention)},
          {"linear_ms", op_ms(d, OpKind::kLinear)},
          {"sampling_ms", op_ms(d, OpKind::kSampling)},
          {"other_ms", op_ms(d, OpKind::kOther)},
          {"gap_ms", d.gap_ms},
          {"attention_share", d.attention_share},
          {"linear_share", d.linear_share}};
}

void print_json(const BenchResult& r) {
  OrderedJson startup = OrderedJson::object();
  for (const StartupPhase& phase : r.startup) startup[phase.name] = phase.seconds;
  OrderedJson object = {
      {"prefill_tokens_per_s", r.prefill_tokens_per_s},
      {"decode_tokens_per_s", r.decode_tokens_per_s},
      {"output_tokens_per_s", r.output_tokens_per_s},
      {"ttft_ms", {{"p50", r.ttft_ms.p50}, {"p99", r.ttft_ms.p99}}},
      {"itl_ms", {{"p50", r.itl_ms.p50}, {"p99", r.itl_ms.p99}}},
      {"ceiling", {{"read_GBps", r.ceiling.read_gb_per_s}, {"matrix_GFLOPs", r.ceiling.matrix_gflop_per_s}}},
      {"share", {{"read", r.read_share}, {"matrix", r.matrix_share}}},
      {"startup_s", startup}};
  if (r.decode) object["decode_step"] = breakdown_json(*r.decode);
  print_text(stdout, "{}\n", object.dump());  // NaN, which was not measured, becomes null
}

int Bench::run() {
  refuse_several_processes("bench");
  if (isatty(STDERR_FILENO) != 0) {
    options.on_progress = [](std::size_t done, std::size_t total) { show_progress(done, total, "tokens"); };
  }
  options.engine.model = source.find(options.engine.model);
  const BenchResult result =
      run_bench(options, shape.empty() ? open_model(options.engine.model) : random_model(find_shape(shape)));
  (json ? print_json : print_table)(result);
  return 0;
}

void add_common_options(CLI::App& command, Bench& bench) {
  add_engine_options(command, bench.options.engine, bench.source);
  command.get_option("--max-model-len")->description("tokens of prompt and output (default: the workload's)");
  add_shape_option(command, bench.shape);
  add_shown_option(command, "--temperature", bench.options.temperature, "0: always the most likely token");
  add_shown_option(command, "--n", bench.options.num_outputs, "outputs of each request")
      ->check(CLI::Range(1, 16384));
  add_shown_option(command, "--presence-penalty", bench.options.presence_penalty,
                   "of every request; 0: no penalties");
  command.add_option("--logprobs", bench.options.logprobs,
                     "have the log-probabilities of every token and of that many most likely ones reported");
  command.add_flag("--json", bench.json, "print one JSON object; null: not measured");
}

void add_throughput(CLI::App& bench, Command& chosen) {
  auto state = std::make_shared<Throughput>();
  CLI::App* command = bench.add_subcommand("throughput", "Many requests at once");
  add_common_options(*command, *state);
  add_shown_option(*command, "--workload", state->workload,
                   "standard (256 requests of 100 to 1024 tokens) or random")
      ->check(CLI::IsMember({"standard", "random"}));
  command
      ->add_option("--requests", state->num_requests, "of standard: the first ones (default: all, random: 8)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--input-len", state->input_len, "tokens of a random prompt (default: 512)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--output-len", state->output_len, "tokens of its output (default: 128)")
      ->check(CLI::Range(1, 1 << 20));
  on_chosen(*command, chosen, [state] {
    if (state->shape == "list") return list_shapes();
    state->options.requests = state->requests();
    return state->run();
  });
}

void add_latency(CLI::App& bench, Command& chosen) {
  auto state = std::make_shared<Latency>();
  state->options.rounds = 3;
  CLI::App* command = bench.add_subcommand("latency", "One batch at a time");
  add_common_options(*command, *state);
  add_shown_option(*command, "--input-len", state->size.prompt_tokens, "tokens of a prompt")
      ->check(CLI::Range(1, 1 << 20));
  add_shown_option(*command, "--output-len", state->size.output_tokens, "tokens of an output")
      ->check(CLI::Range(1, 1 << 20));
  add_shown_option(*command, "--batch", state->batch, "requests at once")->check(CLI::Range(1, 1 << 16));
  add_shown_option(*command, "--repeat", state->options.rounds, "batches, one after the other")
      ->check(CLI::Range(1, 1 << 16));
  on_chosen(*command, chosen, [state] {
    if (state->shape == "list") return list_shapes();
    state->options.requests.assign(static_cast<std::size_t>(state->batch), state->size);
    return state->run();
  });
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("bench", "Measure speed, beside this machine's limits");
  command->require_subcommand(1);
  add_throughput(*command, chosen);
  add_latency(*command, chosen);
  add_bench_serve(*command, chosen);
}

}  // namespace quire::cli
