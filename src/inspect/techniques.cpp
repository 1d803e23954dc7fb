#include "inspect/techniques.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "backends/registry.h"
#include "base/error.h"
#include "inspect/capacity.h"
#include "inspect/plain_loops.h"
#include "inspect/shapes.h"

namespace quire {
namespace {

// Requests, and how they come.
struct Workload {
  std::vector<EngineRequest> requests = {};
  std::size_t at_once = std::numeric_limits<std::size_t>::max();  // the others come when these are under way
  std::vector<EngineRequest> before = {};  // so that no row pays for what is prepared once

  int longest() const {
    int longest = 0;
    for (const EngineRequest& request : requests)
      longest = std::max(longest, static_cast<int>(request.prompt.size()) + request.params.max_tokens);
    return longest;
  }
};

// sequences: the most at once. plan: of what ran them.
void set_figures(TechniqueRow& row, const Round& round, std::size_t at_once, int sequences,
                 const MemoryPlan& plan) {
  std::vector<double> first_ms, pause_ms;
  double num_tokens = 0;
  const std::size_t first_late = at_once < round.outputs.size() ? at_once : 0;
  for (std::size_t i = 0; i < round.outputs.size(); ++i) {
    const auto& times = round.outputs[i].times;
    num_tokens += static_cast<double>(round.outputs[i].tokens.size());
    if (i >= first_late) first_ms.push_back(1e3 * seconds_between(times[0], times[1]));
    double longest = 0;
    for (std::size_t t = 2; t < times.size(); ++t)
      longest = std::max(longest, 1e3 * seconds_between(times[t - 1], times[t]));
    pause_ms.push_back(longest);
  }
  row.figures["tokens_per_s"] = num_tokens / round.seconds;
  row.figures["first_token_ms"] = percentile(first_ms, 0.5);
  row.figures["longest_pause_ms"] = percentile(pause_ms, 0.5);
  row.figures["sequences"] = sequences;
  row.figures["weight_bytes"] = static_cast<double>(plan.weights);
  row.figures["kv_cache_bytes"] = static_cast<double>(plan.kv_cache);
}

class TechniqueBench {
 public:
  explicit TechniqueBench(const TechniqueOptions& options) : options_(options), random_(options.seed) {
    {
      const auto backend = make_backend(device_options(options.engine));
      on_gpu_ = backend->device() != DeviceKind::kCpu;
      has_graphs_ = backend->has_graphs();
      report_.device = backend->name();
    }
    const auto settle = [this](int& size, int on_cpu, int on_gpu) {
      if (size == 0) size = on_gpu_ ? on_gpu : on_cpu;
    };
    settle(options_.num_prompts, 24, 64);
    settle(options_.batch, 8, 16);
    settle(options_.input_len, 64, 512);
    settle(options_.output_len, 16, 128);
    const ModelFiles model = options.open();
    capacity_ = plan_capacity(options.engine, model.config, 0, model.open_formats().get());
    report_.dtype = to_string(capacity_.config.dtype);
    check();
  }

  TechniqueReport measure() {
    draw_many();
    measure_many();
    measure_prefix();
    measure_interruption();
    measure_one_stream();
    measure_packing();
    return std::move(report_);
  }

 private:
  void check() const {
    const int context = capacity_.config.spec.max_model_len;
    if (options_.batch > options_.num_prompts)
      fail("--batch is {}; there are {} requests (--num-prompts)", options_.batch, options_.num_prompts);
    if (capacity_.config.num_state_slots > 0)
      fail("bench techniques compares ways to keep keys and values; layers of {} have a state of fixed size",
           capacity_.architecture);
    if (const int longest = 8 * options_.input_len + options_.output_len; longest > context)
      fail("8 times --input-len, and --output-len, are {} tokens; the context is {}", longest, context);
  }

  std::vector<TokenId> draw_tokens(int count) {
    return random_tokens(count, capacity_.config.spec.vocab_size, random_);
  }
  void draw_many() {
    const auto length = [this](int most) {
      return std::uniform_int_distribution(std::max(1, most / 8), most)(random_);
    };
    for (int i = 0; i < options_.num_prompts; ++i) {
      std::vector<TokenId> prompt = draw_tokens(length(options_.input_len));
      many_.push_back(sized_request(std::move(prompt), length(options_.output_len)));
    }
    few_.assign(many_.begin(), many_.begin() + (options_.num_prompts + 3) / 4);
  }

  void begin(std::string what, Workload workload) {
    report_.workloads.push_back(std::move(what));
    workload_ = std::move(workload);
    for (int i = 0; i < options_.batch; ++i) workload_.before.push_back(sized_request({0}, 3));
  }
  // Of engines and loops alike, with memory for so many of the workload's longest requests.
  EngineConfig config_for(int max_num_seqs, int num_reserved) const {
    const CacheLayout& layout = capacity_.config.cache.layout;
    EngineConfig config = options_.engine;
    config.max_num_batched_tokens = std::max(options_.batch, 8) * options_.input_len + options_.batch;
    config.max_num_seqs = max_num_seqs;
    config.max_model_len = workload_.longest();
    config.kv_cache_memory =
        capacity_.config.block_bytes() *
        static_cast<std::size_t>(num_reserved * layout.rows_for(config.max_model_len) * layout.num_lanes());
    config.enable_prefix_caching = false;
    config.enforce_eager = true;
    return config;
  }

  void run_loop(TechniqueRow row, int batch, Round (PlainLoops::*run)(std::span<const EngineRequest>)) {
    PlainLoops loops(config_for(batch, batch), options_.open(), batch);
    (loops.*run)(workload_.before);
    const Round round = (loops.*run)(workload_.requests);
    set_figures(row, round, workload_.at_once, batch, loops.ranks().own().plan_memory());
    if (run == &PlainLoops::run_without_cache) row.figures["kv_cache_bytes"] = 0;
    add(std::move(row), round.outputs);
  }

  // may_differ: in tokens; then the model or the device may refuse it, too.
  void run_engine(TechniqueRow row, const EngineConfig& config, bool may_differ = false) try {
    ModelFiles model = options_.open();
    model.tokenizer.reset();  // nobody reads the text
    int most_running = 0;
    Engine engine(config, std::move(model));
    run_round(engine, workload_.before);
    engine.observe_steps([&](const StepRecord&) {
      most_running = std::max(most_running, engine.stats().scheduler.num_running);
    });
    const Round round = run_round(engine, workload_.requests, {}, workload_.at_once);
    engine.observe_steps({});
    set_figures(row, round, workload_.at_once, most_running, engine.memory_plan());
    add(std::move(row), round.outputs, may_differ);
  } catch (const Error& e) {
    if (!may_differ) throw;
    row.skipped = e.what();
    add(std::move(row));
  }

  void add(TechniqueRow row, const std::vector<TimedOutput>& outputs = {}, bool may_differ = false) {
    constexpr std::size_t kNumRows = 16;
    row.workload = report_.workloads.size() - 1;
    for (const TechniqueRow& other : report_.rows)
      if (other.workload == row.workload && (row.against.empty() || other.skipped.empty()))
        row.against = other.name;
    if (const TechniqueRow* before = report_.before(row)) {
      const double was = before->value(row.figure), is = row.value();
      row.factor = row.figure.ends_with("_ms") ? was / is : is / was;
    }
    if (row.against.empty())
      baseline_ = outputs;
    else if (!outputs.empty())  // a GPU's sums depend on what is computed beside, unless that is forbidden
      compare_outputs(baseline_, outputs, !may_differ && (!on_gpu_ || options_.engine.deterministic), row);
    report_.rows.push_back(std::move(row));
    if (options_.on_progress) options_.on_progress(report_.rows.size(), kNumRows);
  }

  // All but the first two in the memory that `batch` reservations of the longest request take.
  void measure_many() {
    const int batch = options_.batch;
    begin(format_text("{} requests at once, up to {} tokens in and {} out", many_.size(), options_.input_len,
                      options_.output_len),
          {many_});
    run_loop({.name = "no KV cache"}, 1, &PlainLoops::run_without_cache);
    run_loop({.name = "KV cache, one at a time"}, 1, &PlainLoops::run_in_batches);
    run_loop({.name = "static batches, padded"}, batch, &PlainLoops::run_in_batches);
    run_engine({.name = "continuous batching"}, config_for(batch, batch));
    EngineConfig config = config_for(options_.num_prompts, batch);
    run_engine({.name = "paged KV cache", .figure = "sequences"}, config);
    config.kv_cache_dtype = "fp8";
    run_engine({.name = "8-bit KV cache", .figure = "sequences"}, config, true);
  }

  void measure_prefix() {
    const std::vector<TokenId> prefix = draw_tokens(4 * options_.input_len);
    Workload workload{.requests = few_, .before = {sized_request(prefix, 1)}};
    for (EngineRequest& request : workload.requests)
      request.prompt.insert(request.prompt.begin(), prefix.begin(), prefix.end());
    begin(format_text("{} of them, behind {} tokens that a request before had, too", few_.size(),
                      prefix.size()),
          std::move(workload));
    EngineConfig config = config_for(static_cast<int>(few_.size()), static_cast<int>(few_.size()) + 1);
    run_engine({.name = "no prefix caching", .figure = "first_token_ms"}, config);
    config.enable_prefix_caching = true;
    run_engine({.name = "prefix caching", .figure = "first_token_ms"}, config);
  }

  void measure_interruption() {
    const int batch = options_.batch, in = options_.input_len, out = options_.output_len;
    Workload workload{.at_once = static_cast<std::size_t>(batch)};
    for (int i = 0; i < batch; ++i) workload.requests.push_back(sized_request(draw_tokens(in / 2), out));
    workload.requests.push_back(sized_request(draw_tokens(8 * in), out / 4));
    begin(format_text("a prompt of {} tokens comes while {} outputs of {} are under way", 8 * in, batch, out),
          std::move(workload));
    EngineConfig config = config_for(batch + 1, batch + 1);
    run_engine({.name = "prompt in one step", .figure = "longest_pause_ms"}, config);
    config.long_prefill_token_threshold = in;
    run_engine({.name = format_text("chunked prefill, by {}", in), .figure = "longest_pause_ms"}, config);
  }

  // One stream is limited by the reading of weights, and on a GPU by the launching of kernels.
  void measure_one_stream() {
    begin(format_text("{} of them, one after the other", few_.size()), {few_});
    EngineConfig config = config_for(1, 1);
    run_engine({.name = report_.dtype + " weights"}, config);
    config.enforce_eager = false;
    if (has_graphs_)
      run_engine({.name = "graphs"}, config);
    else
      add({.name = "graphs", .skipped = "the device has none"});
    for (const auto& [quantization, name] : {std::pair("int8", "8-bit weights"), {"int4", "4-bit weights"}}) {
      config.quantization = quantization;
      config.weight_only = config.quantization == "int8";  // to round activations is another technique
      run_engine({.name = name}, config, true);
    }
  }

  // A product as it stands in a decode step: the matrix packed once, as the model is loaded, and packed for
  // each product, as a library does that is given plain matrices.
  void measure_packing() {
    const std::int64_t rows = options_.batch, in = capacity_.config.spec.hidden_size, out = 4 * in;
    begin(format_text("a product of {} rows with a matrix of {} x {}", rows, out, in), {});
    TechniqueRow each_time{.name = "packed for each product", .figure = "product_ms"};
    TechniqueRow once{.name = "packed weights", .figure = "product_ms"};
    if (on_gpu_ || resolved_cpu_isa(options_.engine.cpu_isa) == "reference") {
      each_time.skipped = once.skipped = "the device multiplies weights as they lie in the file";
      add(std::move(each_time));
      return add(std::move(once));
    }
    const auto backend = make_backend(device_options(options_.engine));
    const DType dtype = capacity_.config.dtype;
    const WeightGroup plain = WeightGroup::plain(RandomWeights().take("matrix", {out, in}));
    const auto allocate = [&](std::int64_t cols) {
      return backend->allocate(static_cast<std::size_t>(rows * cols) * size_of(dtype), MemoryKind::kDevice);
    };
    const Buffer x = allocate(in), y = allocate(out), expected = allocate(out);
    RandomWeights().take("x", {rows, in})->read_rows(0, Tensor(x.data(), dtype, {rows, in}));
    std::unique_ptr<LinearWeights> packed;
    const auto measure = [&](TechniqueRow row, const Buffer& to, bool packs) {
      std::vector<double> ms(15);
      for (double& one : ms) {
        const auto start = BenchClock::now();
        if (packs) packed = backend->make_linear({&plain, 1}, dtype);
        ops::linear(*backend, Tensor(to.data(), dtype, {rows, out}), Tensor(x.data(), dtype, {rows, in}),
                    *packed);
        one = 1e3 * seconds_between(start, BenchClock::now());
      }
      row.figures["product_ms"] = percentile(ms, 0.5);
      row.figures["weight_bytes"] = static_cast<double>(packed->bytes());
      row.agreement = std::memcmp(to.data(), expected.data(), to.bytes()) == 0 ? 1 : 0;
      if (row.agreement == 0) row.difference = "the product is another one";
      add(std::move(row));
    };
    measure(std::move(each_time), expected, true);
    measure(std::move(once), y, false);
  }

  TechniqueOptions options_;
  TechniqueReport report_;
  std::mt19937_64 random_;
  bool on_gpu_ = false, has_graphs_ = false;
  Capacity capacity_;  // of an engine with these options
  std::vector<EngineRequest> many_, few_;
  Workload workload_;                  // that is measured
  std::vector<TimedOutput> baseline_;  // its
};

}  // namespace

double TechniqueRow::value(std::string_view key) const {
  const auto found = figures.find(key);
  return found == figures.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
}

std::string_view TechniqueRow::unit() const {
  return std::ranges::find(kTechniqueFigures, std::string_view(figure), &TechniqueFigure::key)->unit;
}

const TechniqueRow* TechniqueReport::before(const TechniqueRow& row) const {
  const auto found = std::ranges::find_if(rows, [&](const TechniqueRow& other) {
    return other.workload == row.workload && other.name == row.against;
  });
  return found == rows.end() ? nullptr : &*found;
}

void compare_outputs(std::span<const TimedOutput> baseline, std::span<const TimedOutput> outputs,
                     bool must_agree, TechniqueRow& row) {
  QUIRE_CHECK(baseline.size() == outputs.size());
  double agreed = 0, all = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<TokenId>&tokens = outputs[i].tokens, &expected = baseline[i].tokens;
    const auto same = std::ranges::mismatch(tokens, expected).in1 - tokens.begin();
    agreed += static_cast<double>(same);
    all += static_cast<double>(expected.size());
    if (must_agree && row.difference.empty() && tokens != expected)
      row.difference = format_text("output {} differs from its token {} on", i + 1, same + 1);
  }
  row.agreement = agreed / all;
}

TechniqueReport measure_techniques(const TechniqueOptions& options) {
  return TechniqueBench(options).measure();
}

}  // namespace quire
