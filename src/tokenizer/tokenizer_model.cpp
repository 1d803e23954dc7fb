#include "tokenizer/tokenizer_model.h"

#include "tokenizer/tokenizer_file.h"

namespace quire {

std::unique_ptr<TokenizerModel> make_tokenizer_model(TokenizerFile& file, const JsonView& model,
                                                     std::unordered_set<TokenId> reserved, bool byte_level) {
  const auto type = model.find("type");
  const std::string name = type ? type->as_string() : file.scores.empty() ? "BPE" : "Unigram";
  if (name != "BPE" && name != "Unigram") {
    fail("{}: the model {} is not supported; supported are BPE and Unigram", type->where(), in_quotes(name));
  }
  const bool is_unigram = name == "Unigram";
  if (file.vocab.empty() || file.scores.empty() == is_unigram) {
    fail("{}: the key \"vocab\" is missing or empty, or not of the kind that {} has", model.where(), name);
  }
  Vocabulary vocabulary(std::move(file.vocab), model.where() + ".vocab");
  if (is_unigram)
    return make_unigram(model, std::move(vocabulary), std::move(file.scores), std::move(reserved));
  if (!file.has_merges) fail("{}: the key \"merges\" is missing or no list", model.where());
  return make_bpe(model, std::move(vocabulary), file.merges, std::move(reserved), byte_level);
}

}  // namespace quire
