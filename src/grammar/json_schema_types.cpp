// What a schema's keywords say of each type of value.
#include <algorithm>
#include <cmath>
#include <limits>

#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxPatterns = 64;  // of the names of one object's members

std::string inside_quotes(const OrderedJson& text) {
  const std::string quoted = text.dump();
  return quoted.substr(1, quoted.size() - 2);
}

// A bound that parsing may have rounded is drawn in by one step, so that it allows nothing more.
Decimal exact_bound(const OrderedJson& number, bool is_min) {
  if (!may_be_rounded(number)) return Decimal(number);
  constexpr double kMost = std::numeric_limits<double>::max();
  return Decimal(std::nextafter(number.get<double>(), is_min ? kMost : -kMost));
}

}  // namespace

std::vector<std::pair<SchemaCompiler::Schema, const OrderedJson&>> SchemaCompiler::having(
    const Place& place, std::string_view key) {
  std::vector<std::pair<Schema, const OrderedJson&>> result;
  for (const Schema schema : place.schemas)
    if (const auto found = schema->find(std::string(key)); found != schema->end())
      result.emplace_back(schema, *found);
  return result;
}

// The tightest of the bounds that the schemas set: the lowest, or the highest.
std::uint32_t SchemaCompiler::bound(const Place& place, std::string_view key, bool lowest) {
  std::uint32_t result = lowest ? kNoLimit : 0;
  for (const auto& [schema, value] : having(place, key)) {
    const auto count = static_cast<std::uint32_t>(value.get<double>());
    result = lowest ? std::min(result, count) : std::max(result, count);
  }
  return result;
}

ExprId SchemaCompiler::type(const Place& place, unsigned type) {
  const auto literal = [&](const OrderedJson& value) {
    const bool excluded = std::ranges::any_of(having(place, kNotEnum), [&](const auto& of) {
      return std::ranges::find(of.second, value) != of.second.end();
    });
    return excluded ? kNothing : ex_.literal(value.dump());
  };
  switch (type) {
    case kNullType:
      return literal(nullptr);
    case kBooleanType:
      return ex_.any_of({literal(true), literal(false)});
    case kStringType:
      return string(place);
    case kIntegerType:
      if ((place.types & kFractionType) != 0) return number(place, json_.plain_number(), json_.number());
      return number(place, json_.integer(), json_.integer());
    case kFractionType:
      return number(place, json_.not_integer(), json_.not_integer());
    case kArrayType:
      return array(place);
    default:
      return object(place);
  }
}

ExprId SchemaCompiler::string(const Place& place) {
  std::vector<ExprId> all;
  const std::uint32_t min = bound(place, "minLength", false), max = bound(place, "maxLength", true);
  for (const char* key : {"pattern", "format"})
    for (const auto& [schema, value] : having(place, key))
      if (const auto texts = pattern(schema, key, value.get_ref<const std::string&>())) all.push_back(*texts);
  for (const auto& [schema, value] : having(place, kNotPattern))
    all.push_back(ex_.complement(*pattern(schema, kNotPattern, value.get_ref<const std::string&>())));
  for (const auto& [schema, value] : having(place, kNotEnum)) {
    std::vector<std::string> texts;
    for (const OrderedJson& text : value)
      if (text.is_string()) texts.push_back(inside_quotes(text));
    all.push_back(ex_.complement(ex_.literals({texts.begin(), texts.end()})));
  }
  if (all.empty()) return json_.quoted(ex_.repeat(json_.character(), min, max));
  all.push_back(ex_.repeat(json_.canonical_character(CharacterSet::all()), min, max));
  return json_.quoted(ex_.all_of(std::move(all)));
}

// The texts of a pattern or a format; nothing for a format that is not known.
std::optional<ExprId> SchemaCompiler::pattern(Schema schema, std::string_view key, const std::string& text) {
  try {
    return key == "format" ? json_.format(text) : json_.pattern(text);
  } catch (const GrammarError& error) {
    fail_at(schema, key, error.what());
  }
}

// `syntax` has no exponent, as conditions need it; `free` is for numbers without conditions.
ExprId SchemaCompiler::number(const Place& place, ExprId syntax, ExprId free) {
  std::vector<ExprId> all;
  for (const std::string key : {"minimum", "maximum"}) {
    const bool is_min = key == "minimum";
    const std::string exclusive = is_min ? "exclusiveMinimum" : "exclusiveMaximum";
    for (const auto& [schema, value] : having(place, key)) {
      const bool in_draft_4 = schema->contains(exclusive) && schema->at(exclusive) == true;
      all.push_back(json_.bounded(exact_bound(value, is_min), is_min, in_draft_4));
    }
    for (const auto& [schema, value] : having(place, exclusive))
      if (value.is_number()) all.push_back(json_.bounded(exact_bound(value, is_min), is_min, true));
  }
  for (const std::string_view key : {std::string_view("multipleOf"), kNotMultiple}) {
    for (const auto& [schema, value] : having(place, key)) {
      try {
        const ExprId multiples = json_.multiple_of(Decimal(value));
        all.push_back(key == kNotMultiple ? ex_.complement(multiples) : multiples);
      } catch (const GrammarError& error) {
        fail_at(schema, "multipleOf", error.what());
      }
    }
  }
  for (const auto& [schema, excluded] : having(place, kNotEnum)) {
    std::vector<ExprId> numbers;
    for (const OrderedJson& value : excluded) {
      if (!value.is_number()) continue;
      const Decimal same(value);
      numbers.push_back(ex_.all_of({json_.bounded(same, true), json_.bounded(same, false)}));
      if (value == 0) numbers.push_back(utf8_regex(ex_, "-0(\\.0+)?"));
    }
    all.push_back(ex_.complement(ex_.any_of(std::move(numbers))));
  }
  if (all.empty()) return free;
  all.push_back(syntax);
  return ex_.lexeme(ex_.all_of(std::move(all)));
}

ExprId SchemaCompiler::array(const Place& place) {
  std::uint32_t min = bound(place, "minItems", false), max = bound(place, "maxItems", true);
  std::size_t num_first = 0;
  const auto first_key = [](Schema schema) {
    return schema->contains("prefixItems")                               ? "prefixItems"
           : schema->contains("items") && schema->at("items").is_array() ? "items"
                                                                         : nullptr;
  };
  for (const Schema schema : place.schemas)
    if (const char* key = first_key(schema)) num_first = std::max(num_first, schema->at(key).size());
  const auto item = [&](std::size_t index) {
    Schemas all;
    for (const Schema schema : place.schemas) {
      const char* key = first_key(schema);
      if (key != nullptr && index < schema->at(key).size()) {
        all.push_back(child(schema, key, index));
        continue;
      }
      const char* rest =
          key == nullptr || std::string_view(key) == "prefixItems" ? "items" : "additionalItems";
      if (schema->contains(rest)) all.push_back(child(schema, rest));
    }
    return all;
  };
  const auto compile_item = [&](const Schemas& schemas) {
    return schemas.empty() ? json_.any_value() : compile(schemas);
  };
  std::vector<ExprId> first;
  for (std::size_t i = 0; i < std::min<std::size_t>(num_first, max); ++i)
    first.push_back(compile_item(item(i)));
  const Schemas rest = item(num_first);
  const ExprId others = compile_item(rest);
  if (others == kNothing) max = std::min(max, static_cast<std::uint32_t>(num_first));
  for (const auto& [schema, value] : having(place, "uniqueItems"))
    if (value == true && max > 1)
      fail_at(schema, "uniqueItems", "is supported only where there is at most one item");
  const auto containing = having(place, "contains");
  for (const auto& [schema, value] : containing) {
    const std::uint32_t wanted = schema->contains("minContains") ? bound(place, "minContains", false) : 1;
    if (wanted == 0) continue;
    if (wanted > 1 || num_first > 0 || min > 1 || max != kNoLimit || containing.size() > 1)
      fail_at(schema, "contains", "is supported alone, and for one item");
    Schemas one = rest;
    one.push_back(child(schema, "contains"));
    const ExprId before = ex_.repeat(ex_.concat(others, json_.comma()));
    const ExprId after = ex_.repeat(ex_.concat(json_.comma(), others));
    return json_.list("[]", ex_.concat({before, compile(one), after}), false);
  }
  return list(first, others, min, max);
}

// An array of `first`, as far as it goes, and then of `rest`.
ExprId SchemaCompiler::list(const std::vector<ExprId>& first, ExprId rest, std::uint32_t min,
                            std::uint32_t max) {
  if (min > max) return kNothing;
  const auto num_first = static_cast<std::uint32_t>(first.size());
  const std::uint32_t given = std::max(num_first, 1u);
  ExprId tail = ex_.repeat(ex_.concat(json_.comma(), rest), min - std::min(min, given),
                           max == kNoLimit ? kNoLimit : max - std::min(max, given));
  if (num_first == 0) tail = max == 0 ? kNothing : ex_.concat(rest, tail);
  for (std::uint32_t i = num_first; i-- > 0;) {
    if (i + 1 < num_first && i + 1 >= min) tail = ex_.optional(tail);
    tail = ex_.concat({i == 0 ? kEmpty : json_.comma(), first[i], tail});
  }
  return json_.list("[]", tail, min == 0);
}

ExprId SchemaCompiler::object(const Place& place) {
  Schemas of_names;
  for (const auto& [schema, value] : having(place, "propertyNames"))
    of_names.push_back(child(schema, "propertyNames"));
  ExprId names = json_.quoted(json_.canonical_text());
  if (!of_names.empty()) {
    of_names.push_back(made({{"type", "string"}}, of_names.front()));
    names = ex_.all_of({names, compile(of_names)});
  }
  const std::vector<Member> known = members(place, names);
  for (const Member& of : known)
    if (of.required && of.value == kNothing) return kNothing;
  return member_list(place, known, other_members(place, known, names));
}

// Those that the schemas name, in their order. One without a value must be absent.
std::vector<SchemaCompiler::Member> SchemaCompiler::members(const Place& place, ExprId names) {
  std::vector<Member> result;
  std::unordered_map<std::string, std::size_t> index;
  const auto note = [&](const std::string& name, bool required) {
    const auto [found, is_new] = index.try_emplace(name, result.size());
    if (is_new) result.push_back({.name = name});
    result[found->second].required |= required;
  };
  const auto with_properties = having(place, "properties"),
             with_patterns = having(place, "patternProperties");
  for (const auto& [schema, properties] : with_properties)
    for (const auto& [name, value] : properties.items()) note(name, false);
  for (const auto& [schema, required] : having(place, "required"))
    if (required.is_array())
      for (const auto& name : required) note(name.get_ref<const std::string&>(), true);
  for (Member& of : result) {
    ex_.check_time();
    std::vector<std::pair<Schema, Schema>> matched;
    for (const auto& [schema, properties] : with_properties)
      if (properties.contains(of.name)) matched.emplace_back(schema, child(schema, "properties", of.name));
    for (const auto& [schema, patterns] : with_patterns)
      for (const auto& [regex, value] : patterns.items())
        if (const Schema of_pattern = child(schema, "patternProperties", regex);
            ex_.matches(*pattern(of_pattern, "", regex), inside_quotes(of.name)))
          matched.emplace_back(schema, of_pattern);
    if (ex_.matches(names, OrderedJson(of.name).dump())) of.value = member_value(place, matched);
  }
  return result;
}

ExprId SchemaCompiler::member_value(const Place& place,
                                    const std::vector<std::pair<Schema, Schema>>& matched) {
  Schemas all;
  for (const Schema schema : place.schemas) {
    const std::size_t before = all.size();
    for (const auto& [of, value] : matched)
      if (of == schema) all.push_back(value);
    if (all.size() == before && schema->contains("additionalProperties"))
      all.push_back(child(schema, "additionalProperties"));
  }
  return all.empty() ? json_.any_value() : compile(all);
}

// A member with any other name.
ExprId SchemaCompiler::other_members(const Place& place, const std::vector<Member>& known, ExprId names) {
  // Names in regions, by the patterns that they match.
  struct Region {
    ExprId names;
    std::vector<std::pair<Schema, Schema>> matched;  // schemas, and values of their patternProperties
  };
  std::vector<std::string> quoted;
  for (const Member& of : known) quoted.push_back(OrderedJson(of.name).dump());
  if (!quoted.empty())
    names = ex_.all_of({names, ex_.complement(ex_.literals({quoted.begin(), quoted.end()}))});
  std::vector<Region> regions = {{names, {}}};
  const bool mentioned =
      !source_.disable_additional_properties || !having(place, "additionalProperties").empty();
  for (const auto& [schema, patterns] : having(place, "patternProperties")) {
    for (const auto& [regex, value] : patterns.items()) {
      const Schema of_pattern = child(schema, "patternProperties", regex);
      const ExprId matching = json_.quoted(*pattern(of_pattern, "", regex));
      std::vector<Region> split;
      for (const Region& region : regions) {
        Region inside = {ex_.all_of({region.names, matching}), region.matched};
        inside.matched.emplace_back(schema, of_pattern);
        const Region outside = {ex_.all_of({region.names, ex_.complement(matching)}), region.matched};
        if (inside.names != kNothing) split.push_back(std::move(inside));
        if (outside.names != kNothing) split.push_back(outside);
      }
      regions = std::move(split);
      if (regions.size() > kMaxPatterns)
        fail_at(schema, "patternProperties", "the patterns overlap in too many ways");
    }
  }
  std::vector<ExprId> parts;
  for (const Region& region : regions)
    if (mentioned || !region.matched.empty())
      parts.push_back(member(ex_.lexeme(region.names), member_value(place, region.matched)));
  return ex_.any_of(std::move(parts));
}

// An object of the members, and of others.
ExprId SchemaCompiler::member_list(const Place& place, const std::vector<Member>& known, ExprId other) {
  MemberList list;
  for (const Member& of : known)
    if (of.value != kNothing)
      list.members.push_back({member(ex_.word(OrderedJson(of.name).dump()), of.value), of.required});
  list.others = other;
  list.comma = json_.comma();
  list.any_order = source_.any_order;
  list.min = bound(place, "minProperties", false);
  list.max = bound(place, "maxProperties", true);
  if (list.min > list.members.size() + 1 && other != kNothing)
    fail_at(place.schemas.front(), "minProperties",
            "is supported up to one more than there are named properties");
  bool may_be_empty = false;
  const ExprId some = ex_.some_members(std::move(list), may_be_empty);
  return json_.list("{}", some, may_be_empty);
}

}  // namespace quire::grammar
