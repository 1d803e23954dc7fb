// Compiles the sources of structured outputs, on threads of their own.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "base/thread_pool.h"
#include "engine/grammar/token_constraint.h"
#include "engine/structured_outputs.h"

namespace quire {
namespace {

// A mask that takes longer ends its request, since its step's other sequences wait for it.
constexpr grammar::Limits kGrammarLimits{.mask_time = std::chrono::milliseconds(250)};
constexpr std::size_t kMostKept = 32;
constexpr int kLeastCompileThreads = 2, kMostCompileThreads = 4;

using Source = std::shared_ptr<const StructuredOutputs>;

class Job final : public Compilation {
 public:
  explicit Job(Source source) : source_(std::move(source)) {}
  ~Job() override { stop_.request_stop(); }

  void then(std::function<void(const Result&)> done) override {
    std::unique_lock lock(mutex_);
    if (!result_) {
      waiting_.push_back(std::move(done));
      return;
    }
    lock.unlock();
    done(*result_);
  }
  void finish(Result result) {
    std::unique_lock lock(mutex_);
    result_ = std::move(result);
    const auto waiting = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto& done : waiting) done(*result_);
  }
  const Source& source() const { return source_; }
  std::stop_token stop_token() const { return stop_.get_token(); }

 private:
  const Source source_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::optional<Result> result_;                             // guarded by mutex_ until it is set, once
  std::vector<std::function<void(const Result&)>> waiting_;  // guarded by mutex_
};

grammar::Source to_grammar_source(const StructuredOutputs& source) {
  using Kind = grammar::Source::Kind;
  constexpr Kind kKinds[] = {Kind::kJsonSchema, Kind::kJsonObject, Kind::kRegex,
                             Kind::kChoice,     Kind::kGrammar,    Kind::kStructuralTag};
  return {.kind = kKinds[static_cast<std::size_t>(source.kind)],
          .text = source.source,
          .compact = source.disable_any_whitespace,
          .whitespace_pattern = source.whitespace_pattern,
          .additional_properties = !source.disable_additional_properties};
}

class CompilePool final : public GrammarCompiler {
 public:
  CompilePool(const SamplingContext& context, decltype(EngineHooks::fault) fault)
      : fault_(std::move(fault)),
        tokenizer_(context.tokenizer),
        vocab_size_(context.vocab_size),
        end_ids_(context.eos_token_ids.begin(), context.eos_token_ids.end()),
        most_threads_(std::clamp(usable_cores() / 2, kLeastCompileThreads, kMostCompileThreads)) {}

  ~CompilePool() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      entries_.clear();
    }
    wake_.notify_all();
    closed_.request_stop();
    for (std::thread& thread : threads_) thread.join();
  }

  std::shared_ptr<Compilation> compile(const Source& source) override {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->source != source && *entry->source != *source) continue;
      const std::shared_ptr<Job> known = entry->job.lock();
      if (!known) {
        entries_.erase(entry);
        break;
      }
      entries_.splice(entries_.begin(), entries_, entry);
      return known;
    }
    auto job = std::make_shared<Job>(source);
    entries_.push_front({source, job, nullptr});
    if (entries_.size() > kMostKept) entries_.pop_back();
    queue_.push_back(job);
    if (num_idle_ < queue_.size() && std::ssize(threads_) < most_threads_)
      threads_.emplace_back([this] { work(); });
    wake_.notify_one();
    return job;
  }

  void observe(std::function<void(double)> observer) override {
    const std::lock_guard lock(mutex_);
    observer_ = std::move(observer);
  }

 private:
  struct Entry {
    Source source;
    std::weak_ptr<Job> job;
    std::shared_ptr<Job> kept;  // the same, once it was compiled
  };

  void work() {
    name_thread("quire-compile");
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (queue_.empty()) {
        ++num_idle_;
        wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        --num_idle_;
        continue;
      }
      const std::weak_ptr<Job> job = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      run(job);
      lock.lock();
    }
  }

  // Holds the job only where it has to, so that it is given up once nobody else does.
  void run(const std::weak_ptr<Job>& weak) {
    std::shared_ptr<Job> job = weak.lock();
    if (!job) return;
    const Source source = job->source();
    std::stop_source stop;
    const std::stop_callback given_up(job->stop_token(), [&stop] { stop.request_stop(); });
    const std::stop_callback closed(closed_.get_token(), [&stop] { stop.request_stop(); });
    job.reset();
    Compilation::Result result = compiled(*source, stop.get_token());
    job = weak.lock();
    if (!job || closed_.stop_requested()) return;
    if (result.make) keep(job);
    job->finish(std::move(result));
  }

  Compilation::Result compiled(const StructuredOutputs& source, const std::stop_token& stop) {
    try {
      if (fault_) fault_(EngineStage::kCompile, 0);
      const std::shared_ptr<const grammar::Vocabulary> tokens = vocabulary();
      const auto start = std::chrono::steady_clock::now();
      const auto made = grammar::compile(to_grammar_source(source), tokens, kGrammarLimits, stop);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      tell(taken.count());
      return {.make = [output = output_grammar(made, source)] {
        return std::make_shared<TokenConstraint>(output);
      }};
    } catch (const std::exception& e) {
      return {.error = e.what()};
    }
  }

  void tell(double seconds) {
    std::unique_lock lock(mutex_);
    const auto observer = observer_;
    lock.unlock();
    if (observer) observer(seconds);
  }

  void keep(const std::shared_ptr<Job>& job) {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_)
      if (entry.source == job->source()) entry.kept = job;
  }

  // Made by whoever is the first to want it.
  std::shared_ptr<const grammar::Vocabulary> vocabulary() {
    const std::lock_guard lock(vocabulary_mutex_);
    if (vocabulary_) return vocabulary_;
    std::vector<grammar::TokenText> tokens(static_cast<std::size_t>(vocab_size_));
    for (TokenId id = 0; id < std::min(vocab_size_, tokenizer_->vocab_size()); ++id)
      tokens[static_cast<std::size_t>(id)] = {tokenizer_->token_bytes(id), tokenizer_->is_special(id)};
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(std::move(tokens), end_ids_);
    return vocabulary_;
  }

  const decltype(EngineHooks::fault) fault_;
  const Tokenizer* const tokenizer_;
  const int vocab_size_;
  const std::vector<int> end_ids_;
  const int most_threads_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;  // guarded by vocabulary_mutex_
  std::stop_source closed_;
  std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::deque<std::weak_ptr<Job>> queue_;
  std::list<Entry> entries_;  // what was asked for last comes first
  std::function<void(double)> observer_;
  std::size_t num_idle_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const SamplingContext& context,
                                                       decltype(EngineHooks::fault) fault) {
  return std::make_unique<CompilePool>(context, std::move(fault));
}

void validate_structured_outputs(const SamplingParams& params, const SamplingContext& context) {
  const StructuredOutputs& outputs = *params.structured_outputs;
  if (params.beam_width) fail("structured_outputs and beam_width exclude each other");
  if (context.tokenizer == nullptr) fail("structured_outputs need a tokenizer; this model has none");
  if (outputs.source.size() > kGrammarLimits.source_bytes)
    fail("structured_outputs have a source of {} bytes; at most {} are allowed", outputs.source.size(),
         kGrammarLimits.source_bytes);
  if (outputs.disable_any_whitespace && outputs.whitespace_pattern)
    fail("structured_outputs have both disable_any_whitespace and whitespace_pattern; give one");
}

}  // namespace quire
