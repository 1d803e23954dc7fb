#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "engine/search_rounds.h"

namespace quire {

// The texts of highest log-probability, as far as a search of limited width finds them, by the rules of
// Hugging Face transformers' beam search. Knows tokens and their log-probabilities, neither sequences nor a
// model.
class BeamSearch {
 public:
  // A text that is not finished.
  struct Beam {
    std::size_t parent = 0;  // among the beams of the round before
    std::vector<TokenId> tokens;
    double logprob = 0;
  };
  // Begins with one beam, of no tokens.
  explicit BeamSearch(SearchRules rules) : rules_(std::move(rules)), beams_(1) {}

  // At most `width`, the most likely one first; none: the search has ended.
  const std::vector<Beam>& beams() const { return beams_; }
  // One round. next[i]: the most likely tokens after beam i, at least width + stop_ids.size() of them, or all
  // there are.
  void advance(std::span<const std::vector<TokenLogprob>> next);
  // The best first. Of a search that has not ended, with its beams as they stand; they have no finish.
  std::vector<Hypothesis> best() const;

 private:
  struct Candidate {
    std::size_t parent;
    TokenId token;
    double logprob;
  };

  std::vector<Candidate> rank(std::span<const std::vector<TokenLogprob>> next, int length) const;
  bool is_stop(TokenId token) const;
  double score(double logprob, int length) const { return logprob / std::pow(length, rules_.length_penalty); }
  void finish(Beam text, FinishReason reason);
  bool can_improve(int length) const;

  SearchRules rules_;
  std::vector<Beam> beams_;
  std::vector<Hypothesis> finished_;  // at most `width`, the best first
};

}  // namespace quire
