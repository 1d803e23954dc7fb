#include "inspect/bench.h"

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"

namespace quire::cli {
namespace {

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
  print_json_line(object);
}

// What both commands share.
struct Bench : EngineOptions {
  BenchOptions options;
  std::string tokenizer;
  bool json = false;

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    flags.command.get_option("--max-model-len")
        ->description("tokens of prompt and output (default: the workload's)");
    add_shape_to(flags);
    flags.shown("--temperature", options.request.params.temperature, "0: always the most likely token");
    flags.shown("--n", options.request.params.n, "outputs of each request", CLI::Range(1, kMaxOutputs));
    flags.shown("--presence-penalty", options.request.params.presence_penalty,
                "of every request; 0: no penalties");
    flags.value("--logprobs", options.request.params.logprobs,
                "have the log-probabilities of every token and of that many most likely ones reported");
    flags.value("--tokenizer", tokenizer, "a tokenizer.json, which structured outputs of a --shape need");
    add_structure_options(flags, options.request.params.structured_outputs);
    flags.on("--json", json, "print one JSON object; null: not measured");
  }

  int measure(std::vector<RequestSize> requests) {
    refuse_several_processes("bench");
    options.requests = std::move(requests);
    options.on_progress = progress_bar("tokens");
    ModelFiles model = open();
    if (!tokenizer.empty()) model.tokenizer.emplace(Tokenizer::from_file(tokenizer));
    options.engine = config;
    const BenchResult result = run_bench(options, std::move(model));
    (json ? print_json : print_table)(result);
    return 0;
  }
};

struct ThroughputBench : Bench {
  std::string workload = "standard";
  int num_requests = 0;
  int input_len = 0;
  int output_len = 0;

  void add_to(Flags flags) {
    const CLI::Range count(1, 1 << 20);
    Bench::add_to(flags);
    flags.shown("--workload", workload, "standard (256 requests of 100 to 1024 tokens) or random",
                CLI::IsMember({"standard", "random"}));
    flags.value("--requests", num_requests, "of standard: the first ones (default: all, random: 8)", count);
    flags.value("--input-len", input_len, "tokens of a random prompt (default: 512)", count);
    flags.value("--output-len", output_len, "tokens of its output (default: 128)", count);
  }
  int run() { return measure(requests()); }

 private:
  std::vector<RequestSize> requests() const {
    if (workload == "random") {
      const RequestSize size{input_len == 0 ? 512 : input_len, output_len == 0 ? 128 : output_len};
      return std::vector<RequestSize>(num_requests == 0 ? 8 : num_requests, size);
    }
    if (input_len != 0 || output_len != 0)
      fail("--input-len and --output-len are for --workload random; standard has lengths of its own");
    std::vector<RequestSize> sizes = standard_workload();
    if (num_requests > static_cast<int>(sizes.size()))
      fail("--requests is {}; the standard workload has {}", num_requests, sizes.size());
    if (num_requests > 0) sizes.resize(num_requests);
    return sizes;
  }
};

struct LatencyBench : Bench {
  RequestSize size{512, 32};
  int batch = 1;

  LatencyBench() { options.rounds = 3; }
  void add_to(Flags flags) {
    const CLI::Range length(1, 1 << 20), count(1, 1 << 16);
    Bench::add_to(flags);
    flags.shown("--input-len", size.prompt_tokens, "tokens of a prompt", length);
    flags.shown("--output-len", size.output_tokens, "tokens of an output", length);
    flags.shown("--batch", batch, "requests at once", count);
    flags.shown("--repeat", options.rounds, "batches, one after the other", count);
  }
  int run() { return measure(std::vector(static_cast<std::size_t>(batch), size)); }
};

double ratio(double amount, double by) { return by > 0 ? amount / by : std::nan(""); }

// Of the turns of a number, or of all. NaN: there are none, or the server does not tell.
OrderedJson agent_figures(const std::vector<AgentTurn>& turns, std::optional<int> number = {}) {
  double prompt = 0, output = 0, reusable = 0, cached = std::nan(""), again = 0;
  std::vector<double> first_token_ms;
  for (const AgentTurn& turn : turns) {
    if (!turn.error.empty() || turn.number != number.value_or(turn.number)) continue;
    prompt += turn.prompt_tokens;
    output += turn.output_tokens;
    reusable += turn.reusable_tokens;
    if (turn.cached_tokens) cached = std::fmax(cached, 0) + *turn.cached_tokens;
    again += std::max(0, turn.reusable_tokens - turn.cached_tokens.value_or(0));  // a 0 may be left out
    first_token_ms.push_back(turn.first_token_ms);
  }
  return {{"completed", first_token_ms.size()},
          {"prompt_tokens", std::llround(prompt)},
          {"output_tokens", std::llround(output)},
          {"total_tokens", std::llround(prompt + output)},
          {"reusable_tokens", std::llround(reusable)},
          {"prompt_tokens_mean", ratio(prompt, static_cast<double>(first_token_ms.size()))},
          {"ttft_ms", {{"p50", percentile(first_token_ms, 0.5)}, {"p95", percentile(first_token_ms, 0.95)}}},
          {"cached_share", ratio(cached, prompt)},
          {"computed_again_share", std::isnan(cached) ? cached : again / std::fmax(reusable, 1)}};
}

std::string share(double value) { return std::isnan(value) ? "not told" : figure(100 * value, 2) + " %"; }

void print_agent_table(OrderedJson& report) {
  print_text(stdout, "turn     prompt  first token ms: p50       p95     cached\n");
  int number = 0;
  for (OrderedJson& turn : report["turns"]) {
    if (++number; turn["completed"] == 0) continue;
    OrderedJson& ttft = turn["ttft_ms"];
    print_text(stdout, "{:>4} {:>10} {:>20} {:>9} {:>10}\n", number, figure(turn["prompt_tokens_mean"], 0),
               figure(ttft["p50"], 1), figure(ttft["p95"], 1), share(turn["cached_share"]));
  }
  print_figure("done", report["completed"].dump(), "turns      in " + figure(report["duration_s"], 2) + " s");
  for (const std::string what : {"prompt", "output", "total"})
    print_figure(what, figure(report[what + "_tokens_per_s"], 1), "tokens/s");
  print_figure("again", share(report["computed_again_share"]),
               "of " + report["reusable_tokens"].dump() + " tokens of prompts that could have been reused");
}

struct AgentBench : EngineOptions {
  AgentSizes sizes;
  int concurrency = 16;
  AgentServer server;
  bool json = false;

  void add_to(Flags flags) {
    const CLI::Range length(1, 1 << 20), count(1, 1000);
    EngineOptions::add_to(flags);
    add_shape_to(flags);
    flags.shown("--system-len", sizes.system_tokens, "tokens that all conversations begin with", length);
    flags.shown("--turns", sizes.turns, "of a conversation", count);
    flags.value("--input-len", sizes.input, "least and most that a turn adds (default: 200 2000)", length);
    flags.value("--output-len", sizes.output, "least and most of its output (default: 100 400)", length);
    flags.shown("--conversations", sizes.conversations, "in all", count);
    flags.shown("--concurrency", concurrency, "conversations at once", count);
    flags.shown("--seed", sizes.seed, "of lengths and tokens");
    flags.shown("--temperature", server.temperature, "0: always the most likely token");
    flags.value("--url,--base-url", server.url, "of a server to load instead, such as http://127.0.0.1:8000")
        ->excludes(flags.command.get_option("MODEL"), flags.command.get_option("--shape"));
    flags.value("--model", server.model, "its name there (default: the first that /v1/models lists)")
        ->needs("--url");
    flags.value("--api-key", server.api_key, "sent there as a bearer token")->envname("OPENAI_API_KEY");
    flags.shown("--extra-body", server.extra_body, "fields of every request there, a JSON object")
        ->needs("--url");
    flags.shown("--vocab-size", sizes.vocab_size, "prompts' token ids are below", CLI::Range(257, 1 << 24));
    flags.on("--json", json, "print one JSON object; null: not measured, or not told");
  }

  int run() {
    refuse_several_processes("bench");
    const AgentWorkload workload = make_agent_workload(sizes);
    const auto runner = server.url.empty() ? engine_turns(config, open(), workload, server.temperature)
                                           : open_agent_server(server);
    const InterruptFlag flag;
    AgentSizes few{std::min(sizes.system_tokens, 64), 1, {1, 1}, {1, 1}, 8, sizes.vocab_size, ~sizes.seed};
    for (const AgentTurn& turn :
         run_agents(*runner, make_agent_workload(few), concurrency, InterruptFlag::is_raised))
      if (!turn.error.empty()) fail("the first request failed: {}", turn.error);
    const auto turns =
        run_agents(*runner, workload, concurrency, InterruptFlag::is_raised, progress_bar("turns"));
    OrderedJson report = agent_figures(turns);
    const double seconds = turns.empty() ? 0 : turns.back().end_s;
    report["failed"] = turns.size() - report["completed"].get<std::size_t>();
    report["duration_s"] = seconds;
    for (const std::string what : {"prompt", "output", "total"})
      report[what + "_tokens_per_s"] = ratio(report[what + "_tokens"], seconds);
    for (int i = 0; i < sizes.turns; ++i) report["turns"].push_back(agent_figures(turns, i));
    json ? print_json_line(report) : print_agent_table(report);
    for (const AgentTurn& turn : turns)
      if (!turn.error.empty())
        print_text(stderr, "quire: turn {} of a conversation: {}\n", turn.number + 1, turn.error);
    return InterruptFlag::is_raised() ? kInterrupted : report["completed"] == 0 ? kFailed : 0;
  }
};

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("bench", "Measure speed, beside this machine's limits");
  command->require_subcommand(1);
  add_command<ThroughputBench>(*command, chosen, "throughput", "Many requests at once");
  add_command<LatencyBench>(*command, chosen, "latency", "One batch at a time");
  add_command<AgentBench>(*command, chosen, "agent", "Conversations of many turns");
  add_bench_techniques(*command, chosen);
  add_bench_serve(*command, chosen);
  add_bench_costs(*command, chosen);
}

}  // namespace quire::cli
