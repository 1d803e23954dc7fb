#include "tokenizer/metaspace.h"

#include "tokenizer/text_replacer.h"

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
  return {.replacement = one_character(config.at("replacement")),
          .prepend = prepend_from_json(config),
          .split = config.flag("split", true)};
}

}  // namespace quire
