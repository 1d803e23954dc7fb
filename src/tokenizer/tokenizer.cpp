#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_set>

#include "tokenizer/text_steps.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/unicode.h"
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
    for (const JsonView& id : config.at("special_tokens").at(name).at("ids").items())
      (seen_text ? after : before).push_back(static_cast<TokenId>(id.as_int(0, kMaxTokenId)));
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

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxSettingsBytes = std::size_t{64} << 20;  // of tokenizer_config.json
constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

// The "model" of a file, which its tables are moved out of. No text becomes one of the special tokens.
// `byte_level` as for make_bpe.
std::unique_ptr<TokenizerModel> make_model(TokenizerFile& file, const JsonView& model,
                                           const std::vector<AddedToken>& added, bool byte_level) {
  std::unordered_set<TokenId> reserved;
  for (const AddedToken& token : added)
    if (token.special) reserved.insert(token.id);
  const auto type = model.find("type");
  const std::string name = type ? type->as_string() : file.scores.empty() ? "BPE" : "Unigram";
  if (name != "BPE" && name != "Unigram")
    fail("{}: the model {} is not supported; supported are BPE and Unigram", type->where(), in_quotes(name));
  const bool is_unigram = name == "Unigram";
  if (file.vocab.empty() || file.scores.empty() == is_unigram)
    fail("{}: the key \"vocab\" is missing or empty, or not of the kind that {} has", model.where(), name);
  Vocabulary vocabulary(std::move(file.vocab), model.where() + ".vocab");
  if (is_unigram)
    return make_unigram(model, std::move(vocabulary), std::move(file.scores), std::move(reserved));
  if (!file.has_merges) fail("{}: the key \"merges\" is missing or no list", model.where());
  return make_bpe(model, std::move(vocabulary), file.merges, std::move(reserved), byte_level);
}

}  // namespace

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_json(read_text_file(path, kMaxFileBytes), path.string());
}

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  Tokenizer tokenizer = from_file(folder / "tokenizer.json");
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::vector<TokenId>& prefix = tokenizer.post_processor_.prefix;
  if (std::error_code ec; !prefix.empty() || !std::filesystem::exists(path, ec)) return tokenizer;
  const Json config = read_json_file(path, {.max_bytes = kMaxSettingsBytes});
  const auto value = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) ? object[key] : Json();
  };
  const Json name = value(config, "tokenizer_class"), bos = value(config, "bos_token");
  if ((name != "LlamaTokenizer" && name != "LlamaTokenizerFast") || value(config, "add_bos_token") != true)
    return tokenizer;
  const Json text = bos.is_object() ? value(bos, "content") : bos;
  for (const AddedToken& token : tokenizer.added_tokens_)
    if (text == token.content) prefix = {token.id};
  return tokenizer;
}

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view where) {
  return Tokenizer(parse_tokenizer_file(text, where), where);
}

Tokenizer::Tokenizer(TokenizerFile file, std::string_view where) {
  const JsonView root(file.config, std::string(where) + ":");
  if (const auto list = root.find("added_tokens")) added_tokens_ = added_tokens_from_json(*list);
  if (const auto normalizer = root.find("normalizer")) normalizer_ = Normalizer(*normalizer);
  if (const auto cutter = root.find("pre_tokenizer")) pre_tokenizer_ = PreTokenizer(*cutter);
  if (const auto processor = root.find("post_processor"))
    add_steps(post_processor_, *processor, "post-processor", "processors", kPostProcessors);
  model_ = make_model(file, root.at("model"), added_tokens_, pre_tokenizer_.is_byte_level());
  if (model_->takes_bytes()) pre_tokenizer_.leave_bytes();
  decoder_ = TokenDecoder(root.at("decoder"));
  index_added_tokens(where);
  for (const std::vector<TokenId>& ids : {post_processor_.prefix, post_processor_.suffix}) {
    for (const TokenId id : ids)
      if (!id_to_token(id)) fail("{}: post_processor: the id {} belongs to no token", where, id);
  }
}

void Tokenizer::index_added_tokens(std::string_view where) {
  const Vocabulary& vocabulary = model_->vocabulary();
  vocab_size_ = vocabulary.size();
  std::unordered_set<std::string_view> texts;
  for (std::size_t i = 0; i < added_tokens_.size(); ++i) {
    AddedToken& token = added_tokens_[i];
    std::string buffer;
    token.form = token.normalized ? normalizer_.apply(token.content, buffer) : token.content;
    const bool other_text = vocabulary.text(token.id).value_or(token.content) != token.content;
    const bool other_id = vocabulary.find(token.content).value_or(token.id) != token.id;
    const bool new_id = added_by_id_.emplace(token.id, i).second;
    const bool new_text = texts.insert(token.content).second;
    if (other_text || other_id || !new_id || !new_text) {
      fail("{}: added_tokens[{}]: the id {} or the text {} belongs to another token already", where, i,
           token.id, in_quotes(token.content));
    }
    vocab_size_ = std::max(vocab_size_, token.id + 1);
  }
  // Of two tokens that normalisation makes alike, the special one is found.
  std::vector<const AddedToken*> in_text, in_normalized_text;
  for (const bool special : {true, false}) {
    for (const AddedToken& token : added_tokens_)
      if (token.special == special) (token.normalized ? in_normalized_text : in_text).push_back(&token);
  }
  in_text_ = AddedTokenMatcher(std::move(in_text));
  in_normalized_text_ = AddedTokenMatcher(std::move(in_normalized_text));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string repaired;
  if (!is_valid_utf8(text)) text = repaired = to_valid_utf8(text);
  TrustRuns trust;
  trust.append(text.size(), true);
  return encode(text, trust, add_special_tokens);
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextPiece> pieces, bool add_special_tokens) const {
  std::string text;
  TrustRuns trust;
  for (const TextPiece& piece : pieces) {
    const std::size_t begin = text.size();
    text += to_valid_utf8(piece.text);
    trust.append(text.size() - begin, piece.trusted);
  }
  return encode(text, trust, add_special_tokens);
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const TrustRuns& trust,
                                       bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes)
    fail("cannot tokenize a text of {} bytes: the limit is {}", text.size(), kMaxTextBytes);
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3);
  if (add_special_tokens) ids = post_processor_.prefix;
  const PieceEncoder encode_piece = model_->encoder(text.size());
  PreTokens pre_tokens;
  std::string buffer;
  in_text_.encode(text, trust, ids, [&](const TextRange& range) {
    const std::string_view plain = range.of(text);
    const std::string_view normalized = normalizer_.apply(plain, buffer);
    TrustRuns plain_trust;
    plain_trust.append(trust, range);
    const TrustRuns still_trusted = trust_after_normalizing(plain, normalized, plain_trust);
    in_normalized_text_.encode(normalized, still_trusted, ids, [&](const TextRange& part) {
      const bool is_beginning = range.begin == 0 && part.begin == 0;
      pre_tokens.start(part.of(normalized), is_beginning);
      pre_tokenizer_.run(pre_tokens);
      for (const TextRange& piece : pre_tokens.pieces()) encode_piece(piece.of(pre_tokens.text()), ids);
    });
  });
  if (add_special_tokens) ids.insert(ids.end(), post_processor_.suffix.begin(), post_processor_.suffix.end());
  return ids;
}

TrustRuns Tokenizer::trust_after_normalizing(std::string_view text, std::string_view normalized,
                                             const TrustRuns& trust) const {
  TrustRuns after;
  if (in_normalized_text_.empty() || normalized == text) return trust;
  if (trust.num_borders() == 0) {
    after.append(normalized.size(), trust.covers({0, text.size()}));
    return after;
  }
  // Runs that normalise to the same text alone as together keep their trust. Where a normaliser works across
  // their borders nothing is trusted: a lost control token is the lesser harm.
  std::string joined, buffer;
  trust.for_each([&](const TextRange& run, bool trusted) {
    const std::string_view part = normalizer_.apply(run.of(text), buffer);
    joined += part;
    after.append(part.size(), trusted);
  });
  return joined == normalized ? after : TrustRuns();
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const auto form = spelling(id, &AddedToken::form);
  return form ? decoder_.bytes(*form) : std::string();
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  IncrementalDetokenizer detokenizer(*this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

const AddedToken* Tokenizer::added_token(TokenId id) const {
  const auto added = added_by_id_.find(id);
  return added == added_by_id_.end() ? nullptr : &added_tokens_[added->second];
}

std::optional<std::string_view> Tokenizer::spelling(TokenId id, std::string AddedToken::*of_added) const {
  const AddedToken* const added = added_token(id);
  return added != nullptr ? added->*of_added : model_->vocabulary().text(id);
}

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* const added = added_token(id);
  return added != nullptr && added->special;
}

void IncrementalDetokenizer::follow(std::span<const TokenId> prompt) {
  const auto has_text = [&](TokenId id) {
    return tokenizer_.spelling(id, &AddedToken::form) && !(skip_special_tokens_ && tokenizer_.is_special(id));
  };
  if (std::ranges::any_of(prompt, has_text)) stream_.push("a");  // for all of it: no decoder holds that back
}

std::string IncrementalDetokenizer::push(TokenId id) {
  const auto form = tokenizer_.spelling(id, &AddedToken::form);
  if (!form || (skip_special_tokens_ && tokenizer_.is_special(id))) return {};
  return stream_.push(*form);
}

}  // namespace quire
