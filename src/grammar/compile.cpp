#include <algorithm>

#include "base/json.h"
#include "grammar/automaton.h"
#include "grammar/json_schema.h"
#include "grammar/languages.h"
#include "grammar/regex.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kCompilePart = 8;  // of a grammar's memory, so that several copies find room

ExprId plain_text(Expressions& expressions) {
  const CharacterSet special = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}};
  return expressions.repeat(utf8_character(expressions, special.complement()));
}

ExprId compile_choice(Expressions& expressions, const OrderedJson& choices) {
  if (!choices.is_array() || choices.empty() ||
      !std::ranges::all_of(choices, [](const auto& choice) { return choice.is_string(); }))
    throw GrammarError("a choice is an array of at least one string");
  std::vector<std::string_view> texts;
  for (const auto& choice : choices) texts.push_back(choice.get_ref<const std::string&>());
  return expressions.literals(std::move(texts));
}

ExprId compile_source(Expressions& expressions, const Source& source, const Vocabulary& vocabulary) {
  const auto parse = [&](const char* where) {
    return parse_ordered_json(source.source, where, {.max_bytes = source.source.size() + 1});
  };
  using Kind = Source::Kind;
  if (source.whitespace_pattern &&
      (source.kind == Kind::kRegex || source.kind == Kind::kChoice || source.kind == Kind::kGrammar))
    throw GrammarError(
        "whitespace_pattern is for JSON; a regex, a choice or a grammar has its spaces itself");
  JsonText json(expressions, source);
  switch (source.kind) {
    case Kind::kJsonSchema: {
      const OrderedJson schema = parse("JSON schema");
      return SchemaCompiler(expressions, json, source, schema).compile();
    }
    case Kind::kJsonObject:
      return json.any_object();
    case Kind::kRegex:
      return expressions.lexeme(utf8_regex(expressions, source.source));
    case Kind::kChoice:
      return compile_choice(expressions, parse("choice"));
    case Kind::kGrammar:
      return compile_rules(expressions, source.source, vocabulary);
    case Kind::kStructuralTag: {
      const OrderedJson tag = parse("structural tag");
      return compile_structural_tag(expressions, json, source, tag, vocabulary);
    }
  }
  throw GrammarError("a grammar of an unknown kind");
}

}  // namespace

std::shared_ptr<const Grammar> compile(const Source& source, std::shared_ptr<const Vocabulary> vocabulary,
                                       const Limits& limits, const std::stop_token& stop) {
  if (source.source.size() > limits.source_bytes)
    throw GrammarError(format_text("the grammar has {} bytes; at most {} are supported", source.source.size(),
                                   limits.source_bytes));
  Expressions expressions;
  expressions.memory().budget().limit = limits.memory_bytes / kCompilePart;
  expressions.start_clock(limits.compile_time, stop);
  ExprId root = kNothing;
  try {
    root = compile_source(expressions, source, *vocabulary);
  } catch (const GrammarError&) {
    throw;
  } catch (const Error& error) {  // of the JSON parser
    throw GrammarError(error.what());
  } catch (const OrderedJson::exception& error) {
    throw GrammarError(format_text("a keyword's value has the wrong type: {}", in_quotes(error.what())));
  }
  expressions.finish();
  if (root == kNothing || expressions[root].dead)
    throw GrammarError("no text satisfies the grammar; check for conditions that contradict each other");
  const ExprId plain = plain_text(expressions);
  expressions.memory().budget().limit = limits.memory_bytes;
  return std::make_shared<const Grammar>(
      std::move(vocabulary),
      std::make_unique<const CompiledSource>(CompiledSource{std::move(expressions), root, plain, limits}));
}

}  // namespace quire::grammar
