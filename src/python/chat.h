#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/classifier.h"
#include "tokenizer/chat_template.h"

namespace quire::python {

// Conversations as a model's chat template spells them. Usable from several threads at once.
class Chat {
 public:
  // hf_overrides: find_classifier's.
  Chat(const Engine& engine, const std::string& hf_overrides);

  const Classifier* classifier() const { return classifier_ ? &*classifier_ : nullptr; }
  // request: "context", what the template reads; "chat_template", null or a file or text to be taken instead
  // of the model's; "of_pair", whether the classifier's prompt is; "cut_after", null or the last message's
  // text, behind which the result ends. Error where there is no template, and the template's own.
  std::vector<TextPiece> render(OrderedJson request) const;

 private:
  std::optional<CheckpointChatTemplate> template_;
  std::optional<Classifier> classifier_;
  std::string why_none_;
};

}  // namespace quire::python
