#include "tokenizer/decoder.h"

#include "tokenizer/byte_level.h"

namespace quire {
namespace {

int count_byte_levels(const JsonView& config) {
  const std::string& type = config.at("type").as_string();
  if (type == "ByteLevel") return 1;
  if (type == "Fuse") return 0;  // joins tokens, which are joined anyhow
  if (type != "Sequence") {
    fail("{}: the decoder {} is not supported; supported are ByteLevel, Fuse and Sequence", config.where(),
         type);
  }
  int count = 0;
  for (const JsonView& step : config.at("decoders").items()) count += count_byte_levels(step);
  return count;
}

}  // namespace

Decoder Decoder::from_json(const JsonView& config) {
  const int count = count_byte_levels(config);
  if (count != 1) {
    fail("{}: has {} ByteLevel steps; only byte-level tokenizers, with exactly one, are supported",
         config.where(), count);
  }
  return {};
}

std::string Decoder::bytes(std::string_view token) const {
  return from_byte_characters(token).value_or(std::string(token));
}

}  // namespace quire
