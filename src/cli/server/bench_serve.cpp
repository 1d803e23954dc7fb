#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/bench.h"
#include "inspect/latency_plot.h"
#include "load/load_generator.h"

namespace quire::cli {
namespace {

struct Latency {
  const char* name;
  const char* key;
  std::vector<double> LoadFigures::*values;
};
constexpr Latency kLatencies[] = {{"TTFT", "ttft_ms", &LoadFigures::ttft_ms},
                                  {"TPOT", "tpot_ms", &LoadFigures::tpot_ms},
                                  {"ITL", "itl_ms", &LoadFigures::itl_ms},
                                  {"E2E", "e2e_ms", &LoadFigures::e2e_ms}};

// Every request has a connection of its own.
void allow_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// As SDKs name it or not: http://host:8000, http://host:8000/ or http://host:8000/v1.
std::string base_url(std::string url) {
  if (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

struct BenchServe {
  std::string url;
  std::string endpoint = "/v1/completions";
  std::string api_key;
  std::string dataset;
  RandomSizes random;
  int num_prompts = 0;
  int vocab_size = 4096;
  int num_warmups = 0;
  RequestForm form;
  std::vector<double> request_rates = {std::numeric_limits<double>::infinity()};
  std::vector<std::size_t> max_concurrencies;
  std::uint64_t seed = 0;
  std::vector<double> percentiles = {50, 90, 99};
  bool json = false;
  std::string plot;

  void add_to(Flags flags) {
    flags.value("--url,--base-url", url, "of the server, such as http://127.0.0.1:8000")->required();
    flags.shown("--endpoint", endpoint, "/v1/completions or /v1/chat/completions");
    flags.value("--model", form.model, "its name there (default: the first that /v1/models lists)");
    flags.value("--api-key", api_key, "sent as a bearer token")->envname("OPENAI_API_KEY");
    flags.on("--ignore-eos", form.ignore_eos, "ask for outputs of full length");
    flags.value("--temperature", form.temperature, "(default: the server's)");
    flags.value("--extra-body", form.extra_body,
                "fields of every request, such as '{\"structured_outputs\": {\"json_object\": true}}'");
    flags.off("--no-stream", form.stream, "whole answers; measures E2E alone");
    const CLI::Range length(1, 1 << 20);
    flags.value("--num-prompts", num_prompts, "requests of a run (default: 100, or the dataset's)",
                CLI::Range(1, 1 << 24));
    flags.shown("--random-input-len", random.input_len, "tokens of a random prompt; words in a chat", length);
    flags.shown("--random-output-len", random.output_len, "tokens of its output at most", length);
    flags.shown("--random-range-ratio", random.range_ratio,
                "lengths are drawn from LEN * (1 - RATIO) to LEN * (1 + RATIO)", CLI::Range(0.0, 1.0));
    flags.shown("--vocab-size", vocab_size, "random prompts have token ids from 256 to below this",
                CLI::Range(257, 1 << 24));
    flags.value("--dataset", dataset,
                "instead of random requests: a file of lines {\"prompt\": TEXT, \"output_len\": TOKENS} or "
                "{\"input_len\": TOKENS, \"output_len\": TOKENS}");
    flags.shown("--seed", seed, "of prompts and arrivals; a list's later runs count up from it");
    flags
        .comma_list(
            "--request-rate", request_rates,
            "requests a second, at random times; inf: no waiting; a list such as 1,2,4: a run of each",
            kPositive)
        ->default_str("inf");
    flags.comma_list("--max-concurrency", max_concurrencies,
                     "requests at once at most; a list such as 1,4,16: a run of each (default: any number)",
                     CLI::Range(1, 1 << 20));
    flags.shown("--num-warmups", num_warmups, "requests before the first run", CLI::Range(0, 1 << 20));
    flags
        .comma_list("--percentiles,--metric-percentiles", percentiles, "of the latencies",
                    CLI::Range(0.0, 100.0))
        ->default_str("50,90,99");
    flags.on("--json", json, "print one JSON object; null: not measured");
    flags.value("--plot", plot, "an SVG file: throughput against latency, a point each run");
  }

  int run() {
    check_flags();
    allow_open_files();
    if (form.model.empty()) form.model = first_model(url, api_key);
    const LoadTarget target{url + endpoint, api_key, form};
    const InterruptFlag flag;
    HttpClient client;
    prepare(client, target);
    std::vector<Run> runs;
    const int code = measure(client, target, runs);
    if (json) {
      OrderedJson object = {{"url", target.url}, {"model", form.model}, {"runs", OrderedJson::array()}};
      for (const Run& run : runs) object["runs"].push_back(run_json(run));
      print_json_line(object);
    }
    if (!plot.empty()) write_plot(runs);
    return code;
  }

 private:
  struct Run {
    LoadOptions load;
    std::string label;
    LoadFigures figures;
  };

  void check_flags() {
    url = base_url(url);
    if (!endpoint.starts_with('/') || !endpoint.ends_with("/completions"))
      fail("--endpoint is {}; use /v1/completions or /v1/chat/completions", in_quotes(endpoint));
    form.chat = endpoint.ends_with("/chat/completions");
    if (request_rates.size() > 1 && max_concurrencies.size() > 1)
      fail("--request-rate and --max-concurrency both are lists; one of them may be");
    if (!plot.empty()) check_writable("--plot", plot);
  }

  std::vector<LoadRequest> make_requests(std::uint64_t prompt_seed) const {
    std::vector<LoadRequest> requests;
    if (dataset.empty()) {
      RandomSizes sizes = random;
      if (num_prompts > 0) sizes.count = num_prompts;
      requests = random_requests(sizes, prompt_seed);
    } else {
      requests = read_dataset(dataset);
      const std::size_t lines = requests.size();
      if (num_prompts > 0) requests.resize(num_prompts);
      for (std::size_t i = lines; i < requests.size(); ++i) requests[i] = requests[i % lines];
    }
    fill_prompts(requests, form.chat, vocab_size, prompt_seed);
    return requests;
  }

  std::vector<Run> plan_runs() const {
    const std::size_t count = std::max(request_rates.size(), max_concurrencies.size());
    std::vector<Run> runs(count);
    for (std::size_t i = 0; i < count; ++i) {
      Run& run = runs[i];
      run.load.seed = seed + i;
      run.load.requests_per_s = request_rates[std::min(i, request_rates.size() - 1)];
      run.load.interrupted = InterruptFlag::is_raised;
      if (!max_concurrencies.empty()) {
        run.load.max_concurrency = max_concurrencies[std::min(i, max_concurrencies.size() - 1)];
        run.label = format_text("{} at once", run.load.max_concurrency);
      }
      if (std::isfinite(run.load.requests_per_s))
        run.label += format_text("{}{}/s", run.label.empty() ? "" : ", ", run.load.requests_per_s);
      if (run.label.empty()) run.label = "all at once";
      run.load.on_progress = progress_bar("requests");
    }
    return runs;
  }

  // A request to see that the server answers, and the warm-up. Their prompts are not those of the runs, which
  // the server might remember.
  void prepare(HttpClient& client, const LoadTarget& target) const {
    std::vector<LoadRequest> requests = make_requests(~seed);
    std::vector<LoadRequest> warmups;
    for (std::size_t i = 1; i <= static_cast<std::size_t>(num_warmups); ++i)
      warmups.push_back(requests[i % requests.size()]);
    requests.resize(1);
    LoadOptions load = plan_runs().front().load;
    load.on_progress = {};
    const LoadFigures first = load_figures(run_load(client, target, requests, load));
    if (first.num_failed > 0) fail("{}: the first request failed: {}", target.url, first.first_error);
    run_load(client, target, warmups, load);
  }

  // Makes the runs, up to an interruption or one in which nothing was done; `runs` gets those made. Returns
  // the exit code.
  int measure(HttpClient& client, const LoadTarget& target, std::vector<Run>& runs) const {
    for (Run& run : plan_runs()) {
      if (InterruptFlag::is_raised()) break;
      const std::vector<LoadRequest> requests = make_requests(run.load.seed);
      run.figures = load_figures(run_load(client, target, requests, run.load));
      if (InterruptFlag::is_raised() && run.load.on_progress) print_text(stderr, "\n");  // after the bar
      if (!json) print_table(run);
      if (run.figures.num_failed > 0)
        print_text(stderr, "quire: {} of {} requests failed, the first with: {}\n", run.figures.num_failed,
                   requests.size(), run.figures.first_error);
      runs.push_back(std::move(run));
      if (runs.back().figures.num_done == 0) break;
    }
    return InterruptFlag::is_raised() ? kInterrupted : runs.back().figures.num_done == 0 ? kFailed : 0;
  }

  void print_table(const Run& run) const {
    const LoadFigures& f = run.figures;
    print_text(stdout, "{}\n", run.label);
    std::string others = f.num_failed > 0 ? format_text(", {} failed", f.num_failed) : "";
    if (f.num_cancelled > 0) others += format_text(", {} cancelled", f.num_cancelled);
    if (f.num_without_usage > 0)
      others += format_text(", {} without usage: chunks counted as tokens", f.num_without_usage);
    print_figure(
        "done", format_text("{}", f.num_done),
        format_text("requests   in {:.2f} s, {} at once at most{}", f.seconds, f.peak_concurrency, others));
    print_figure("requests", figure(f.per_s(f.num_done), 2), "a second");
    for (const auto& [what, tokens] : {std::pair{"prompt", f.prompt_tokens}, {"output", f.output_tokens}})
      print_figure(what, figure(f.per_s(tokens), 1), format_text("tokens/s   {} tokens", tokens));
    for (const Latency& latency : kLatencies) {
      const std::vector<double>& values = f.*latency.values;
      if (values.empty()) continue;
      std::string note = "ms mean";
      for (const double p : percentiles)
        note += format_text(", {} p{}", figure(percentile(values, p / 100), 2), p);
      print_figure(latency.name, figure(mean(values), 2), note);
    }
  }

  OrderedJson run_json(const Run& run) const {
    const LoadFigures& f = run.figures;
    OrderedJson object = {{"request_rate", run.load.requests_per_s},  // null: all at once
                          {"max_concurrency", nullptr},
                          {"completed", f.num_done},
                          {"failed", f.num_failed},
                          {"cancelled", f.num_cancelled},
                          {"without_usage", f.num_without_usage},
                          {"duration_s", f.seconds},
                          {"peak_concurrency", f.peak_concurrency},
                          {"prompt_tokens", f.prompt_tokens},
                          {"output_tokens", f.output_tokens},
                          {"requests_per_s", f.per_s(f.num_done)},
                          {"output_tokens_per_s", f.per_s(f.output_tokens)},
                          {"total_tokens_per_s", f.per_s(f.prompt_tokens + f.output_tokens)}};
    if (!max_concurrencies.empty()) object["max_concurrency"] = run.load.max_concurrency;
    for (const Latency& latency : kLatencies) {
      const std::vector<double>& values = f.*latency.values;
      OrderedJson& figures = object[latency.key] = {{"mean", mean(values)}};
      for (const double p : percentiles) figures[format_text("p{}", p)] = percentile(values, p / 100);
    }
    if (!f.first_error.empty()) object["first_error"] = f.first_error;
    return object;
  }

  void write_plot(const std::vector<Run>& runs) const {
    const bool by_rate = request_rates.size() > 1;
    std::vector<LatencyPanel> panels;
    for (const Latency& latency : kLatencies) {
      if (latency.values == &LoadFigures::tpot_ms) continue;  // much the same as ITL
      LatencyPanel panel{latency.name, {}};
      for (const Run& run : runs) {
        const std::vector<double>& values = run.figures.*latency.values;
        if (values.empty()) continue;
        panel.points.push_back({by_rate ? format_text("{}", run.load.requests_per_s)
                                        : format_text("{}", run.figures.peak_concurrency),
                                run.figures.per_s(run.figures.output_tokens), percentile(values, 0.5),
                                percentile(values, 0.99)});
      }
      if (!panel.points.empty()) panels.push_back(std::move(panel));
    }
    const std::string title =
        format_text("{} at {}, by requests {}", form.model, url, by_rate ? "a second" : "at once");
    write_file("--plot", plot, latency_plot(title, panels));
  }
};

}  // namespace

void add_bench_serve(CLI::App& bench, Command& chosen) {
  add_command<BenchServe>(bench, chosen, "serve", "Load for any OpenAI-compatible server");
}

std::unique_ptr<TurnRunner> open_agent_server(const AgentServer& server) {
  allow_open_files();
  const std::string url = base_url(server.url);
  const std::string model = server.model.empty() ? first_model(url, server.api_key) : server.model;
  RequestForm form{.model = model, .ignore_eos = true, .temperature = server.temperature};
  form.extra_body = server.extra_body;
  return server_turns({url + "/v1/completions", server.api_key, form});
}

}  // namespace quire::cli
