#include "inspect/perplexity.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "inspect/bench.h"
#include "inspect/forced_run.h"
#include "models/model.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

constexpr std::size_t kMaxEvalTextBytes = std::size_t{1} << 30;

// What a distribution over the vocabulary says of the token that follows, and how far it is from another.
struct Prediction {
  double nll = 0;  // in nats
  double reference_nll = 0;
  double kl = 0;
  bool same_top = false;
};

using Logits = std::span<const float>;  // [vocab], or [tokens, vocab]

double log_sum_exp(Logits logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

Prediction predict(Logits model, Logits reference, TokenId next) {
  const auto place = static_cast<std::size_t>(next);
  const double model_sum = log_sum_exp(model);
  Prediction result{.nll = model_sum - model[place]};
  if (reference.empty()) return result;
  const double reference_sum = log_sum_exp(reference);
  result.reference_nll = reference_sum - reference[place];
  for (std::size_t i = 0; i < model.size(); ++i) {
    const double log_p = reference[i] - reference_sum;
    if (const double p = std::exp(log_p); p > 0) result.kl += p * (log_p - (model[i] - model_sum));
  }
  const auto top = [](Logits logits) { return std::ranges::max_element(logits) - logits.begin(); };
  result.same_top = top(model) == top(reference);
  return result;
}

// Logits of a window's positions, some at a time, as an engine computes them.
class WindowLogits {
 public:
  WindowLogits(Engine& engine, std::span<const TokenId> window)
      : run_(ForcedRun::start(engine, {window.begin(), window.end() - 1}, true)),  // the last one is not read
        vocab_(static_cast<std::size_t>(engine.config().spec.vocab_size)) {}
  ~WindowLogits() { run_->give_up(); }
  WindowLogits(const WindowLogits&) = delete;
  WindowLogits& operator=(const WindowLogits&) = delete;

  // Of how many positions there are some, from the next one on; waits for one.
  std::size_t num_ready() {
    if (used_ == held_.size()) {
      held_ = run_->take();
      used_ = 0;
    }
    return (held_.size() - used_) / vocab_;
  }
  // Of so many, which are ready; valid until the next call.
  Logits next(std::size_t count) {
    return Logits(held_).subspan(std::exchange(used_, used_ + count * vocab_), count * vocab_);
  }

 private:
  std::shared_ptr<ForcedRun> run_;
  std::size_t vocab_;
  std::vector<float> held_;  // of one step
  std::size_t used_ = 0;
};

// Those of window[first..], each from the tokens before it. reference: null where there is none.
std::vector<Prediction> predict_window(Engine& model, Engine* reference, ThreadPool& pool,
                                       std::span<const TokenId> window, std::size_t first) {
  WindowLogits logits(model, window);
  std::optional<WindowLogits> others;
  if (reference != nullptr) others.emplace(*reference, window);
  std::vector<Prediction> predictions(window.size() - first);
  for (std::size_t begin = 1, count = 0; begin < window.size(); begin += count) {
    count = std::min(logits.num_ready(), others ? others->num_ready() : window.size());
    QUIRE_CHECK(count > 0 && begin + count <= window.size());
    const Logits rows = logits.next(count), other_rows = others ? others->next(count) : Logits();
    const std::size_t vocab = rows.size() / count;
    pool.run(static_cast<int>(count), [&](int part, int) {
      const auto i = static_cast<std::size_t>(part);
      const auto row = [&](Logits all) { return all.empty() ? all : all.subspan(i * vocab, vocab); };
      if (begin + i >= first)
        predictions[begin + i - first] = predict(row(rows), row(other_rows), window[begin + i]);
    });
  }
  return predictions;
}

ModelSpec spec_of(const ModelFiles& files) {
  return find_model_family(files.config.architecture()).describe(files.config);
}

std::vector<TokenId> read_tokens(const PerplexityOptions& options, const ModelFiles& model,
                                 const std::optional<ModelFiles>& reference) {
  const auto name_of = [](const ModelFiles& files) {
    return files.where.empty() ? files.directory.string() : files.where;
  };
  if (!model.tokenizer) fail("{}: it has no tokenizer", name_of(model));
  const std::string text = read_text_file(options.text, kMaxEvalTextBytes);
  if (const std::size_t valid = valid_utf8_prefix(text); valid < text.size())
    fail("{}: byte {} is not UTF-8, which the text must be", options.text.string(), valid);
  std::vector<TokenId> tokens = model.tokenizer->encode(text);
  const int vocab = spec_of(model).vocab_size, other = reference ? spec_of(*reference).vocab_size : vocab;
  if (vocab != other)
    fail("{} has a vocabulary of {} tokens, {} one of {}; they must be the same", name_of(model), vocab,
         name_of(*reference), other);
  if (reference && reference->tokenizer && reference->tokenizer->encode(text) != tokens)
    fail("{} and {} make other tokens of {}; their tokenizers must be the same", name_of(model),
         name_of(*reference), options.text.string());
  if (options.max_tokens) {
    if (*options.max_tokens < 2) fail("max-tokens is {}; it must be at least 2", *options.max_tokens);
    tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(*options.max_tokens)));
  }
  if (tokens.size() < 2)
    fail("{}: {} tokens; perplexity needs at least 2", options.text.string(), tokens.size());
  return tokens;
}

// One sequence at a time, in steps whose logits are held two or three at a time.
EngineConfig prepared(EngineConfig config, int context) {
  config.max_num_seqs = 1;
  if (config.max_model_len == 0) config.max_model_len = context;
  if (config.max_num_batched_tokens == 0) config.max_num_batched_tokens = 512;
  return config;
}

void check_cache(const Engine& engine, std::size_t num_tokens) {
  const int most = engine.config().cache.layout.longest(engine.config().num_blocks);
  if (std::cmp_greater(num_tokens, most))
    fail(
        "a window has {} tokens that are read; the KV cache holds {}: take more kv-cache-memory, or a "
        "context of {}",
        num_tokens, most, most + 1);
}

void summarise(const std::vector<Prediction>& predictions, PerplexityResult& result) {
  const auto mean = [&](auto value) {
    double sum = 0;
    for (const Prediction& prediction : predictions) sum += prediction.*value;
    return sum / static_cast<double>(predictions.size());
  };
  result.num_tokens = predictions.size();
  result.perplexity = std::exp(mean(&Prediction::nll));
  if (!result.against) return;
  std::vector<double> divergences;
  for (const Prediction& prediction : predictions) divergences.push_back(prediction.kl);
  result.against = {.perplexity = std::exp(mean(&Prediction::reference_nll)),
                    .kl_mean = mean(&Prediction::kl),
                    .kl_p99 = percentile(std::move(divergences), 0.99),
                    .top1_agreement = mean(&Prediction::same_top)};
}

}  // namespace

PerplexityResult measure_perplexity(const PerplexityOptions& options) {
  ModelFiles model = open_model(options.engine.model);
  std::optional<ModelFiles> reference;
  if (options.against) reference = open_model(options.against->model);
  const std::vector<TokenId> tokens = read_tokens(options, model, reference);
  const auto longest = [&](const ModelFiles& files) {
    return options.engine.max_model_len > 0 ? options.engine.max_model_len : spec_of(files).max_model_len;
  };
  const int most = std::min(longest(model), longest(reference ? *reference : model));
  PerplexityResult result;
  result.context = options.context.value_or(std::min(2048, most));
  if (result.context < 2 || result.context > most)
    fail("context is {}; it must be from 2 to {}", result.context, most);
  result.stride = options.stride.value_or(result.context / 2);
  if (result.stride < 1 || result.stride > result.context)
    fail("stride is {}; it must be from 1 to the context, {}", result.stride, result.context);

  Engine engine(prepared(options.engine, result.context), std::move(model));
  result.weight_bytes = engine.memory_plan().weights;
  std::optional<Engine> other;
  if (reference) {
    result.against.emplace();
    other.emplace(prepared(*options.against, result.context), std::move(*reference));
  }
  const std::size_t num_read = std::min(static_cast<std::size_t>(result.context), tokens.size()) - 1;
  check_cache(engine, num_read);
  if (other) check_cache(*other, num_read);
  ThreadPool pool(usable_cores());
  std::vector<Prediction> predictions;
  std::size_t done = 1;  // tokens that are predicted, or cannot be: a first one
  for (std::size_t begin = 0; done < tokens.size(); begin += static_cast<std::size_t>(result.stride)) {
    const std::size_t first = std::max(done, begin + 1);
    const std::size_t end = std::min(begin + static_cast<std::size_t>(result.context), tokens.size());
    if (first < end)  // no window of one token
      std::ranges::copy(predict_window(engine, other ? &*other : nullptr, pool,
                                       std::span(tokens).subspan(begin, end - begin), first - begin),
                        std::back_inserter(predictions));
    while (done < end)
      if (++done; options.on_progress) options.on_progress(done, tokens.size());
  }
  summarise(predictions, result);
  return result;
}

}  // namespace quire
