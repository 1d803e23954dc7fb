#include "python/chat.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"

namespace quire::python {
namespace {

// The pieces up to the end of the last place where `text` stands.
void cut_after(std::vector<TextPiece>& pieces, const std::string& text) {
  const std::string all = join_pieces(pieces);
  const std::size_t begin = all.rfind(text);
  if (text.empty() || begin == std::string::npos)
    fail("continue_final_message: the last message has no text that stands in what the chat template makes");
  std::size_t left = begin + text.size();
  for (TextPiece& piece : pieces) {
    piece.text.resize(std::min(piece.text.size(), left));
    left -= piece.text.size();
  }
}

}  // namespace

Chat::Chat(const Engine& engine, const std::string& hf_overrides) {
  try {
    template_ = engine.load_chat_template();
    if (!template_)
      why_none_ = format_text("{}: no chat template in chat_template.jinja or tokenizer_config.json",
                              engine.model_directory().string());
  } catch (const Error& e) {
    why_none_ = e.what();
  }
  classifier_ = find_classifier(engine, hf_overrides, template_ ? &*template_ : nullptr);
}

std::vector<TextPiece> Chat::render(OrderedJson request) const {
  const OrderedJson& given = request.at("chat_template");
  std::optional<CheckpointChatTemplate> instead;
  if (request.at("of_pair").get<bool>()) {
    if (!classifier_ || !classifier_->pair_prompt) fail("the model has no prompt for pairs of texts");
    instead = classifier_->pair_prompt;
  } else if (!given.is_null()) {
    instead = {read_chat_template(given.get<std::string>()), std::nullopt,
               template_ ? template_->special_tokens : OrderedJson::object()};
  }
  if (!instead && !template_) throw Error(why_none_);
  const std::time_t time = std::time(nullptr);
  std::tm now{};
  localtime_r(&time, &now);
  std::vector<TextPiece> pieces =
      (instead ? instead : template_)->render(std::move(request.at("context")), now);
  if (const OrderedJson& last = request.at("cut_after"); !last.is_null())
    cut_after(pieces, last.get<std::string>());
  return pieces;
}

}  // namespace quire::python
