#include "tokenizer/text_steps.h"

namespace quire {

void check_growth(std::size_t bytes) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  if (bytes > kMaxBytes) fail("tokenizer.json makes a text grow beyond {} bytes", kMaxBytes);
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t found = 0; (found = text.find(from)) != text.npos;
       text.remove_prefix(found + from.size())) {
    out += text.substr(0, found);
    out += to;
    check_growth(out.size());
  }
  out += text;
  return out;
}

Regex pattern_from_json(const JsonView& config) {
  if (const auto text = config.find("String")) return Regex::literal(text->as_string(), text->where());
  const JsonView pattern = config.at("Regex");
  return Regex::from_oniguruma(pattern.as_string(), pattern.where());
}

TextReplacer::TextReplacer(const JsonView& config) {
  const JsonView pattern = config.at("pattern");
  if (const auto text = pattern.find("String")) literal_ = text->as_string();
  if (literal_.empty()) regex_ = pattern_from_json(pattern);
  content_ = config.at("content").as_string();
}

std::string TextReplacer::operator()(std::string_view text) const {
  if (!regex_) return replace_all(text, literal_, content_);
  RegexScanner scanner(*regex_);
  scanner.start(text);
  std::string out;
  std::size_t copied = 0;
  while (const auto match = scanner.next()) {
    out += text.substr(copied, match->begin - copied);
    out += content_;
    check_growth(out.size());
    copied = match->end;
  }
  out += text.substr(copied);
  return out;
}

Metaspace::Metaspace(const JsonView& config)
    : replacement(config.at("replacement").as_character()), split(config.flag("split", true)) {
  if (const auto scheme = config.find("prepend_scheme")) {
    prepend = static_cast<Prepend>(scheme->as_one_of({"always", "first", "never"}));
  } else {  // an older file
    prepend = config.flag("add_prefix_space", true) ? Prepend::kAlways : Prepend::kNever;
  }
}

}  // namespace quire
