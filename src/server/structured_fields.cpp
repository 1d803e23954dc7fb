#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/api_request.h"

namespace quire::server {
namespace {

using Kind = StructuredOutputs::Kind;
using SourceField = std::pair<const char*, Kind>;

constexpr SourceField kSources[] = {{"json", Kind::kJsonSchema}, {"json_object", Kind::kJsonObject},
                                    {"regex", Kind::kRegex},     {"choice", Kind::kChoice},
                                    {"grammar", Kind::kGrammar}, {"structural_tag", Kind::kStructuralTag}};
constexpr SourceField kOfOtherServers[] = {{"json_schema", Kind::kJsonSchema},
                                           {"regex", Kind::kRegex},
                                           {"grammar", Kind::kGrammar},
                                           {"ebnf", Kind::kGrammar},
                                           {"structural_tag", Kind::kStructuralTag}};

// Refuses what asks for something that nobody would enforce.
void check_names(const JsonFields& fields, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : fields.object().items())
    if (std::ranges::find(known, name) == known.end() && fields.asks(name))
      refuse(fields.place(), "has {}, which is not supported; it may have {}", in_quotes(name),
             join_text(std::vector(known), ", "));
}

// `outputs` has what is given so far, by the field that is its name; an empty name: nothing.
void take(Kind kind, std::string source, const std::string& place, StructuredOutputs& outputs) {
  if (!outputs.name.empty()) refuse(place, "and {} exclude each other", outputs.name);
  outputs.kind = kind;
  outputs.source = std::move(source);
  outputs.name = place;
}

std::string to_source(Kind kind, const OrderedJson& value, const std::string& place) {
  switch (kind) {
    case Kind::kJsonSchema:  // as JSON, or as its text
      if (value.is_boolean()) return value.dump();
      [[fallthrough]];
    case Kind::kStructuralTag:
      return value.is_string() ? value.get<std::string>() : to_object(value, place).dump();
    case Kind::kJsonObject:
      to_bool(value, place);
      return {};
    case Kind::kChoice:
      if (to_texts(value, place).empty()) refuse(place, "is empty; it must have a text to choose");
      return value.dump();
    case Kind::kRegex:
    case Kind::kGrammar:
      break;
  }
  return to_text(value, place);
}

// What a client sends where it wants nothing is nothing: "", false.
void take_fields(const JsonFields& fields, std::string_view prefix, std::span<const SourceField> names,
                 StructuredOutputs& outputs) {
  for (const auto& [suffix, kind] : names) {
    const std::string name = format_text("{}{}", prefix, suffix);
    const OrderedJson* value = fields.find(name);
    if (value == nullptr) continue;
    const std::string place = fields.place_of(name);
    std::string source = to_source(kind, *value, place);
    const bool is_wanted = kind == Kind::kJsonObject ? to_bool(*value, place) : !source.empty();
    if (is_wanted) take(kind, std::move(source), place, outputs);
  }
}

void take_response_format(const JsonFields& body, StructuredOutputs& outputs) {
  const std::string place = "response_format";
  const auto fields = body.object(place);
  if (!fields) return;
  const std::string& type = fields->required_text("type");
  const auto take_schema = [&](const JsonFields& of) {
    take(Kind::kJsonSchema, to_source(Kind::kJsonSchema, of.required("schema"), of.place_of("schema")), place,
         outputs);
  };
  if (type == "text") {
    check_names(*fields, {"type"});
  } else if (type == "json_object") {
    check_names(*fields, {"type", "schema"});  // the latter is llama.cpp's
    if (fields->find("schema") == nullptr) return take(Kind::kJsonObject, "", place, outputs);
    take_schema(*fields);
  } else if (type == "json_schema") {
    check_names(*fields, {"type", "json_schema"});
    const JsonFields named = fields->required_object("json_schema");
    check_names(named, {"name", "description", "schema", "strict"});
    for (const char* text : {"name", "description"}) named.text(text);  // of their types, at least
    named.boolean("strict");
    take_schema(named);
  } else if (type == "structural_tag") {
    take(Kind::kStructuralTag, fields->object().dump(), place, outputs);
  } else {
    refuse(place,
           "of type {} is not supported; it may be text, json_object, json_schema or "
           "structural_tag",
           in_quotes(type));
  }
}

// Whether the text may be JSON. Refuses a field that says how that is written where it may not.
bool check_is_json(const JsonFields& fields, std::string_view name, const StructuredOutputs& outputs) {
  const bool is_text =
      outputs.kind == Kind::kRegex || outputs.kind == Kind::kChoice || outputs.kind == Kind::kGrammar;
  const bool is_json = !outputs.name.empty() && !is_text;
  const std::string place = fields.place_of(name);
  if (!is_json && fields.asks(name))
    refuse(place, "is for JSON: a schema, any object or a structural tag; {} asks for none",
           outputs.name.empty() ? "the request" : outputs.name);
  return is_json;
}

void take_whitespace_pattern(const JsonFields& fields, std::string_view name, StructuredOutputs& outputs) {
  const std::string* const pattern = fields.text(name);
  if (pattern == nullptr || !check_is_json(fields, name, outputs)) return;
  const std::string place = fields.place_of(name);
  if (outputs.whitespace_pattern) refuse(place, "and {} exclude each other", outputs.whitespace_name);
  outputs.whitespace_pattern = *pattern;
  outputs.whitespace_name = place;
}

void take_structured_outputs(const JsonFields& body, StructuredOutputs& outputs) {
  const auto found = body.object("structured_outputs");
  if (!found) return;
  const JsonFields& asked = *found;
  check_names(asked, {"json", "json_object", "regex", "choice", "grammar", "structural_tag",
                      "whitespace_pattern", "disable_any_whitespace", "disable_additional_properties"});
  take_fields(asked, "", kSources, outputs);
  if (outputs.name.empty())
    refuse("structured_outputs",
           "has no source; give json, json_object, regex, choice, grammar or structural_tag");
  take_whitespace_pattern(asked, "whitespace_pattern", outputs);
  check_is_json(asked, "disable_any_whitespace", outputs);
  check_is_json(asked, "disable_additional_properties", outputs);
  asked.read("disable_any_whitespace", outputs.disable_any_whitespace);
  asked.read("disable_additional_properties", outputs.disable_additional_properties);
  if (outputs.disable_additional_properties && outputs.kind == Kind::kJsonObject)
    refuse("structured_outputs.disable_additional_properties",
           "is for a schema; any object has what it likes");
}

}  // namespace

std::shared_ptr<const StructuredOutputs> read_structured_outputs(const JsonFields& fields) {
  if (fields.asks("grammar_lazy"))
    refuse("grammar_lazy", "is not supported; a structural_tag has triggers, too");
  StructuredOutputs outputs;
  outputs.name.clear();
  take_response_format(fields, outputs);
  take_fields(fields, "guided_", kSources, outputs);
  take_fields(fields, "", kOfOtherServers, outputs);
  take_structured_outputs(fields, outputs);
  take_whitespace_pattern(fields, "guided_whitespace_pattern", outputs);
  if (outputs.name.empty()) return nullptr;
  return std::make_shared<const StructuredOutputs>(std::move(outputs));
}

}  // namespace quire::server
