#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/error.h"
#include "grammar/vocabulary.h"
#include "quire/sampling_params.h"

// Languages that a text must belong to, and which tokens keep it in them (docs/structured_output.md).
namespace quire::grammar {

// A source that is wrong or not supported. The message says
// where (a JSON pointer, or a line and column), what, and what would be right.
class GrammarError : public Error {
 public:
  using Error::Error;
};

// What a grammar costs is more than its limits.
class LimitError : public GrammarError {
 public:
  using GrammarError::GrammarError;
};

using Source = StructuredOutputs;  // whose names, parts and free text are not looked at

struct Limits {
  std::size_t source_bytes = std::size_t{1} << 20;
  std::size_t memory_bytes = std::size_t{128} << 20;  // of one grammar, what its matchers found out included
  // Of the processor's time that a thread spends.
  std::chrono::milliseconds compile_time{2000};
  std::chrono::milliseconds mask_time{250};      // of one mask, or one token accepted
  std::chrono::milliseconds output_time{10000};  // of all of one matcher
};

class Automaton;  // the states of one grammar and what is known of them
struct CompiledSource;

// A compiled source. Immutable to its callers; what its matchers find out of its states is kept in it, and
// may be asked for by any thread.
class Grammar {
 public:
  Grammar(std::shared_ptr<const Vocabulary> vocabulary, std::unique_ptr<const CompiledSource> compiled);
  ~Grammar();

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  // What its states take, with what its matchers found out. At most Limits::memory_bytes.
  std::size_t memory_bytes() const;

 private:
  friend class Matcher;
  // What matchers share: one of `compiled_`, afresh where the last one is full, and another finds room.
  std::shared_ptr<Automaton> automaton() const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<const CompiledSource> compiled_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Automaton> current_;
};

// Throws GrammarError; Stopped, where the token asks for it.
std::shared_ptr<const Grammar> compile(const Source& source, std::shared_ptr<const Vocabulary> vocabulary,
                                       const Limits& limits = {}, const std::stop_token& stop = {});

// How far one sequence has come. A copy is a fork, and costs its history of 8 bytes a token. For one thread
// at a time; matchers of one grammar may be used by different threads.
// Every function throws GrammarError where the grammar's limits are exceeded, and leaves the matcher as it
// was.
class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);

  // Appends a token that the mask allows; false, and nothing is changed, for any other.
  bool accept(int token);
  // Takes the last tokens back. At most as many as were accepted.
  void roll_back(std::size_t num_tokens);
  // Sets bit i % 32 of word i / 32 where token i may come next, and clears all others. An end token may come
  // only where the text is complete. [vocabulary().mask_words()]. GrammarError if no token may come.
  void fill_mask(std::span<std::uint32_t> mask) const;
  // The only token that the mask allows.
  std::optional<int> forced() const;
  // Whether the text may end here.
  bool complete() const;
  // Whether an end token was accepted. Then the mask allows those alone.
  bool ended() const { return num_ends_ > 0; }
  std::size_t num_tokens() const { return tokens_.size(); }

 private:
  void leave_full_automaton();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<Automaton> automaton_;
  std::vector<int> tokens_;
  std::vector<std::uint32_t> states_;  // after the last tokens, and before the first of those
  std::size_t num_ends_ = 0;           // the last tokens, which are end tokens
  mutable std::chrono::nanoseconds allowance_;
};

}  // namespace quire::grammar
