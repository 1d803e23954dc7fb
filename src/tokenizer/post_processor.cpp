#include "tokenizer/text_steps.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace quire {
namespace {

constexpr std::size_t kMaxSurrounding = 1024;  // tokens

// The special tokens of the template for one text, in which that text, "A", stands once.
void wrap_in_template(PostProcessor& processor, const JsonView& config) {
  std::vector<TokenId> before, after;
  bool seen_text = false;
  const JsonView single = config.at("single");
  for (const JsonView& piece : single.items()) {
    if (const auto sequence = piece.find("Sequence")) {
      if (seen_text || sequence->at("id").as_string() != "A")
        fail("{}: must hold the sequence A once", single.where());
      seen_text = true;
      continue;
    }
    const std::string& name = piece.at("SpecialToken").at("id").as_string();
    for (const JsonView& id : config.at("special_tokens").at(name).at("ids").items()) {
      (seen_text ? after : before).push_back(static_cast<TokenId>(id.as_int(0, kMaxTokenId)));
    }
  }
  if (!seen_text) fail("{}: must hold the sequence A once", single.where());
  if (before.size() + after.size() > kMaxSurrounding)
    fail("{}: over {} tokens", single.where(), kMaxSurrounding);
  processor.prefix.insert(processor.prefix.begin(), before.begin(), before.end());
  processor.suffix.insert(processor.suffix.end(), after.begin(), after.end());
}

// [CLS] and [SEP], as pairs of a text and an id.
void wrap_in_pair(PostProcessor& processor, const JsonView& config) {
  const auto id = [&](const char* key) {
    const JsonView pair = config.at(key);
    const std::vector<JsonView> items = pair.items();
    if (items.size() != 2) fail("{}: must be a text and an id", pair.where());
    return static_cast<TokenId>(items[1].as_int(0, kMaxTokenId));
  };
  processor.prefix.insert(processor.prefix.begin(), id("cls"));
  processor.suffix.push_back(id("sep"));
}

constexpr StepKind<PostProcessor> kPostProcessors[] = {
    {"TemplateProcessing", wrap_in_template},
    {"RobertaProcessing", wrap_in_pair},
    {"BertProcessing", wrap_in_pair},
    {"ByteLevel", [](PostProcessor&, const JsonView&) {}}};  // changes offsets alone

}  // namespace

PostProcessor::PostProcessor(const JsonView& config) {
  add_steps(*this, config, "post-processor", "processors", kPostProcessors);
}

}  // namespace quire
