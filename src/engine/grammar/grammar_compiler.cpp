// Compiles the sources of structured outputs, on threads of their own.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread_pool.h"
#include "base/threads.h"
#include "engine/grammar/token_constraint.h"
#include "engine/structured_outputs.h"

namespace quire {
namespace {

// A step's other sequences wait for its masks: one that takes longer than its limit ends its output, and all
// that take longer together, beyond what is free, end their request.
constexpr grammar::Limits kGrammarLimits;
constexpr std::chrono::nanoseconds kMaskTimeOfRequest = std::chrono::seconds(2);
constexpr std::size_t kMostKept = 256;
constexpr int kLeastCompileThreads = 2, kMostCompileThreads = 4;
// Longer sources wait for all others, and the last thread never takes them: they delay only each other.
constexpr std::size_t kShortSourceBytes = std::size_t{16} << 10;

using Source = std::shared_ptr<const StructuredOutputs>;

// A source that is compiled, or will be. Constant once it is done.
class Job final : public GrammarCompiler::Compilation, public std::enable_shared_from_this<Job> {
 public:
  explicit Job(Source wanted) : source(std::move(wanted)) {}
  ~Job() override { stop.request_stop(); }

  // It is alive as long as a constraint has its grammar.
  std::optional<GrammarCompiler::Result> result() const override {
    if (!is_done) return std::nullopt;
    if (!grammar) return failed();
    return GrammarCompiler::Result{
        .make = [grammar = std::shared_ptr<const OutputGrammar>(shared_from_this(), &*grammar),
                 time_left = std::make_shared<MaskTime>(kMaskTimeOfRequest.count())] {
          return std::make_shared<TokenConstraint>(grammar, time_left);
        }};
  }

  const Source source;
  std::stop_source stop;
  std::optional<OutputGrammar> grammar;
  std::exception_ptr failure;  // where there is none
  std::string wrong;           // the name of what it is about
  std::atomic<bool> is_done = false;

 private:
  // Of who asks: on the compiler's thread nobody could be told that there is no memory for the text.
  GrammarCompiler::Result failed() const {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& e) {
      const bool is_refused = dynamic_cast<const Error*>(&e) != nullptr;
      return {.error = format_text("{} {}: {}", wrong, is_refused ? "is refused" : "could not be compiled",
                                   what_of(e)),
              .is_request_at_fault = is_refused};
    }
  }
};

class CompilePool final : public GrammarCompiler {
 public:
  CompilePool(const SamplingContext& context, std::function<void()> done, EngineHooks::Fault fault,
              CompilerLimits limits)
      : limits_(limits),
        done_(std::move(done)),
        fault_(std::move(fault)),
        tokenizer_(context.tokenizer),
        vocab_size_(context.vocab_size),
        end_ids_(context.eos_token_ids.begin(), context.eos_token_ids.end()),
        most_threads_(std::clamp(usable_cores() / 2, kLeastCompileThreads, kMostCompileThreads)) {}

  ~CompilePool() override {
    change_and_wake(mutex_, wake_, [this] {
      closing_ = true;
      for (const Entry& entry : entries_)
        if (const std::shared_ptr<Job> job = entry.job.lock()) job->stop.request_stop();
    });
    for (std::thread& thread : threads_) thread.join();
  }

  std::shared_ptr<const Compilation> compile(const Source& source) override {
    const std::lock_guard lock(mutex_);
    trim();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const std::shared_ptr<Job> known = entry->job.lock();
      if (!known || (known->source != source && *known->source != *source)) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return known;
    }
    auto job = std::make_shared<Job>(source);
    entries_.push_front({job, nullptr});
    (source->source.size() <= kShortSourceBytes ? short_ : long_).push_back(job);
    if (num_idle_ < short_.size() + long_.size() && std::ssize(threads_) < most_threads_)
      threads_.emplace_back([this, is_last = std::ssize(threads_) + 1 == most_threads_] { work(!is_last); });
    wake_.notify_all();
    return job;
  }

  void observe(std::function<void(double)> observer) override {
    const std::lock_guard lock(mutex_);
    observer_ = std::move(observer);
  }

  std::size_t bytes() override {
    std::unique_lock lock(vocabulary_mutex_);
    const std::size_t shared = vocabulary_ ? vocabulary_->lexemes().bytes() : 0;
    lock.unlock();
    const std::lock_guard entries_lock(mutex_);
    return shared + trim();
  }

 private:
  struct Entry {
    std::weak_ptr<Job> job;     // of whoever wants it, and
    std::shared_ptr<Job> kept;  // for who will: the same, once it was compiled
  };

  // Forgets what nobody wants, and of what is kept the oldest, where it is too much. Returns the bytes of all
  // grammars that are left.
  std::size_t trim() {
    std::size_t num_kept = 0, kept_bytes = 0, bytes = 0;
    std::erase_if(entries_, [&](Entry& entry) {
      const std::shared_ptr<Job> job = entry.job.lock();
      if (!job || !job->grammar) return !job;
      const std::size_t size = job->grammar->grammar->memory_bytes();
      if (entry.kept && (++num_kept > kMostKept || (kept_bytes += size) > limits_.kept_bytes))
        entry.kept.reset();
      const bool is_wanted = entry.kept || job.use_count() > 1;
      if (is_wanted) bytes += size;
      return !is_wanted;
    });
    return bytes;
  }

  void work(bool takes_long) {
    name_thread("quire-compile");
    std::unique_lock lock(mutex_);
    while (!closing_) {
      std::deque<std::weak_ptr<Job>>& queue = takes_long && short_.empty() ? long_ : short_;
      if (queue.empty()) {
        ++num_idle_;
        wake_.wait(lock);
        --num_idle_;
        continue;
      }
      const std::weak_ptr<Job> job = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      run(job);
      lock.lock();
    }
  }

  // Holds the job only where it has to, so that it is given up once nobody else does.
  void run(const std::weak_ptr<Job>& weak) {
    std::shared_ptr<Job> job = weak.lock();
    if (!job) return;
    const Source source = job->source;
    const std::stop_source stop = job->stop;
    job.reset();
    std::optional<OutputGrammar> grammar;
    std::exception_ptr failure;
    std::string wrong;
    try {
      wrong = source->name;
      grammar.emplace(compiled(*source, stop.get_token(), wrong), source);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    job = weak.lock();
    std::unique_lock lock(mutex_);
    if (!job || closing_) return;
    job->grammar = std::move(grammar);
    job->failure = std::move(failure);
    job->wrong = std::move(wrong);
    job->is_done = true;
    const auto entry = std::ranges::find_if(entries_, [&](const Entry& e) { return e.job.lock() == job; });
    if (job->grammar && entry != entries_.end()) entry->kept = job;
    lock.unlock();
    done_();
  }

  // `wrong`: the name of what an exception is about.
  std::shared_ptr<const grammar::Grammar> compiled(const StructuredOutputs& source,
                                                   const std::stop_token& stop, std::string& wrong) {
    if (fault_) fault_(EngineStage::kCompile, 0);
    std::unique_lock lock(mutex_);
    if (const std::size_t bytes = trim(); bytes > limits_.bytes)
      throw std::runtime_error(
          format_text("those of unfinished requests take {} MiB, of at most {}; try again later", bytes >> 20,
                      limits_.bytes >> 20));
    lock.unlock();
    const std::shared_ptr<const grammar::Vocabulary> tokens = vocabulary();
    const auto start = std::chrono::steady_clock::now();
    std::shared_ptr<const grammar::Grammar> made;
    try {
      made = grammar::compile(source, tokens, kGrammarLimits, stop);
    } catch (const grammar::GrammarError&) {
      std::vector<StructuredOutputs> parts = source.parts;
      if (source.whitespace_pattern)
        parts.insert(parts.begin(), {.kind = StructuredOutputs::Kind::kRegex,
                                     .source = *source.whitespace_pattern,
                                     .name = source.whitespace_name});
      for (const StructuredOutputs& part : parts) {
        wrong = part.name;
        grammar::compile(part, tokens, kGrammarLimits, stop);
      }
      wrong = source.name;
      throw;
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    lock.lock();
    const auto observer = observer_;
    lock.unlock();
    if (observer) observer(taken.count());
    return made;
  }

  // Made by whoever is the first to want it.
  std::shared_ptr<const grammar::Vocabulary> vocabulary() {
    const std::lock_guard lock(vocabulary_mutex_);
    if (vocabulary_) return vocabulary_;
    std::vector<grammar::TokenText> tokens(vocab_size_);
    for (TokenId id = 0; id < std::min(vocab_size_, tokenizer_->vocab_size()); ++id)
      tokens[id] = {tokenizer_->token_bytes(id), tokenizer_->is_special(id)};
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(std::move(tokens), end_ids_);
    return vocabulary_;
  }

  const CompilerLimits limits_;
  const std::function<void()> done_;
  const EngineHooks::Fault fault_;
  const Tokenizer* const tokenizer_;
  const int vocab_size_;
  const std::vector<int> end_ids_;
  const int most_threads_;
  std::mutex vocabulary_mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;  // guarded by vocabulary_mutex_
  std::mutex mutex_;                                       // of what follows, and of jobs that are not done
  std::condition_variable wake_;
  std::deque<std::weak_ptr<Job>> short_, long_;
  std::list<Entry> entries_;  // of all jobs, what was asked for last first
  std::function<void(double)> observer_;
  std::size_t num_idle_ = 0;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const SamplingContext& context,
                                                       std::function<void()> done, EngineHooks::Fault fault,
                                                       CompilerLimits limits) {
  return std::make_unique<CompilePool>(context, std::move(done), std::move(fault), limits);
}

void validate_structured_outputs(const SamplingParams& params, const SamplingContext& context) {
  const StructuredOutputs& outputs = *params.structured_outputs;
  if (params.beam_width) fail("structured_outputs and beam_width exclude each other");
  if (context.tokenizer == nullptr) fail("structured_outputs need a tokenizer; this model has none");
  if (outputs.source.size() > kGrammarLimits.source_bytes)
    fail("{} has a source of {} bytes; at most {} are allowed", outputs.name, outputs.source.size(),
         kGrammarLimits.source_bytes);
  if (outputs.disable_any_whitespace && outputs.whitespace_pattern)
    fail("structured_outputs have both disable_any_whitespace and whitespace_pattern; give one");
}

}  // namespace quire
