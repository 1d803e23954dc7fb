#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>

#include "quire/engine_config.h"

namespace quire {

struct PerplexityOptions {
  EngineConfig engine;
  std::optional<EngineConfig> against;  // the reference that it is compared with, on the same text
  std::filesystem::path text;
  std::optional<int> context;     // tokens of a window; 2048, or the longest sequence where that is less
  std::optional<int> stride;      // from one window's beginning to the next one's; half of it
  std::optional<int> max_tokens;  // of the text, the first ones; all
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // tokens of the text
};

// Over the predicted tokens: the divergence KL(reference || model) of the distributions over the vocabulary,
// in nats, and how often both have the same most likely token.
struct ReferenceComparison {
  double perplexity = 0;  // the reference's
  double kl_mean = 0;
  double kl_p99 = 0;
  double top1_agreement = 0;  // 0 to 1
};

struct PerplexityResult {
  double perplexity = 0;
  std::size_t num_tokens = 0;  // predicted
  int context = 0;
  int stride = 0;
  std::size_t weight_bytes = 0;  // of each rank
  std::optional<ReferenceComparison> against;
};

// exp of the mean negative log-likelihood of a text's tokens. The tokenizer makes them, with a BOS at the
// beginning where it adds one. Windows of `context` tokens begin `stride` apart
// (huggingface.co/docs/transformers/perplexity). Each token is predicted once: in the first window that has a
// token before it. Logits are held for a few steps of the engine, whatever the context. Error where the text
// is not UTF-8 or has less than two tokens, a number is out of its range, a window does not fit the KV cache,
// or the reference has another vocabulary.
PerplexityResult measure_perplexity(const PerplexityOptions& options);

}  // namespace quire
