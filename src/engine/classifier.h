#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire {

// A causal model that judges a text by which of some tokens it would say next.
struct Classifier {
  std::vector<std::string> labels;
  std::vector<TokenId> tokens;  // one for each
  // The prompt of a query and a document, which have messages of these roles: then there are two labels, and
  // the second one says that the document is relevant. Unset: it judges no pairs.
  std::optional<CheckpointChatTemplate> pair_prompt;
};

// Error unless the text is empty or a JSON object of keys that find_classifier knows.
void check_hf_overrides(const std::string& overrides);
// What the model's config.json says with classifier_from_token and is_original_qwen3_reranker, or
// `overrides`, vLLM's --hf-overrides, in its place. chat_template: the checkpoint's, or null. Error where
// that is no classifier of this model.
std::optional<Classifier> find_classifier(const Engine& engine, const std::string& overrides,
                                          const CheckpointChatTemplate* chat_template);

}  // namespace quire
