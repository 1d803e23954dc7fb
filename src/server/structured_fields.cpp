#include "server/structured_fields.h"

#include <array>
#include <string>
#include <utility>

#include "server/api_error.h"

namespace quire::server {
namespace {

using Kind = StructuredOutputs::Kind;
using SourceField = std::pair<const char*, Kind>;

constexpr std::array<SourceField, 10> kOfBody = {{{"guided_json", Kind::kJsonSchema},
                                                  {"guided_json_object", Kind::kJsonObject},
                                                  {"guided_regex", Kind::kRegex},
                                                  {"guided_choice", Kind::kChoice},
                                                  {"guided_grammar", Kind::kGrammar},
                                                  {"json_schema", Kind::kJsonSchema},
                                                  {"regex", Kind::kRegex},
                                                  {"grammar", Kind::kGrammar},
                                                  {"ebnf", Kind::kGrammar},
                                                  {"structural_tag", Kind::kStructuralTag}}};
constexpr std::array<SourceField, 6> kOfStructuredOutputs = {{{"json", Kind::kJsonSchema},
                                                              {"json_object", Kind::kJsonObject},
                                                              {"regex", Kind::kRegex},
                                                              {"choice", Kind::kChoice},
                                                              {"grammar", Kind::kGrammar},
                                                              {"structural_tag", Kind::kStructuralTag}}};

// What is given so far, and by which field.
struct Found {
  StructuredOutputs outputs;
  std::string place;

  void take(Kind kind, std::string source, std::string new_place) {
    if (!place.empty()) refuse(new_place, "{} and {} exclude each other", new_place, place);
    outputs.kind = kind;
    outputs.source = std::move(source);
    place = std::move(new_place);
  }
};

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
      to_texts(value, place);
      return value.dump();
    case Kind::kRegex:
    case Kind::kGrammar:
      break;
  }
  return to_text(value, place);
}

void take_fields(const JsonFields& fields, std::span<const SourceField> names, Found& found) {
  for (const auto& [name, kind] : names) {
    const OrderedJson* value = fields.find(name);
    // {} and false are schemas.
    const bool is_schema = kind == Kind::kJsonSchema && value != nullptr && !value->is_string();
    if (!is_schema && !fields.asks(name)) continue;
    std::string place = fields.place_of(name);
    std::string source = to_source(kind, *value, place);
    found.take(kind, std::move(source), std::move(place));
  }
}

void take_response_format(const JsonFields& body, Found& found) {
  const auto format = body.object("response_format");
  if (!format) return;
  const std::string* type = format->text("type");
  if (type == nullptr || *type == "text") return;
  if (*type == "json_object") {
    const OrderedJson* schema = format->find("schema");  // of llama.cpp
    const Kind kind = schema == nullptr ? Kind::kJsonObject : Kind::kJsonSchema;
    found.take(kind, schema == nullptr ? "" : to_source(kind, *schema, "response_format.schema"),
               "response_format");
  } else if (*type == "json_schema") {
    const JsonFields named(to_object(format->required("json_schema"), "response_format.json_schema"),
                           "response_format.json_schema");
    found.take(Kind::kJsonSchema,
               to_source(Kind::kJsonSchema, named.required("schema"), named.place_of("schema")),
               "response_format");
  } else if (*type == "structural_tag") {
    found.take(Kind::kStructuralTag, body.required("response_format").dump(), "response_format");
  } else {
    refuse("response_format",
           "response_format of type {} is not supported; it may be text, json_object, json_schema or "
           "structural_tag",
           in_quotes(*type));
  }
}

void read_whitespace(const JsonFields& fields, const char* pattern, StructuredOutputs& outputs) {
  if (const std::string* whitespace = fields.text(pattern)) outputs.whitespace_pattern = *whitespace;
}

}  // namespace

std::shared_ptr<const StructuredOutputs> read_structured_outputs(const JsonFields& fields) {
  Found found;
  take_response_format(fields, found);
  take_fields(fields, kOfBody, found);
  read_whitespace(fields, "guided_whitespace_pattern", found.outputs);
  if (const auto asked = fields.object("structured_outputs")) {
    take_fields(*asked, kOfStructuredOutputs, found);
    read_whitespace(*asked, "whitespace_pattern", found.outputs);
    asked->read("disable_any_whitespace", found.outputs.disable_any_whitespace);
    asked->read("disable_additional_properties", found.outputs.disable_additional_properties);
  }
  if (found.place.empty()) return nullptr;
  return std::make_shared<const StructuredOutputs>(std::move(found.outputs));
}

}  // namespace quire::server
