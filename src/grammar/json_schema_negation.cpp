// Schemas that say the opposite of others. They refer to the schemas that they are made of, so that each is
// looked at once, one that refers to itself too.
#include <algorithm>
#include <array>

#include "grammar/json_schema.h"

namespace quire::grammar {
namespace {

// Keywords that may make an instance invalid, between spaces. All others are annotations, or only say what
// one of these means, where that is looked at: then, minContains, additionalItems.
constexpr std::string_view kAssertions =
    " type enum const $ref allOf anyOf oneOf not if minLength maxLength pattern format minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf items prefixItems contains maxContains minItems maxItems "
    "uniqueItems unevaluatedItems properties patternProperties additionalProperties propertyNames required "
    "minProperties maxProperties unevaluatedProperties dependencies dependentRequired dependentSchemas "
    "$dynamicRef $recursiveRef extends disallow ";

// Two keywords, each of which says the opposite of the other: of a count one step further.
struct Opposites {
  const char *low, *high, *type;
  bool counts;
};
constexpr std::array<Opposites, 5> kOpposites = {{{"minLength", "maxLength", "string", true},
                                                  {"minItems", "maxItems", "array", true},
                                                  {"minProperties", "maxProperties", "object", true},
                                                  {"minimum", "exclusiveMaximum", "number", false},
                                                  {"exclusiveMinimum", "maximum", "number", false}}};

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
    if (kAssertions.find(" " + key + " ") != std::string_view::npos)
      negate_keyword(schema, key, alternatives);
  }
  if (alternatives.empty())
    opposite = false;
  else
    opposite["anyOf"] = std::move(alternatives);
  pay_for(opposite);
  return &opposite;
}

bool SchemaCompiler::negate_bound(Schema schema, const std::string& key, OrderedJson& alternatives) const {
  const auto* const found = std::ranges::find_if(
      kOpposites, [&](const Opposites& both) { return key == both.low || key == both.high; });
  if (found == kOpposites.end()) return false;
  check_keyword(schema, key);
  const auto is_flag = [&](const char* name) {
    return schema->contains(name) && schema->at(name).is_boolean();
  };
  if (!found->counts && (is_flag("exclusiveMinimum") || is_flag("exclusiveMaximum")))
    return false;  // draft 4's
  const bool is_low = key == found->low;
  OrderedJson value = schema->at(key);
  if (found->counts) value = value.get<std::int64_t>() + (is_low ? -1 : 1);
  if (!found->counts || value != -1)
    alternatives.push_back(of_type(found->type, {{is_low ? found->high : found->low, std::move(value)}}));
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
  if (key == "format" && value.is_string() && !pattern(schema, key, value.get<std::string>()))
    return;  // an annotation
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
