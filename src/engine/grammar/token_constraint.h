#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "quire/sampling_params.h"
#include "scheduler/constraint.h"

namespace quire {

// A compiled grammar and where in an output it begins to hold.
struct OutputGrammar {
  OutputGrammar(std::shared_ptr<const grammar::Grammar> compiled,
                std::shared_ptr<const StructuredOutputs> of);

  std::shared_ptr<const grammar::Grammar> grammar;
  std::shared_ptr<const StructuredOutputs> source;
  std::vector<TokenId> openings;  // that free_after may begin with
};

// What the masks of a request may yet take: nanoseconds of a thread, beyond what those of a step may take
// anyhow.
using MaskTime = std::atomic<std::int64_t>;

// Holds one output to a grammar.
class TokenConstraint final : public Constraint {
 public:
  TokenConstraint(std::shared_ptr<const OutputGrammar> grammar, std::shared_ptr<MaskTime> time_left)
      : grammar_(std::move(grammar)),
        time_left_(std::move(time_left)),
        is_free_(!grammar_->source->free_until.empty() && grammar_->source->free_after.empty()),
        may_open_(!grammar_->source->free_after.empty()) {}

  bool fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) override;
  std::vector<TokenId> forced(int most) override;

 private:
  template <typename Work>
  auto charged(const Work& work);
  void take(TokenId token);
  void take_free(const std::string& bytes);
  bool ends_early(TokenId token);

  const std::shared_ptr<const OutputGrammar> grammar_;
  const std::shared_ptr<MaskTime> time_left_;
  std::optional<grammar::Matcher> matcher_;  // from the first mask on: to make it may take time
  std::int64_t free_ = 0;                    // nanoseconds that the step's mask may yet take
  std::size_t num_taken_ = 0;                // tokens of the output
  bool is_free_;
  bool may_open_;        // what there is may become free_after
  bool is_held_ = true;  // what there is is of the grammar; with may_open_ it may be either
  std::string tail_;     // of the text: what may be a beginning of free_after, or of free_until
};

}  // namespace quire
