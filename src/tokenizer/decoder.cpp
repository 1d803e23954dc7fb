#include "tokenizer/decoder.h"

#include <utility>

#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace decoding {

void ByteLevel::push(std::string token, Tokens& out) {
  pending += in_text(std::move(token));
  out.push_back(take_complete_utf8(pending));
}

void ByteLevel::finish(Tokens& out) { out.push_back(to_valid_utf8(std::exchange(pending, {}))); }

// A token with a character outside the alphabet stands for itself.
std::string ByteLevel::in_text(std::string token) const {
  auto bytes = from_byte_characters(token);
  return bytes ? *std::move(bytes) : token;
}

void ByteRuns::push(std::string token, Tokens& out) {
  if (const auto byte = byte_of_token(token)) {
    run.push_back(static_cast<char>(*byte));
    return;
  }
  finish(out);
  out.push_back(std::move(token));
}

void ByteRuns::finish(Tokens& out) {
  if (run.empty()) return;
  if (is_valid_utf8(run)) {
    out.push_back(run);
  } else {
    out.insert(out.end(), run.size(), "\uFFFD");
  }
  run.clear();
}

std::string ByteRuns::in_text(std::string token) const {
  const auto byte = byte_of_token(token);
  return byte ? std::string(1, static_cast<char>(*byte)) : token;
}

void Strip::push(std::string token, Tokens& out) {
  std::string text = std::exchange(held, {}) + token;
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
  if (!joined) reset();
}

void Strip::reset() {
  held.clear();
  stripped = 0;
}

void MetaspaceToSpace::push(std::string token, Tokens& out) {
  const bool strips = std::exchange(is_first, false) && metaspace.prepend != Metaspace::Prepend::kNever;
  out.push_back(replace_all(token, metaspace.replacement, strips ? "" : " "));
}

void WordEnds::push(std::string token, Tokens& out) {
  if (held) out.push_back(in_text(*std::exchange(held, std::nullopt)));
  if (token.find(suffix) == token.npos) {
    out.push_back(std::move(token));
  } else {
    held = std::move(token);
  }
}

void WordEnds::finish(Tokens& out) {
  if (held) out.push_back(replace_all(*std::exchange(held, std::nullopt), suffix, ""));
}

}  // namespace decoding

void Decoder::add_steps(const JsonView& config) {
  const std::string& type = config.at("type").as_string();
  const auto refuse_joined = [&] {
    if (joined_) fail("{}: {} is not supported behind Fuse or ByteLevel", config.where(), type);
  };
  if (type == "Sequence") {
    for (const JsonView& step : config.at("decoders").items()) add_steps(step);
  } else if (type == "Fuse") {
    joined_ = true;
  } else if (type == "Strip") {
    add_strip(config);
  } else if (type == "Replace") {
    TextReplacer replacer = TextReplacer::from_json(config);
    if (!replacer.replaces_single_characters()) refuse_joined();
    steps_.emplace_back(decoding::Replace{std::move(replacer)});
  } else if (type == "ByteLevel") {
    refuse_joined();
    steps_.emplace_back(decoding::ByteLevel{});
    joined_ = true;
  } else if (type == "ByteFallback") {
    refuse_joined();
    steps_.emplace_back(decoding::ByteRuns{});
  } else if (type == "Metaspace") {
    refuse_joined();
    steps_.emplace_back(decoding::MetaspaceToSpace{Metaspace::from_json(config)});
  } else if (type == "BPEDecoder") {
    refuse_joined();
    const JsonView suffix = config.at("suffix");
    if (suffix.as_string().empty()) fail("{}: must not be empty", suffix.where());
    steps_.emplace_back(decoding::WordEnds{suffix.as_string(), std::nullopt});
  } else {
    fail(
        "{}: the decoder {} is not supported; supported are ByteLevel, ByteFallback, Metaspace, BPEDecoder, "
        "Replace, Strip, Fuse and Sequence",
        config.where(), type);
  }
}

void Decoder::add_strip(const JsonView& config) {
  const std::string& character = one_character(config.at("content"));
  const auto count = [&](const char* key) {
    return static_cast<std::size_t>(config.at(key).as_int(0, INT32_MAX));
  };
  steps_.emplace_back(decoding::Strip{character, count("start"), count("stop"), joined_});
}

std::string Decoder::bytes(std::string_view token) const {
  std::string text(token);
  for (const decoding::Step& step : steps_) {
    text = std::visit([&](const auto& kind) { return kind.in_text(std::move(text)); }, step);
  }
  return text;
}

std::string DecoderStream::push(std::string_view token) {
  tokens_.assign(1, std::string(token));
  return run(false);
}

std::string DecoderStream::finish() {
  tokens_.clear();
  std::string out = run(true);
  steps_ = decoder_->steps_;
  return out;
}

std::string DecoderStream::run(bool ends) {
  for (decoding::Step& step : steps_) {
    next_.clear();
    for (std::string& text : tokens_)
      std::visit([&](auto& kind) { kind.push(std::move(text), next_); }, step);
    if (ends) std::visit([&](auto& kind) { kind.finish(next_); }, step);
    tokens_.swap(next_);
  }
  std::string out;
  for (const std::string& text : tokens_) out += text;
  return out;
}

}  // namespace quire
