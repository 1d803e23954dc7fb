#include "inspect/techniques.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "backends/registry.h"
#include "base/error.h"
#include "inspect/bench.h"
#include "inspect/capacity.h"
#include "inspect/plain_loops.h"
#include "inspect/random_weights.h"
#include "ops/ops.h"

namespace quire {
namespace {

// Requests, and how they come.
struct Workload {
  std::string what;
  std::vector<TokenRequest> requests;
  std::size_t at_once = std::numeric_limits<std::size_t>::max();  // the others come when these are under way
  std::optional<TokenRequest> before = {};                        // unmeasured

  int longest() const {
    std::size_t longest = 0;
    for (const TokenRequest& r : requests)
      longest = std::max(longest, r.prompt.size() + static_cast<std::size_t>(r.output_tokens));
    return static_cast<int>(longest);
  }
  std::size_t num_output_tokens() const {
    std::size_t count = 0;
    for (const TokenRequest& r : requests) count += static_cast<std::size_t>(r.output_tokens);
    return count;
  }
};

std::vector<EngineRequest> engine_requests(std::span<const TokenRequest> requests) {
  std::vector<EngineRequest> made;
  for (const TokenRequest& request : requests) {
    EngineRequest& one = made.emplace_back();
    one.prompt = request.prompt;
    one.params.max_tokens = request.output_tokens;
    one.params.temperature = 0;
    one.params.ignore_eos = true;
  }
  return made;
}

// So that no row pays for what is prepared once.
std::vector<TokenRequest> warm_up_requests(const Workload& workload, int batch) {
  constexpr int kPromptTokens = 16, kOutputTokens = 3;
  std::vector<TokenRequest> requests = workload.requests;
  requests.resize(std::min(requests.size(), static_cast<std::size_t>(batch)));
  for (TokenRequest& request : requests) {
    request.prompt.resize(std::min<std::size_t>(request.prompt.size(), kPromptTokens));
    request.output_tokens = std::min(request.output_tokens, kOutputTokens);
  }
  return requests;
}

double median(const std::vector<double>& values) { return percentile(values, 0.5); }

void read_times(const Round& round, std::size_t at_once, TechniqueRow& row) {
  std::vector<double> first_token_ms, longest_pause_ms;
  std::size_t num_tokens = 0;
  const bool some_late = at_once < round.outputs.size();
  for (std::size_t i = 0; i < round.outputs.size(); ++i) {
    const std::vector<BenchClock::time_point>& times = round.outputs[i].times;
    num_tokens += round.outputs[i].tokens.size();
    if (!some_late || i >= at_once) first_token_ms.push_back(1e3 * seconds_between(times[0], times[1]));
    if (!some_late || i >= at_once || times.size() < 3) continue;
    double longest = 0;
    for (std::size_t t = 2; t < times.size(); ++t)
      longest = std::max(longest, seconds_between(times[t - 1], times[t]));
    longest_pause_ms.push_back(1e3 * longest);
  }
  row.tokens_per_s = static_cast<double>(num_tokens) / round.seconds;
  row.first_token_ms = median(first_token_ms);
  row.longest_pause_ms = median(longest_pause_ms);
}

// Of the median of many times.
template <typename Work>
double seconds_of(const Work& work) {
  constexpr double kEnough = 0.3;
  constexpr std::size_t kFewest = 5;
  std::vector<double> seconds;
  work();
  const BenchClock::time_point start = BenchClock::now();
  while (seconds.size() < kFewest || seconds_between(start, BenchClock::now()) < kEnough) {
    const BenchClock::time_point begin = BenchClock::now();
    work();
    seconds.push_back(seconds_between(begin, BenchClock::now()));
  }
  return median(seconds);
}

class TechniqueBench {
 public:
  explicit TechniqueBench(const TechniqueOptions& options);

  TechniqueReport measure() {
    measure_many_requests();
    measure_shared_prefix();
    measure_long_prompt();
    measure_one_stream();
    measure_packing();
    return std::move(report_);
  }

 private:
  enum class Tokens : std::uint8_t { kSame, kRounded };
  struct RowSpec {
    std::string name;
    const TechniqueFigure* figure = &kThroughputFigure;
    std::string against = {};
    Tokens tokens = Tokens::kSame;
  };

  int few() const { return std::max(2, options_.num_prompts / 4); }
  void draw_workloads();
  std::vector<TokenId> draw_tokens(int count);
  int draw_length(int most) { return std::uniform_int_distribution(std::max(1, most / 8), most)(random_); }
  std::size_t reservation(int num_sequences, const Workload& workload) const;
  EngineConfig config_for(const Workload& workload, int max_num_seqs, int num_reserved) const;

  void add_loop_row(const RowSpec& spec, const Workload& workload, int batch, bool has_cache);
  void add_engine_row(const RowSpec& spec, const Workload& workload, const EngineConfig& config);
  // The same of one that this model or device may refuse.
  void try_engine_row(const RowSpec& spec, const Workload& workload, const EngineConfig& config);
  void begin(const Workload& workload) { report_.workloads.push_back(workload.what); }
  TechniqueRow begin_row(const RowSpec& spec) const;
  void add_row(TechniqueRow row, Tokens tokens, std::vector<TimedOutput> outputs);
  void compare(TechniqueRow& row) const;
  void note_tokens(std::size_t count) {
    done_ += count;
    if (options_.on_progress) options_.on_progress(std::min(done_, total_), total_);
  }

  void measure_many_requests();
  void measure_shared_prefix();
  void measure_long_prompt();
  void measure_one_stream();
  void measure_packing();
  void skip_row(const RowSpec& spec, const std::string& why);

  TechniqueOptions options_;
  TechniqueReport report_;
  std::mt19937_64 random_;
  bool on_gpu_ = false, has_graphs_ = false;
  Capacity capacity_;  // of an engine with these options
  int budget_ = 0;     // tokens of a step, in all rows
  Workload many_, prefixed_, interrupted_, one_by_one_;
  std::vector<TimedOutput> baseline_;  // of the workload that is measured
  std::size_t done_ = 0, total_ = 0;   // output tokens
};

// Sizes that are not given, and what the model and the device are.
TechniqueBench::TechniqueBench(const TechniqueOptions& options) : options_(options), random_(options.seed) {
  EngineConfig& config = options_.engine;
  {
    const auto backend = make_backend(device_options(config));
    on_gpu_ = backend->device() != DeviceKind::kCpu;
    has_graphs_ = backend->has_graphs();
    report_.device = backend->name();
  }
  const auto settle = [this](int& size, int on_cpu, int on_gpu) {
    if (size == 0) size = on_gpu_ ? on_gpu : on_cpu;
  };
  settle(options_.num_prompts, 32, 64);
  settle(options_.batch, 8, 16);
  settle(options_.input_len, 64, 512);
  settle(options_.output_len, 32, 128);
  if (options_.batch > options_.num_prompts)
    fail("--batch is {}; there are {} requests (--num-prompts)", options_.batch, options_.num_prompts);
  const ModelFiles model = options_.open();
  capacity_ = plan_capacity(config, model.config, 0, model.open_formats().get());
  if (capacity_.config.num_state_slots > 0)
    fail("bench techniques compares ways to keep keys and values; layers of {} have a state of fixed size",
         capacity_.architecture);
  const int longest = 8 * options_.input_len + options_.output_len;
  if (const int context = capacity_.config.spec.max_model_len; longest > context)
    fail("the longest request has 8 times --input-len and --output-len, {} tokens; the model's context is {}",
         longest, context);
  report_.dtype = to_string(capacity_.config.dtype);
  budget_ = std::max(options_.batch, 8) * options_.input_len + options_.batch;

  draw_workloads();
}

void TechniqueBench::draw_workloads() {
  const int input_len = options_.input_len, output_len = options_.output_len, num_few = few();
  many_.what = format_text("{} requests at once, up to {} tokens in and {} out", options_.num_prompts,
                           input_len, output_len);
  for (int i = 0; i < options_.num_prompts; ++i) {
    std::vector<TokenId> prompt = draw_tokens(draw_length(input_len));
    many_.requests.push_back({std::move(prompt), draw_length(output_len)});
  }
  one_by_one_.what = format_text("{} of them, one after the other", num_few);
  one_by_one_.requests.assign(many_.requests.begin(), many_.requests.begin() + num_few);

  const std::vector<TokenId> prefix = draw_tokens(4 * input_len);
  prefixed_.what =
      format_text("{} of them, behind {} tokens that a request before had, too", num_few, prefix.size());
  prefixed_.before = TokenRequest{prefix, 1};
  for (TokenRequest request : one_by_one_.requests) {
    request.prompt.insert(request.prompt.begin(), prefix.begin(), prefix.end());
    prefixed_.requests.push_back(std::move(request));
  }

  interrupted_.what = format_text("a prompt of {} tokens comes while {} outputs of {} are under way",
                                  8 * input_len, options_.batch, output_len);
  interrupted_.at_once = static_cast<std::size_t>(options_.batch);
  for (int i = 0; i < options_.batch; ++i)
    interrupted_.requests.push_back({draw_tokens(std::max(1, input_len / 2)), output_len});
  interrupted_.requests.push_back({draw_tokens(8 * input_len), std::max(1, output_len / 4)});

  total_ = 6 * many_.num_output_tokens() + 2 * prefixed_.num_output_tokens() +
           2 * interrupted_.num_output_tokens() + (has_graphs_ ? 4 : 3) * one_by_one_.num_output_tokens();
}

std::vector<TokenId> TechniqueBench::draw_tokens(int count) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::uniform_int_distribution<TokenId> any(0, capacity_.config.spec.vocab_size - 1);
  for (TokenId& token : tokens) token = any(random_);
  return tokens;
}

// Bytes of the KV cache for the longest that a sequence may become, for so many of them.
std::size_t TechniqueBench::reservation(int num_sequences, const Workload& workload) const {
  const CacheLayout& layout = capacity_.config.cache.layout;
  const int blocks = num_sequences * layout.rows_for(workload.longest()) * layout.num_lanes();
  return static_cast<std::size_t>(blocks) * capacity_.config.block_bytes();
}

EngineConfig TechniqueBench::config_for(const Workload& workload, int max_num_seqs, int num_reserved) const {
  EngineConfig config = options_.engine;
  config.max_num_batched_tokens = budget_;
  config.max_num_seqs = max_num_seqs;
  config.max_model_len = workload.longest();
  config.kv_cache_memory = reservation(num_reserved, workload);
  config.enable_prefix_caching = false;
  config.enforce_eager = true;
  return config;
}

TechniqueRow TechniqueBench::begin_row(const RowSpec& spec) const {
  TechniqueRow row;
  row.name = spec.name;
  row.workload = report_.workloads.size() - 1;
  row.figure = spec.figure;
  row.against = spec.against;
  return row;
}

void TechniqueBench::add_loop_row(const RowSpec& spec, const Workload& workload, int batch, bool has_cache) {
  PlainLoops loops(config_for(workload, batch, batch), options_.open(), batch);
  const auto run = [&](std::span<const TokenRequest> requests, const std::function<void()>& on_token) {
    return has_cache ? loops.run_in_batches(requests, on_token) : loops.run_without_cache(requests, on_token);
  };
  run(warm_up_requests(workload, batch), {});
  Round round = run(workload.requests, [this] { note_tokens(1); });
  TechniqueRow row = begin_row(spec);
  read_times(round, workload.at_once, row);
  row.sequences = batch;
  row.weight_bytes = static_cast<double>(loops.weight_bytes());
  row.kv_cache_bytes = has_cache ? static_cast<double>(loops.config().cache_bytes()) : 0;
  add_row(std::move(row), spec.tokens, std::move(round.outputs));
}

void TechniqueBench::add_engine_row(const RowSpec& spec, const Workload& workload,
                                    const EngineConfig& config) {
  ModelFiles model = options_.open();
  model.tokenizer.reset();  // text is nobody's business here
  int most_running = 0;
  Engine engine(config, std::move(model));
  run_round(engine, engine_requests(warm_up_requests(workload, config.max_num_seqs)));
  if (workload.before) run_round(engine, engine_requests({&*workload.before, 1}));
  engine.observe_steps([&](const StepRecord&) {
    most_running = std::max(most_running, engine.stats().scheduler.num_running);
  });
  Round round = run_round(
      engine, engine_requests(workload.requests), [this] { note_tokens(1); }, workload.at_once);
  engine.observe_steps({});
  TechniqueRow row = begin_row(spec);
  read_times(round, workload.at_once, row);
  row.sequences = most_running;
  row.weight_bytes = static_cast<double>(engine.memory_plan().weights);
  row.kv_cache_bytes = static_cast<double>(engine.memory_plan().kv_cache);
  add_row(std::move(row), spec.tokens, std::move(round.outputs));
}

void TechniqueBench::try_engine_row(const RowSpec& spec, const Workload& workload,
                                    const EngineConfig& config) {
  try {
    add_engine_row(spec, workload, config);
  } catch (const Error& e) {
    skip_row(spec, e.what());
  }
}

void TechniqueBench::skip_row(const RowSpec& spec, const std::string& why) {
  TechniqueRow row = begin_row(spec);
  row.skipped = why;
  report_.rows.push_back(std::move(row));
}

void TechniqueBench::compare(TechniqueRow& row) const {
  const auto found = std::ranges::find_if(report_.rows, [&](const TechniqueRow& other) {
    return other.workload == row.workload && other.name == row.against;
  });
  if (found == report_.rows.end()) return;
  const double before = (*found).*row.figure->value, now = row.*row.figure->value;
  row.factor = row.figure->is_cost ? before / now : now / before;
}

void TechniqueBench::add_row(TechniqueRow row, Tokens tokens, std::vector<TimedOutput> outputs) {
  compare(row);
  if (row.against.empty())
    baseline_ = std::move(outputs);
  else  // a GPU's sums depend on what is computed beside, unless that is forbidden
    compare_outputs(baseline_, outputs,
                    tokens == Tokens::kSame && (!on_gpu_ || options_.engine.deterministic), row);
  report_.rows.push_back(std::move(row));
}

// All in the memory that `batch` reservations of the longest request take.
void TechniqueBench::measure_many_requests() {
  const int batch = options_.batch;
  begin(many_);
  add_loop_row({"no KV cache"}, many_, 1, false);
  add_loop_row({.name = "KV cache, one at a time", .against = "no KV cache"}, many_, 1, true);
  add_loop_row({.name = "static batches, padded", .against = "KV cache, one at a time"}, many_, batch, true);
  add_engine_row({.name = "continuous batching", .against = "static batches, padded"}, many_,
                 config_for(many_, batch, batch));
  EngineConfig config = config_for(many_, options_.num_prompts, batch);
  add_engine_row({.name = "paged KV cache", .figure = &kSequencesFigure, .against = "continuous batching"},
                 many_, config);
  config.kv_cache_dtype = "fp8";
  try_engine_row({.name = "8-bit KV cache",
                  .figure = &kSequencesFigure,
                  .against = "paged KV cache",
                  .tokens = Tokens::kRounded},
                 many_, config);
}

void TechniqueBench::measure_shared_prefix() {
  begin(prefixed_);
  EngineConfig config = config_for(prefixed_, few(), few() + 1);
  add_engine_row({"no prefix caching", &kFirstTokenFigure}, prefixed_, config);
  config.enable_prefix_caching = true;
  add_engine_row({"prefix caching", &kFirstTokenFigure, "no prefix caching"}, prefixed_, config);
}

void TechniqueBench::measure_long_prompt() {
  begin(interrupted_);
  EngineConfig config = config_for(interrupted_, options_.batch + 1, options_.batch + 1);
  add_engine_row({"the prompt in one step", &kPauseFigure}, interrupted_, config);
  config.long_prefill_token_threshold = options_.input_len;
  add_engine_row({format_text("chunked prefill, {} a step", options_.input_len), &kPauseFigure,
                  "the prompt in one step"},
                 interrupted_, config);
}

// One stream, whose limit is the reading of weights, and on a GPU the launching of kernels.
void TechniqueBench::measure_one_stream() {
  begin(one_by_one_);
  EngineConfig config = config_for(one_by_one_, 1, 1);
  const std::string plain = report_.dtype + " weights";
  add_engine_row({plain}, one_by_one_, config);
  std::string before = plain;
  if (has_graphs_) {
    config.enforce_eager = false;
    add_engine_row({.name = "graphs", .against = plain}, one_by_one_, config);
    before = "graphs";
  } else {
    skip_row({.name = "graphs", .against = plain}, "the device has none");
  }
  config.weight_only = true;  // activations are another technique
  for (const auto& [quantization, name] : {std::pair("int8", "8-bit weights"), {"int4", "4-bit weights"}}) {
    config.quantization = quantization;
    try_engine_row({.name = name, .against = before, .tokens = Tokens::kRounded}, one_by_one_, config);
    if (report_.rows.back().skipped.empty()) before = name;
  }
}

// One product as it stands in a decode step of a batch: the matrix packed as the model is loaded, and packed
// for each product, as a library does that is given plain matrices.
void TechniqueBench::measure_packing() {
  const EngineConfig& config = options_.engine;
  const LinearWeights* largest = nullptr;
  for (const LinearWeights& matrix : capacity_.plan.matrices)
    if (matrix.out_features() < capacity_.config.spec.vocab_size &&
        (largest == nullptr ||
         matrix.out_features() * matrix.in_features() > largest->out_features() * largest->in_features()))
      largest = &matrix;
  const RowSpec once{
      .name = "packed weights", .figure = &kProductFigure, .against = "packed for each product"};
  if (largest == nullptr || on_gpu_ || resolved_cpu_isa(config.cpu_isa) == "reference") {
    report_.workloads.emplace_back("one product");
    return skip_row(once, "the device multiplies plain weights as they lie in the file");
  }
  const std::int64_t rows = options_.batch, in = largest->in_features(), out = largest->out_features();
  report_.workloads.push_back(format_text("one product of {} rows with a matrix of {} x {}", rows, out, in));
  const auto backend = make_backend(device_options(config));
  const DType dtype = capacity_.config.dtype;
  const WeightGroup plain = WeightGroup::plain(RandomWeights().take("matrix", {out, in}));
  const auto bytes = [&](std::int64_t cols) {
    return static_cast<std::size_t>(rows * cols) * size_of(dtype);
  };
  const Buffer x = backend->allocate(bytes(in), MemoryKind::kDevice);
  RandomWeights().take("x", {rows, in})->read_rows(0, Tensor(x.data(), dtype, {rows, in}));
  const auto pack = [&] { return backend->make_linear({&plain, 1}, dtype); };
  const auto packed = pack();
  std::vector<std::vector<std::byte>> products;
  for (const bool each_time : {true, false}) {
    const Buffer y = backend->allocate(bytes(out), MemoryKind::kDevice);
    const auto multiply = [&] {
      ops::linear(*backend, Tensor(y.data(), dtype, {rows, out}), Tensor(x.data(), dtype, {rows, in}),
                  each_time ? *pack() : *packed);
    };
    TechniqueRow row = begin_row(each_time ? RowSpec{once.against, once.figure} : once);
    row.product_ms = 1e3 * seconds_of(multiply);
    row.weight_bytes = static_cast<double>(packed->bytes());
    compare(row);
    const auto* values = static_cast<const std::byte*>(y.data());
    products.emplace_back(values, values + y.bytes());
    if (!each_time) row.agreement = products.front() == products.back() ? 1 : 0;
    if (row.agreement == 0) row.difference = "the product is another one";
    report_.rows.push_back(std::move(row));
  }
}

}  // namespace

void compare_outputs(std::span<const TimedOutput> baseline, std::span<const TimedOutput> outputs,
                     bool must_agree, TechniqueRow& row) {
  QUIRE_CHECK(baseline.size() == outputs.size());
  std::size_t agreed = 0, all = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<TokenId>&tokens = outputs[i].tokens, &expected = baseline[i].tokens;
    const auto differ = std::ranges::mismatch(tokens, expected).in1;
    const auto same = static_cast<std::size_t>(differ - tokens.begin());
    agreed += same;
    all += expected.size();
    if (must_agree && row.difference.empty() && (same < expected.size() || same < tokens.size()))
      row.difference = format_text("output {} differs from its token {} on", i + 1, same + 1);
  }
  row.agreement = static_cast<double>(agreed) / static_cast<double>(all);
}

TechniqueReport measure_techniques(const TechniqueOptions& options) {
  return TechniqueBench(options).measure();
}

}  // namespace quire
