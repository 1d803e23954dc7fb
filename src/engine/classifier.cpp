#include "engine/classifier.h"

#include "base/log.h"
#include "checkpoint/config_object.h"

namespace quire {
namespace {

constexpr const char* kLabels = "classifier_from_token";
constexpr const char* kQwen3 = "is_original_qwen3_reranker";
constexpr const char* kArchitectures = "architectures";
constexpr const char* kOverrides = "--hf-overrides";

// What Qwen3-Reranker was trained on, as its authors publish it.
constexpr std::string_view kQwen3Prompt =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    "Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: "
    "{{ instruction | default('Given a web search query, retrieve relevant passages that answer the query') "
    "}}\n"
    "<Query>: {{ messages[0].content }}\n<Document>: {{ messages[1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}";

// "Qwen3" of "Qwen3ForCausalLM" and of "Qwen3ForSequenceClassification".
std::string_view family_of(std::string_view architecture) {
  return architecture.substr(0, architecture.rfind("For"));
}

// Whether a template is made for pairs. Others show messages of any role, too.
bool names_roles(const std::string& source) {
  const auto names = [&source](const char* role) {
    return source.find(format_text("\"{}\"", role)) != std::string::npos ||
           source.find(format_text("'{}'", role)) != std::string::npos;
  };
  return names("query") && names("document");
}

}  // namespace

void check_hf_overrides(const std::string& overrides) {
  if (overrides.empty()) return;
  for (const std::string& key : ConfigObject(overrides, kOverrides).keys())
    if (key != kArchitectures && key != kLabels && key != kQwen3)
      fail("{}: {} is not supported; it may have {}, {} and {}", kOverrides, in_quotes(key), kArchitectures,
           kLabels, kQwen3);
}

std::optional<Classifier> find_classifier(const Engine& engine, const std::string& overrides,
                                          const CheckpointChatTemplate* chat_template) {
  const ModelConfig& config = engine.model_config();
  const ConfigObject over(overrides.empty() ? "{}" : overrides, kOverrides);
  const auto holder = [&](const char* key) -> const ConfigObject& {
    return over.contains(key) ? over : config;
  };
  for (const std::string& name : over.get_strings(kArchitectures))
    if (family_of(name) != family_of(config.architecture()))
      over.fail_at(kArchitectures, format_text("has {}, but the model is a {}", in_quotes(name),
                                               in_quotes(config.architecture())));
  const bool is_qwen3 = holder(kQwen3).get_bool(kQwen3, false);
  Classifier classifier{.labels = holder(kLabels).get_strings(kLabels), .tokens = {}, .pair_prompt = {}};
  if (classifier.labels.empty() && !is_qwen3) return std::nullopt;
  if (classifier.labels.size() < 2 || (is_qwen3 && classifier.labels.size() > 2))
    holder(kLabels).fail_at(
        kLabels, is_qwen3 ? "must be two texts beside is_original_qwen3_reranker: [\"no\", \"yes\"]"
                          : "must be at least two texts");
  for (const std::string& label : classifier.labels) {
    const std::vector<TokenId> ids = engine.tokenizer().encode(label, false);
    if (ids.size() != 1)
      holder(kLabels).fail_at(kLabels, format_text("has {}, which is {} tokens; each label must be one",
                                                   in_quotes(label), ids.size()));
    classifier.tokens.push_back(ids.front());
  }
  if (chat_template != nullptr && classifier.labels.size() == 2 &&
      names_roles(chat_template->standard.source()))
    classifier.pair_prompt = *chat_template;
  else if (is_qwen3)
    classifier.pair_prompt = {ChatTemplate(kQwen3Prompt, "the prompt of Qwen3-Reranker"), {}, {}};
  log_info(
      "the model classifies by its next token: {}; scores are {}", join_text(classifier.labels, ", "),
      classifier.pair_prompt ? format_text("the share of {}", in_quotes(classifier.labels[1])) : "cosines");
  return classifier;
}

}  // namespace quire
