#include "server/logprobs_json.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

constexpr float kLowest = -9999;

std::string bytes_of(std::int32_t id, const TokenNames& names) {
  return names.tokenizer != nullptr ? names.tokenizer->token_bytes(id) : std::string();
}

OrderedJson byte_list(std::string_view bytes) {
  OrderedJson list = OrderedJson::array();
  for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
  return list;
}

// Of two tokens of one name, the more likely one counts.
void add_to_map(OrderedJson& map, const TokenLogprob& token, const TokenNames& names) {
  const double logprob = logprob_json(token.logprob);
  const auto [place, is_new] = map.emplace(names(token.token_id), logprob);
  if (!is_new && place->get<double>() < logprob) *place = logprob;
}

OrderedJson chat_token(const TokenLogprob& token, const TokenNames& names) {
  return {{"token", names(token.token_id)},
          {"logprob", logprob_json(token.logprob)},
          {"bytes", byte_list(bytes_of(token.token_id, names))}};
}

}  // namespace

std::string TokenNames::operator()(std::int32_t id) const {
  if (as_ids || tokenizer == nullptr) return format_text("token_id:{}", id);
  std::string bytes = tokenizer->token_bytes(id);
  if (is_valid_utf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char byte : bytes) name += format_text("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

double logprob_json(float logprob) { return std::max(logprob, kLowest); }

void CompletionLogprobs::add_token(std::int32_t id) {
  tokens_.push_back(names_(id));
  offsets_.push_back(offset_);
  const bool hidden = skip_special_tokens_ && names_.tokenizer != nullptr && names_.tokenizer->is_special(id);
  if (!hidden) offset_ += count_code_points(bytes_of(id, names_));
}

void CompletionLogprobs::add_first_of_prompt(std::int32_t id) {
  add_token(id);
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
}

void CompletionLogprobs::add(std::span<const PositionLogprobs> positions) {
  for (const PositionLogprobs& position : positions) {
    add_token(position.token.token_id);
    logprobs_.push_back(logprob_json(position.token.logprob));
    OrderedJson map = OrderedJson::object();
    add_to_map(map, position.token, names_);
    for (const TokenLogprob& token : position.top) add_to_map(map, token, names_);
    top_.push_back(std::move(map));
  }
}

OrderedJson CompletionLogprobs::take() {
  return {{"text_offset", std::exchange(offsets_, OrderedJson::array())},
          {"token_logprobs", std::exchange(logprobs_, OrderedJson::array())},
          {"tokens", std::exchange(tokens_, OrderedJson::array())},
          {"top_logprobs", std::exchange(top_, OrderedJson::array())}};
}

OrderedJson chat_logprobs(std::span<const PositionLogprobs> positions, const TokenNames& names) {
  OrderedJson content = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson entry = chat_token(position.token, names);
    OrderedJson top = OrderedJson::array();
    for (const TokenLogprob& token : position.top) top.push_back(chat_token(token, names));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

OrderedJson prompt_logprobs_json(std::span<const PositionLogprobs> positions, const TokenNames& names) {
  OrderedJson list = OrderedJson::array({nullptr});
  for (const PositionLogprobs& position : positions) {
    OrderedJson map = OrderedJson::object();
    const auto add = [&](const TokenLogprob& token) {
      map[format_text("{}", token.token_id)] = {{"logprob", logprob_json(token.logprob)},
                                                {"rank", token.rank},
                                                {"decoded_token", names(token.token_id)}};
    };
    add(position.token);
    for (const TokenLogprob& token : position.top) add(token);
    list.push_back(std::move(map));
  }
  return list;
}

}  // namespace quire::server
