#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvcache/ids.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

// The texts of highest log-probability, as far as a search of limited width finds them, by the rules of
// Hugging Face transformers' beam search. Knows tokens and their log-probabilities, neither sequences nor a
// model.
class BeamSearch {
 public:
  struct Rules {
    int width = 1;
    double length_penalty = 1;
    EarlyStopping early_stopping = EarlyStopping::kNo;
    int max_tokens = 1;
    int min_tokens = 0;             // before that many, no token of stop_ids
    std::vector<TokenId> stop_ids;  // each ends a text, as its last token
  };
  // A text that is not finished.
  struct Beam {
    std::size_t parent = 0;  // among the beams of the round before
    std::vector<TokenId> tokens;
    double logprob = 0;
  };
  struct Hypothesis {
    std::vector<TokenId> tokens;
    double logprob = 0;
    double score = 0;  // logprob / its tokens ^ length_penalty
    FinishReason finish = FinishReason::kNone;
  };

  // Begins with one beam, of no tokens.
  explicit BeamSearch(Rules rules);

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
  double score(double logprob, int length) const;
  void finish(Beam text, FinishReason reason);
  bool can_improve(int length) const;

  Rules rules_;
  std::vector<Beam> beams_;
  std::vector<Hypothesis> finished_;  // at most `width`, the best first
};

// What comes of a request's search.
struct SearchResult {
  SequenceId id = 0;  // of the first beam
  std::vector<BeamSearch::Hypothesis> best;
  FinishReason reason = FinishReason::kNone;  // why it ended early, if it did
  std::string error;
  int num_cached_tokens = 0;
  std::optional<TimePoint> first_token = {};  // when the first round had its results
};

}  // namespace quire
