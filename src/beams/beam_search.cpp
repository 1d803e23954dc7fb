#include "beams/beam_search.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kMaxBeams = 512;
constexpr float kMaxLengthPenalty = 100;

// What a search of beams cannot be asked for, if anything is.
const char* excluded_by_beams(const SamplingParams& params) {
  if (params.best_of) return "best_of";
  if (!params.stop.empty()) return "stop";
  if (params.logprobs) return "logprobs";
  if (params.prompt_logprobs) return "prompt_logprobs";
  if (!params.logit_bias.empty()) return "logit_bias";
  if (!params.allowed_token_ids.empty()) return "allowed_token_ids";
  if (!params.bad_words.empty()) return "bad_words";
  if (params.presence_penalty != 0) return "presence_penalty";
  if (params.frequency_penalty != 0) return "frequency_penalty";
  if (params.repetition_penalty != 1) return "repetition_penalty";
  return nullptr;
}

}  // namespace

void validate_search(const SamplingParams& params, const SamplingContext& context) {
  const int width = *params.beam_width;
  if (width < 1 || width > kMaxBeams) fail("beam_width is {}; it must be from 1 to {}", width, kMaxBeams);
  if (params.n > width) fail("n is {}; of a beam search it must be at most beam_width, {}", params.n, width);
  if (const char* name = excluded_by_beams(params)) fail("beam_width and {} exclude each other", name);
  if (!(std::abs(params.length_penalty) <= kMaxLengthPenalty))  // NaN is outside
    fail("length_penalty is {}; it must be from {} to {}", params.length_penalty, -kMaxLengthPenalty,
         kMaxLengthPenalty);
  const std::size_t num_stop_ids =
      params.stop_token_ids.size() + (params.ignore_eos ? 0 : context.eos_token_ids.size());
  const int needed = num_beam_candidates(width, num_stop_ids, context.vocab_size);
  if (needed > context.max_logprobs) {
    fail("beam_width is {}; with {} tokens that end a text it takes a max-logprobs of {}, not {}", width,
         num_stop_ids, needed, context.max_logprobs);
  }
}

void BeamSearch::advance(std::span<const std::vector<TokenLogprob>> next) {
  QUIRE_CHECK(!beams_.empty() && next.size() == beams_.size());
  const int length = static_cast<int>(beams_.front().tokens.size()) + 1;
  const auto width = static_cast<std::size_t>(rules_.width);
  std::vector<Beam> kept;
  std::size_t place = 0;
  for (const Candidate& candidate : rank(next, length)) {
    const bool among_best = place++ < width;
    const bool stops = is_stop(candidate.token);
    const bool ends = stops || length == rules_.max_tokens;
    if (ends ? !among_best : kept.size() == width) continue;
    Beam text{candidate.parent, beams_[candidate.parent].tokens, candidate.logprob};
    text.tokens.push_back(candidate.token);
    if (ends)
      finish(std::move(text), stops ? FinishReason::kStop : FinishReason::kLength);
    else
      kept.push_back(std::move(text));
  }
  beams_ = std::move(kept);
  if (!beams_.empty() && finished_.size() == width && !can_improve(length)) beams_.clear();
}

// What could follow all beams, the most likely first.
std::vector<BeamSearch::Candidate> BeamSearch::rank(std::span<const std::vector<TokenLogprob>> next,
                                                    int length) const {
  std::vector<Candidate> candidates;
  for (std::size_t beam = 0; beam < next.size(); ++beam) {
    for (const TokenLogprob& token : next[beam]) {
      const bool too_early = length <= rules_.min_tokens && is_stop(token.token_id);
      if (!too_early && std::isfinite(token.logprob))
        candidates.push_back({beam, token.token_id, beams_[beam].logprob + token.logprob});
    }
  }
  std::ranges::stable_sort(candidates, std::greater(), &Candidate::logprob);
  return candidates;
}

bool BeamSearch::is_stop(TokenId token) const {
  return std::ranges::find(rules_.stop_ids, token) != rules_.stop_ids.end();
}

void BeamSearch::finish(Beam text, FinishReason reason) {
  const double its_score = score(text.logprob, static_cast<int>(text.tokens.size()));
  const auto place = std::ranges::upper_bound(finished_, its_score, std::greater(), &Hypothesis::score);
  finished_.insert(place, {std::move(text.tokens), text.logprob, its_score, reason});
  if (std::ssize(finished_) > rules_.width) finished_.pop_back();
}

// Whether a beam may still take the place of a finished text, of which there are `width`. The best beam
// speaks for all, and its log-probability, which can only fall, is taken as it is; its length, as it is or,
// where a longer text scores better and the answer must be certain, as it can become.
bool BeamSearch::can_improve(int length) const {
  if (rules_.early_stopping == EarlyStopping::kYes) return false;
  const bool can_grow = rules_.early_stopping == EarlyStopping::kNever && rules_.length_penalty > 0;
  return score(beams_.front().logprob, can_grow ? rules_.max_tokens : length) > finished_.back().score;
}

std::vector<Hypothesis> BeamSearch::best() const {
  std::vector<Hypothesis> all = finished_;
  for (const Beam& beam : beams_) {
    const int length = static_cast<int>(beam.tokens.size());
    if (length > 0)
      all.push_back({beam.tokens, beam.logprob, score(beam.logprob, length), FinishReason::kNone});
  }
  std::ranges::stable_sort(all, std::greater(), &Hypothesis::score);
  return all;
}

}  // namespace quire
