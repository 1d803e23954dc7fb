#include "tokenizer/token_decoder.h"

#include <utility>

#include "tokenizer/byte_tokens.h"
#include "tokenizer/text_steps.h"

namespace quire {
namespace {

using DecoderSteps = TokenDecoder::Steps;
using DecodedTokens = TokenDecoder::Tokens;

void refuse_joined(const DecoderSteps& steps, const JsonView& config) {
  if (steps.joined)
    fail("{}: {} is not supported behind Fuse or ByteLevel", config.where(), config.at("type").as_string());
}

// Characters of the byte alphabet become bytes, those bytes one token of text. A token with a character
// outside the alphabet stands for itself.
void add_bytes(DecoderSteps& steps, const JsonView& config) {
  refuse_joined(steps, config);
  const auto in_text = [](std::string token) {
    auto bytes = from_byte_characters(token);
    return bytes ? *std::move(bytes) : token;
  };
  const auto take = [=, pending = std::string()](std::string* token, DecodedTokens& out) mutable {
    if (token != nullptr) pending += in_text(std::move(*token));
    out.push_back(token != nullptr ? take_complete_utf8(pending) : to_valid_utf8(std::exchange(pending, {})));
  };
  steps.list.push_back({take, in_text});
  steps.joined = true;
}

// Tokens such as <0x0A> become bytes. A run of them is text as a whole or not at all.
void add_byte_runs(DecoderSteps& steps, const JsonView& config) {
  refuse_joined(steps, config);
  const auto take = [run = std::string()](std::string* token, DecodedTokens& out) mutable {
    if (const auto byte = token != nullptr ? byte_of_token(*token) : std::nullopt)
      return run.push_back(*byte);
    if (!is_valid_utf8(run)) {
      out.insert(out.end(), run.size(), "\uFFFD");
    } else if (!run.empty()) {
      out.push_back(run);
    }
    run.clear();
    if (token != nullptr) out.push_back(std::move(*token));
  };
  steps.list.push_back({take, [](std::string token) {
                          const auto byte = byte_of_token(token);
                          return byte ? std::string(1, *byte) : token;
                        }});
}

// The first token loses the spaces that encoding may have put there.
void add_spaces(DecoderSteps& steps, const JsonView& config) {
  refuse_joined(steps, config);
  const Metaspace metaspace(config);
  bool strips = metaspace.prepend != Metaspace::Prepend::kNever;
  const auto take = [=](std::string* token, DecodedTokens& out) mutable {
    if (token != nullptr)
      out.push_back(replace_all(*token, metaspace.replacement, std::exchange(strips, false) ? "" : " "));
  };
  steps.list.push_back(
      {take, [=](std::string token) { return replace_all(token, metaspace.replacement, " "); }});
}

// The suffix of a word is a space, but for the last token.
void add_word_ends(DecoderSteps& steps, const JsonView& config) {
  refuse_joined(steps, config);
  const std::string suffix = config.at("suffix").as_string();
  if (suffix.empty()) fail("{}: must not be empty", config.at("suffix").where());
  const auto in_text = [=](std::string token) { return replace_all(token, suffix, " "); };
  std::optional<std::string> held;
  const auto take = [=](std::string* token, DecodedTokens& out) mutable {
    if (held) out.push_back(token != nullptr ? in_text(*held) : replace_all(*held, suffix, ""));
    held.reset();
    if (token == nullptr) return;
    if (token->find(suffix) == token->npos) return out.push_back(std::move(*token));
    held = std::move(*token);
  };
  steps.list.push_back({take, in_text});
}

void add_replacer(DecoderSteps& steps, const JsonView& config) {
  const TextReplacer replacer(config);
  if (!replacer.replaces_single_characters()) refuse_joined(steps, config);
  const auto take = [=](const std::string* token, DecodedTokens& out) {
    if (token != nullptr) out.push_back(replacer(*token));
  };
  steps.list.push_back({take, replacer});
}

// Removes a character from the ends: of each token, or of the text once its tokens are joined.
void add_strip(DecoderSteps& steps, const JsonView& config) {
  const std::string character = config.at("content").as_character();
  const auto count = [&](const char* key) {
    return static_cast<std::size_t>(config.at(key).as_int(0, INT32_MAX));
  };
  const std::size_t start = count("start"), stop = count("stop");  // at most so many
  const bool joined = steps.joined;
  std::size_t stripped = 0;  // at the start
  std::string held;          // at the end
  const auto take = [=](const std::string* token, DecodedTokens& out) mutable {
    if (token == nullptr) return;
    std::string text = std::exchange(held, {}) + *token;
    while (stripped < start && text.starts_with(character)) {
      text.erase(0, character.size());
      ++stripped;
    }
    if (!text.empty()) stripped = start;
    std::size_t kept = text.size();
    for (std::size_t i = 0; i < stop && std::string_view(text).substr(0, kept).ends_with(character); ++i)
      kept -= character.size();
    held = text.substr(kept);
    out.push_back(text.substr(0, kept));
    if (joined) return;
    held.clear();
    stripped = 0;
  };
  steps.list.push_back({take, [](std::string token) { return token; }});
}

constexpr StepKind<DecoderSteps> kDecoders[] = {
    {"ByteLevel", add_bytes},
    {"ByteFallback", add_byte_runs},
    {"Metaspace", add_spaces},
    {"BPEDecoder", add_word_ends},
    {"Replace", add_replacer},
    {"Strip", add_strip},
    {"Fuse", [](DecoderSteps& steps, const JsonView&) { steps.joined = true; }}};

}  // namespace

TokenDecoder::TokenDecoder(const JsonView& config) {
  add_steps(steps_, config, "decoder", "decoders", kDecoders);
}

std::string TokenDecoder::bytes(std::string_view token) const {
  std::string text(token);
  for (const Step& step : steps_.list) text = step.in_text(std::move(text));
  return text;
}

std::string TokenDecoderStream::push(std::string_view token) {
  tokens_.assign(1, std::string(token));
  return run(false);
}

std::string TokenDecoderStream::finish() {
  tokens_.clear();
  std::string out = run(true);
  steps_ = decoder_->steps_.list;
  return out;
}

std::string TokenDecoderStream::run(bool ends) {
  for (TokenDecoder::Step& step : steps_) {
    next_.clear();
    for (std::string& text : tokens_) step.take(&text, next_);
    if (ends) step.take(nullptr, next_);
    tokens_.swap(next_);
  }
  std::string out;
  for (const std::string& text : tokens_) out += text;
  return out;
}

}  // namespace quire
