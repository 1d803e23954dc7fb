// Schemas that say the opposite of others.
#include <algorithm>
#include <array>

#include "grammar/json_schema.h"

namespace quire::grammar {
namespace {

constexpr unsigned kMaxNegations = 24;  // in one another

// Keywords that allow every instance, or only say what another keyword means.
constexpr std::array<std::string_view, 26> kAnnotations = {"title",
                                                           "description",
                                                           "default",
                                                           "examples",
                                                           "$schema",
                                                           "$id",
                                                           "id",
                                                           "$comment",
                                                           "$defs",
                                                           "definitions",
                                                           "readOnly",
                                                           "writeOnly",
                                                           "deprecated",
                                                           "$anchor",
                                                           "then",
                                                           "else",
                                                           "example",
                                                           "nullable",
                                                           "minContains",
                                                           "contentEncoding",
                                                           "contentMediaType",
                                                           "additionalItems",
                                                           "$vocabulary",
                                                           "contentSchema",
                                                           "$dynamicAnchor",
                                                           "options"};

OrderedJson of_type(const char* type, OrderedJson keywords) {
  keywords["type"] = type;
  return keywords;
}

}  // namespace

SchemaCompiler::Schema SchemaCompiler::negation(Schema schema) {
  if (const auto found = negations_.find(schema); found != negations_.end()) return found->second;
  if (schema->is_boolean()) return negations_[schema] = made(!schema->get<bool>(), schema);
  if (!schema->is_object()) fail_at(schema, "", "a schema is an object, true or false");
  if (++negation_depth_ > kMaxNegations)
    fail_at(schema, "", "the opposite of a schema that refers to itself is not supported");
  OrderedJson alternatives = OrderedJson::array();
  for (const auto& [key, value] : schema->items())
    if (std::ranges::find(kAnnotations, key) == kAnnotations.end()) negate_keyword(schema, key, alternatives);
  --negation_depth_;
  OrderedJson opposite = false;
  if (!alternatives.empty()) opposite = {{"anyOf", std::move(alternatives)}};
  return negations_[schema] = made(std::move(opposite), schema);
}

// Of keywords that bound a count or a number; false for any other.
bool SchemaCompiler::negate_bound(Schema schema, const std::string& key, OrderedJson& alternatives) {
  const OrderedJson& value = schema->at(key);
  const auto add = [&](OrderedJson alternative) { alternatives.push_back(std::move(alternative)); };
  const auto count = [&] {
    check_count(schema, key);
    return value.get<std::int64_t>();
  };
  // Of a bound on a count: the keyword that bounds it from the other side, or false.
  const auto flip = [&](const char* type, const char* least, const char* most) {
    if (key == most)
      add(of_type(type, {{least, count() + 1}}));
    else if (count() > 0)
      add(of_type(type, {{most, count() - 1}}));
  };
  if (key == "minLength" || key == "maxLength") {
    flip("string", "minLength", "maxLength");
  } else if (key == "minItems" || key == "maxItems") {
    flip("array", "minItems", "maxItems");
  } else if (key == "minProperties" || key == "maxProperties") {
    flip("object", "minProperties", "maxProperties");
  } else if (key == "minimum" && !schema->contains("exclusiveMinimum")) {
    add(of_type("number", {{"exclusiveMaximum", value}}));
  } else if (key == "maximum" && !schema->contains("exclusiveMaximum")) {
    add(of_type("number", {{"exclusiveMinimum", value}}));
  } else if (key == "exclusiveMinimum" && value.is_number()) {
    add(of_type("number", {{"maximum", value}}));
  } else if (key == "exclusiveMaximum" && value.is_number()) {
    add(of_type("number", {{"minimum", value}}));
  } else {
    return false;
  }
  return true;
}

void SchemaCompiler::negate_keyword(Schema schema, const std::string& key, OrderedJson& alternatives) {
  const OrderedJson& value = schema->at(key);
  const auto add = [&](OrderedJson alternative) { alternatives.push_back(std::move(alternative)); };
  const auto negate_all = [&] {
    OrderedJson all = OrderedJson::array();
    for (std::size_t i = 0; i < value.size(); ++i)
      all.push_back(*negation(child(schema, key, std::to_string(i))));
    return all;
  };
  if (negate_bound(schema, key, alternatives)) return;
  if (key == "type") {
    add({{std::string(kNotType), value}});
  } else if (key == "const" || key == "enum") {
    const OrderedJson all = key == "const" ? OrderedJson::array({value}) : value;
    for (const auto& item : all) {
      if (item.is_structured()) fail_at(schema, key, "the opposite of objects and arrays is not supported");
    }
    add({{std::string(kNotEnum), all}});
  } else if (key == "required") {
    for (const auto& name : value)
      add(of_type("object", {{"properties", {{name.get<std::string>(), false}}}}));
  } else if (key == "properties") {
    for (const auto& [name, unused] : value.items()) {
      const Schema opposite = negation(child(schema, key, name));
      if (*opposite != false)
        add(of_type("object", {{"required", {name}}, {"properties", {{name, *opposite}}}}));
    }
  } else if (key == "pattern") {
    add(of_type("string", {{std::string(kNotPattern), value}}));
  } else if (key == "multipleOf") {
    add(of_type("number", {{std::string(kNotMultiple), value}}));
  } else if (key == "items" && !value.is_array() && !schema->contains("prefixItems")) {
    const Schema opposite = negation(child(schema, key));
    if (*opposite != false) add(of_type("array", {{"contains", *opposite}}));
  } else if (key == "contains" && !schema->contains("minContains") && !schema->contains("maxContains")) {
    add(of_type("array", {{"items", *negation(child(schema, key))}}));
  } else if (key == "allOf") {
    for (auto& part : negate_all()) add(std::move(part));
  } else if (key == "anyOf") {
    add({{"allOf", negate_all()}});
  } else if (key == "not") {
    add(*child(schema, key));
  } else if (key == "$ref") {
    add(*negation(resolve(schema, value.get<std::string>())));
  } else if (key == "additionalProperties" && (value == true || value == OrderedJson::object())) {
    return;
  } else {
    fail_at(schema, key,
            "the opposite of this keyword is not supported, which not, oneOf or if ask for here");
  }
}

}  // namespace quire::grammar
