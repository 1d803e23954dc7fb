// Schemas that say the opposite of others. They refer to the schemas that they are made of, so that each is
// looked at once, one that refers to itself too.
#include <algorithm>
#include <array>

#include "grammar/json_schema.h"

namespace quire::grammar {
namespace {

// Keywords that allow every instance, or only say what another keyword means, between spaces.
constexpr std::string_view kAnnotations =
    " title description default examples $schema $id id $comment $defs definitions readOnly writeOnly "
    "deprecated $anchor then else example nullable minContains contentEncoding contentMediaType "
    "additionalItems $vocabulary contentSchema $dynamicAnchor options ";

// Keywords that bound a count or a number, and what bounds it from the other side: a count by one step.
struct Opposite {
  std::string_view key;
  const char *type, *keyword;
  int step;
};
constexpr std::array<Opposite, 10> kOpposites = {{{"minLength", "string", "maxLength", -1},
                                                  {"maxLength", "string", "minLength", 1},
                                                  {"minItems", "array", "maxItems", -1},
                                                  {"maxItems", "array", "minItems", 1},
                                                  {"minProperties", "object", "maxProperties", -1},
                                                  {"maxProperties", "object", "minProperties", 1},
                                                  {"minimum", "number", "exclusiveMaximum", 0},
                                                  {"maximum", "number", "exclusiveMinimum", 0},
                                                  {"exclusiveMinimum", "number", "maximum", 0},
                                                  {"exclusiveMaximum", "number", "minimum", 0}}};

OrderedJson of_type(const char* type, OrderedJson keywords) {
  keywords["type"] = type;
  return keywords;
}

}  // namespace

SchemaCompiler::Schema SchemaCompiler::negation(Schema schema) {
  if (const auto found = negations_.find(schema); found != negations_.end()) return found->second;
  if (schema->is_boolean()) return negations_[schema] = made(!schema->get<bool>(), schema);
  if (!schema->is_object()) fail_at(schema, "", "a schema is an object, true or false");
  const Expressions::Depth deeper(ex_, kSchemaWeight);
  negations_[schema] = made(OrderedJson::object(), schema);
  OrderedJson& opposite = made_.back();
  OrderedJson alternatives = OrderedJson::array();
  for (const auto& [key, value] : schema->items()) {
    ex_.check_time();
    if (kAnnotations.find(" " + key + " ") == std::string_view::npos)
      negate_keyword(schema, key, alternatives);
  }
  if (alternatives.empty())
    opposite = false;
  else
    opposite["anyOf"] = std::move(alternatives);
  return &opposite;
}

bool SchemaCompiler::negate_bound(Schema schema, const std::string& key, OrderedJson& alternatives) const {
  const auto* const found = std::ranges::find(kOpposites, key, &Opposite::key);
  if (found == kOpposites.end()) return false;
  OrderedJson value = schema->at(key);
  check_keyword(schema, key);
  if (value.is_boolean() || (found->step == 0 && std::ranges::any_of(kOpposites, [&](const Opposite& other) {
                               const auto beside = schema->find(std::string(other.key));
                               return beside != schema->end() && beside->is_boolean();
                             })))
    return false;  // draft 4's exclusive bounds
  if (found->step != 0) value = value.get<std::int64_t>() + found->step;
  if (found->step == 0 || value != -1)
    alternatives.push_back(of_type(found->type, {{found->keyword, std::move(value)}}));
  return true;
}

void SchemaCompiler::negate_keyword(Schema schema, const std::string& key, OrderedJson& alternatives) {
  const OrderedJson& value = schema->at(key);
  const auto add = [&](OrderedJson alternative) { alternatives.push_back(std::move(alternative)); };
  const auto negate_all = [&] {
    OrderedJson all = OrderedJson::array();
    for (std::size_t i = 0; i < value.size(); ++i)
      all.push_back(reference_to(negation(child(schema, key, i))));
    return all;
  };
  if (negate_bound(schema, key, alternatives)) return;
  if (key == "type") {
    add({{std::string(kNotType), value}});
  } else if (key == "const" || key == "enum") {
    const OrderedJson all = key == "const" ? OrderedJson::array({value}) : value;
    for (const auto& item : all) {
      if (item.is_structured()) fail_at(schema, key, "the opposite of objects and arrays is not supported");
      check_listed(schema, key, item);
    }
    add({{std::string(kNotEnum), all}});
  } else if (key == "required") {
    for (const auto& name : value)
      add(of_type("object", {{"properties", {{name.get<std::string>(), false}}}}));
  } else if (key == "properties") {
    for (const auto& [name, unused] : value.items()) {
      const Schema opposite = negation(child(schema, key, name));
      if (*opposite != false)
        add(of_type("object", {{"required", {name}}, {"properties", {{name, reference_to(opposite)}}}}));
    }
  } else if (key == "pattern") {
    add(of_type("string", {{std::string(kNotPattern), value}}));
  } else if (key == "multipleOf") {
    add(of_type("number", {{std::string(kNotMultiple), value}}));
  } else if (key == "items" && !value.is_array() && !schema->contains("prefixItems")) {
    const Schema opposite = negation(child(schema, key));
    if (*opposite != false) add(of_type("array", {{"contains", reference_to(opposite)}}));
  } else if (key == "contains" && !schema->contains("minContains") && !schema->contains("maxContains")) {
    add(of_type("array", {{"items", reference_to(negation(child(schema, key)))}}));
  } else if (key == "allOf") {
    for (auto& part : negate_all()) add(std::move(part));
  } else if (key == "anyOf") {
    add({{"allOf", negate_all()}});
  } else if (key == "not") {
    add(reference_to(child(schema, key)));
  } else if (key == "$ref") {
    add(reference_to(negation(resolve(schema, value.get<std::string>()))));
  } else if (key != "additionalProperties" || (value != true && value != OrderedJson::object())) {
    fail_at(schema, key,
            "the opposite of this keyword is not supported, which not, oneOf or if ask for here");
  }
}

}  // namespace quire::grammar
