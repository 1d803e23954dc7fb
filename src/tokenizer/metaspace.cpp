#include "tokenizer/metaspace.h"

#include "tokenizer/unicode.h"

namespace quire {
namespace {

Metaspace::Prepend prepend_from_json(const JsonView& config) {
  const auto scheme = config.find("prepend_scheme");
  if (!scheme) {  // an older file
    return config.flag("add_prefix_space", true) ? Metaspace::Prepend::kAlways : Metaspace::Prepend::kNever;
  }
  const std::string& name = scheme->as_string();
  if (name == "always") return Metaspace::Prepend::kAlways;
  if (name == "first") return Metaspace::Prepend::kFirst;
  if (name == "never") return Metaspace::Prepend::kNever;
  fail("{}: {} is none of always, first and never", scheme->where(), in_quotes(name));
}

}  // namespace

Metaspace Metaspace::from_json(const JsonView& config) {
  const JsonView replacement = config.at("replacement");
  Metaspace metaspace{.replacement = replacement.as_string(),
                      .prepend = prepend_from_json(config),
                      .split = config.flag("split", true)};
  const std::string& text = metaspace.replacement;
  if (text.empty() || read_utf8(text, 0).length != text.size()) {
    fail("{}: must be one character, is {}", replacement.where(), in_quotes(text));
  }
  return metaspace;
}

}  // namespace quire
