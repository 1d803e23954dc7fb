#include "grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxPath = 200;       // references and combinations at one place, by way of one another
constexpr std::size_t kMaxLeaves = 50'000;  // sets of schemas, one for each combination of alternatives
constexpr std::size_t kMaxSchemas = 4096;   // of one anyOf, or at one place
constexpr std::size_t kMaxExclusive = 128;  // of one oneOf

// Keywords that could make an instance invalid and are not enforced.
constexpr std::array<std::string_view, 7> kRefusedKeywords = {
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
    "maxContains",           "extends",          "disallow"};
// Of keywords whose values hold no schemas, and of those that hold them by names.
constexpr std::array<std::string_view, 4> kNoSchemas = {"enum", "const", "default", "examples"};
constexpr std::array<std::string_view, 6> kByName = {"properties",       "patternProperties", "$defs",
                                                     "dependentSchemas", "dependencies",      "definitions"};
// What a keyword's value must be, by JSON's types; those of counts are integers in range, too.
struct Form {
  std::array<std::string_view, 7> keys;
  unsigned types;
  std::string_view what;
  bool of_structures;  // says something of objects or arrays
};
constexpr unsigned kCount = kIntegerType, kNumber = kIntegerType | kFractionType;
constexpr std::array<Form, 12> kForms = {{
    {{"minItems", "maxItems", "minProperties", "maxProperties", "minContains", "minLength", "maxLength"},
     kCount,
     "must be an integer of at least 0 and at most 10^9",
     true},
    {{"properties", "patternProperties"}, kObjectType, "must be an object of schemas", true},
    {{"additionalProperties", "propertyNames", "additionalItems", "contains"},
     kObjectType | kBooleanType,
     "must be a schema",
     true},
    {{"items"}, kObjectType | kBooleanType | kArrayType, "must be a schema", true},
    {{"prefixItems"}, kArrayType, "must be an array of schemas", true},
    {{"required"}, kArrayType, "must be an array of strings", true},
    {{"uniqueItems"}, kBooleanType, "must be true or false", true},
    {{"dependencies", "dependentRequired", "dependentSchemas"}, kObjectType, "must be an object", false},
    {{"enum"}, kArrayType, "must be an array", false},
    {{"minimum", "maximum", "multipleOf"}, kNumber, "must be a number", false},
    {{"exclusiveMinimum", "exclusiveMaximum"}, kNumber | kBooleanType, "must be a number", false},
    {{"pattern", "format", "$ref"}, kStringType, "must be a string", false},
}};

template <typename List>
bool is_in(const List& list, std::string_view key) {
  return std::ranges::find(list, key) != list.end();
}

const Form* form_of(std::string_view key) {
  const auto* const found =
      std::ranges::find_if(kForms, [&](const Form& form) { return is_in(form.keys, key); });
  return found == kForms.end() || key.empty() ? nullptr : found;
}

// Of a reference, in which %41 stands for A.
std::string without_percent(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned char value = 0;
    const bool escaped = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2;
    result += escaped ? static_cast<char>(value) : text[i];
    i += escaped ? 2 : 0;
  }
  return result;
}

}  // namespace

unsigned type_bits(std::string_view name) {
  if (name == "any") return kAllTypes;
  if (name == "number") return kIntegerType | kFractionType;
  constexpr std::array<std::string_view, 6> kNames = {"null",  "boolean", "object",
                                                      "array", "string",  "integer"};
  const auto index = std::ranges::find(kNames, name) - kNames.begin();
  return index < std::ssize(kNames) ? 1u << index : 0;
}

SchemaCompiler::SchemaCompiler(Expressions& expressions, JsonText& json, const Source& source,
                               const OrderedJson& root, std::string at)
    : ex_(expressions), json_(json), source_(source), root_(&root), at_(std::move(at)) {
  has_old_ids_ = root.is_object() && root.contains("$schema") &&
                 root.at("$schema").dump().find("draft-04") != std::string::npos;
  index_names(root_, root_);
}

std::string SchemaCompiler::pointer(Schema schema) const {
  std::string result;
  for (auto found = parents_.find(schema); found != parents_.end();
       found = parents_.find(found->second.first))
    result = found->second.second + result;
  return result;
}

void SchemaCompiler::fail_at(Schema schema, std::string_view keyword, std::string_view what) const {
  std::string where = at_ + pointer(schema);
  if (!keyword.empty()) where += (OrderedJson::json_pointer() / std::string(keyword)).to_string();
  throw GrammarError(format_text("JSON schema at {}: {}", in_quotes(where), what));
}

void SchemaCompiler::pay_for(const OrderedJson& schema) {
  constexpr std::size_t kBytesOfSchema = 128, kBytesOfCharacter = 16;  // of its text, once it is parsed
  constexpr auto kReplace = OrderedJson::error_handler_t::replace;     // kReference is no UTF-8
  const std::size_t bytes = kBytesOfSchema + kBytesOfCharacter * schema.dump(-1, ' ', false, kReplace).size();
  ex_.memory().take(bytes);
  made_bytes_ += bytes;
}

SchemaCompiler::Schema SchemaCompiler::made(OrderedJson schema, Schema at) {
  pay_for(schema);
  made_.push_back(std::move(schema));
  parents_.try_emplace(&made_.back(), at, "");
  return &made_.back();
}

OrderedJson SchemaCompiler::reference_to(Schema schema) {
  if (schema->is_boolean()) return *schema;
  references_.push_back(schema);
  return {{std::string(kReference), references_.size() - 1}};
}

// Notes the schemas that have names of their own, and those that refer to what a part of the schema names.
// by_name: it is none itself, but has schemas by names of the user's.
void SchemaCompiler::index_names(Schema schema, Schema document, bool by_name) {
  if (!schema->is_structured()) return;
  const auto note = [&](const std::string& name, Schema named) {
    const auto [known, is_new] = names_.try_emplace(name, named);
    if (!is_new && known->second != named) known->second = nullptr;
  };
  if (schema->is_object()) {
    for (const char* key : {"$id", "id"}) {
      if (!schema->contains(key) || !schema->at(key).is_string()) continue;
      const std::string& name = schema->at(key).get_ref<const std::string&>();
      note(name, schema);
      if (!name.starts_with('#') && (key[0] == '$' || has_old_ids_)) document = schema;
    }
    if (schema->contains("$anchor") && schema->at("$anchor").is_string())
      note("#" + schema->at("$anchor").get_ref<const std::string&>(), schema);
    if (document != root_ && schema->contains("$ref")) documents_.emplace(schema, document);
  }
  for (const auto& [key, value] : schema->items())
    if (by_name || !is_in(kNoSchemas, key)) index_names(&value, document, !by_name && is_in(kByName, key));
}

SchemaCompiler::Schema SchemaCompiler::resolve(Schema schema, const std::string& reference) {
  const auto fail_ref = [&](std::string_view what) {
    fail_at(schema, "$ref", format_text("{} {}", in_quotes(reference), what));
  };
  const auto named = [&](const std::string& name) -> Schema {
    const auto found = names_.find(name);
    if (found == names_.end()) return nullptr;
    if (found->second == nullptr) fail_ref("names more than one schema");
    return found->second;
  };
  if (const Schema whole = named(reference)) return whole;
  const std::size_t hash = std::min(reference.find('#'), reference.size());
  const auto inner = documents_.find(schema);
  Schema at = inner == documents_.end() ? root_ : inner->second;
  if (hash > 0) {
    const std::string document = reference.substr(0, hash);
    at = named(document);
    if (at == nullptr) at = named(document + "#");
    if (at == nullptr) fail_ref("lies outside of the schema; only what the schema has is supported");
  }
  try {
    const OrderedJson::json_pointer way(
        without_percent(std::string_view(reference).substr(std::min(hash + 1, reference.size()))));
    const Schema found = &at->at(way);
    if (found != at) parents_.try_emplace(found, at, way.to_string());
    return found;
  } catch (const OrderedJson::exception&) {
    fail_at(schema, "$ref", format_text("the schema has nothing at {}", in_quotes(reference)));
  }
}

ExprId SchemaCompiler::compile(Schemas schemas) {
  return ex_.recursive(compiled_[{schemas.begin(), schemas.end()}], [&] {
    const Expressions::Depth deeper(ex_, kSchemaWeight);
    Place place;
    for (const Schema schema : schemas) add(place, schema, {});
    return expand(place, 0);
  });
}

void SchemaCompiler::add(Place& place, Schema schema, const Schemas& path) {
  if (schema->is_boolean()) {
    place.impossible |= !schema->get<bool>();
    return;
  }
  if (!schema->is_object()) fail_at(schema, "", "a schema is an object, true or false");
  const Expressions::Depth deeper(ex_, kSchemaWeight);
  if (path.size() > kMaxPath || std::ranges::find(path, schema) != path.end())
    fail_at(schema, "", "the schema refers to itself without end, or by too long a way");
  ex_.check_time();
  if (std::ranges::find(place.schemas, schema) != place.schemas.end()) return;
  if (place.schemas.size() == kMaxSchemas)
    fail_at(schema, "", format_text("more than {} schemas hold for one value", kMaxSchemas));
  place.schemas.push_back(schema);
  Schemas inner = path;
  inner.push_back(schema);
  for (const auto& [key, value] : schema->items()) add_keyword(place, schema, key, inner);
}

void SchemaCompiler::check_listed(Schema schema, std::string_view key, const OrderedJson& value) const {
  if (value.is_structured())
    for (const OrderedJson& item : value) check_listed(schema, key, item);
  if (may_be_rounded(value))
    fail_at(schema, key, "numbers from 2^64 on and below -2^63 are not supported here");
}

// That a keyword has the form it must have.
void SchemaCompiler::check_keyword(Schema schema, const std::string& key) const {
  const Form* const form = form_of(key);
  if (form == nullptr) return;
  const OrderedJson& value = schema->at(key);
  bool right = (type_bits(value.type_name()) & form->types) != 0;
  if (right && form->types == kCount) {
    const double count = value.get<double>();
    right = count >= 0 && count <= 1e9 && count == std::floor(count);
  }
  if (key == "required")
    right = value == false ||
            (right && std::ranges::all_of(value, [](const auto& name) { return name.is_string(); }));
  if (!right) fail_at(schema, key, form->what);
}

void SchemaCompiler::add_keyword(Place& place, Schema schema, const std::string& key, const Schemas& path) {
  const OrderedJson& value = schema->at(key);
  const auto schemas = [&]() -> Schemas {
    if (!value.is_array() || value.empty()) fail_at(schema, key, "must be an array of schemas");
    if (value.size() > kMaxSchemas)
      fail_at(schema, key, format_text("has more than {} schemas", kMaxSchemas));
    Schemas result;
    for (std::size_t i = 0; i < value.size(); ++i) result.push_back(child(schema, key, i));
    return result;
  };
  check_keyword(schema, key);
  if (is_in(kRefusedKeywords, key)) {
    const bool says_nothing = key.starts_with("unevaluated") && value == true;
    if (!says_nothing) fail_at(schema, key, "this keyword is not supported");
  } else if (key == "type" || key == kNotType) {
    unsigned bits = 0;
    for (const auto& name : value.is_array() ? value : OrderedJson::array({value})) {
      const unsigned of_name = name.is_string() ? type_bits(name.get_ref<const std::string&>()) : 0;
      bits = of_name == 0 ? 0 : bits | of_name;
      if (bits == 0) break;
    }
    if (bits == 0) fail_at(schema, key, "must be a type's name, or a list of them");
    place.types &= key == "type" ? bits : ~bits;
  } else if (key == "$ref") {
    add(place, resolve(schema, value.get_ref<const std::string&>()), path);
  } else if (key == kReference) {
    add(place, references_[value.get<std::size_t>()], path);
  } else if (key == "allOf") {
    for (const Schema part : schemas()) add(place, part, path);
  } else if (key == "anyOf" || key == "oneOf") {
    Choice choice{.alternatives = {}, .path = path};
    for (const Schema part : schemas()) choice.alternatives.push_back({part});
    if (key == "oneOf") exclude_others(choice, schema);
    place.choices.push_back(std::move(choice));
  } else if (key == "not") {
    add(place, negation(child(schema, key)), path);
  } else if (key == "if" && (schema->contains("then") || schema->contains("else"))) {
    const Schema condition = child(schema, key);
    Schemas then = {condition}, otherwise = {negation(condition)};
    if (schema->contains("then")) then.push_back(child(schema, "then"));
    if (schema->contains("else")) otherwise.push_back(child(schema, "else"));
    place.choices.push_back({{then, otherwise}, path});
  } else if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") {
    add_dependencies(place, schema, key, path);
  }
}

// Of a oneOf: adds to each alternative the opposites of those that it has instances in common with. What
// tells them apart in OpenAPI must be there where all describe it, which a default does not say.
void SchemaCompiler::exclude_others(Choice& choice, Schema schema) {
  auto& all = choice.alternatives;
  if (all.size() > kMaxExclusive)
    fail_at(schema, "oneOf", format_text("has more than {} schemas; anyOf would do", kMaxExclusive));
  Schemas together;  // with two of them; they often have nothing in common but values of other types
  if (schema->contains("type")) together.push_back(made({{"type", schema->at("type")}}, schema));
  const auto found = schema->find("discriminator");
  if (found != schema->end() && found->contains("propertyName") && found->at("propertyName").is_string()) {
    const auto& name = found->at("propertyName").get_ref<const std::string&>();
    const auto describes = [&](const Schemas& one) {
      Schema described = one.front();
      if (const auto to = described->find("$ref"); to != described->end() && to->is_string())
        described = resolve(described, *to);
      const auto properties = described->find("properties");
      return described->is_boolean() || (properties != described->end() && properties->contains(name));
    };
    if (std::ranges::all_of(all, describes)) {
      together.push_back(made({{"required", {name}}}, schema));
      for (Schemas& one : all) one.push_back(together.back());
    }
  }
  together.resize(together.size() + 2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Schema a = all[i].front(), b = all[j].front();
      std::ranges::copy(Schemas{a, b}, together.end() - 2);
      if (compile(together) == kNothing) continue;
      all[i].push_back(negation(b));
      all[j].push_back(negation(a));
    }
  }
}

void SchemaCompiler::add_dependencies(Place& place, Schema schema, const std::string& key,
                                      const Schemas& path) {
  for (const auto& [name, value] : schema->at(key).items()) {
    OrderedJson present = {{"required", {name}}}, absent = {{"properties", {{name, false}}}};
    Schemas then = {made(std::move(present), schema)};
    if (value.is_string() || value.is_array()) {
      OrderedJson names = value.is_string() ? OrderedJson::array({value}) : value;
      then.push_back(made({{"required", std::move(names)}}, schema));
    } else {
      then.push_back(child(schema, key, name));
    }
    place.choices.push_back({{then, {made(std::move(absent), schema)}}, path});
  }
}

// What a place allows, its alternatives chosen as far as `choice`. Leaves the place as it was.
ExprId SchemaCompiler::expand(Place& place, std::size_t choice) {
  if (place.impossible || place.types == 0) return kNothing;
  if (choice == place.choices.size()) return leaf(place);
  const Expressions::Depth deeper(ex_, kSchemaWeight);
  const std::size_t num_schemas = place.schemas.size(), num_choices = place.choices.size();
  const unsigned types = place.types;
  const Choice& of = place.choices[choice];
  std::vector<ExprId> parts;
  for (const Schemas& alternative : of.alternatives) {
    for (const Schema schema : alternative) add(place, schema, of.path);
    parts.push_back(expand(place, choice + 1));
    place.schemas.resize(num_schemas);
    place.choices.resize(num_choices);
    place.types = types;
    place.impossible = false;
  }
  return ex_.any_of(std::move(parts));
}

// What the schemas of a place allow, their alternatives chosen.
ExprId SchemaCompiler::leaf(const Place& place) {
  ex_.check_time();
  if (++num_leaves_ > kMaxLeaves)
    fail_at(place.schemas.empty() ? root_ : place.schemas.front(), "",
            format_text("its alternatives combine in more than {} ways", kMaxLeaves));
  for (const Schema schema : place.schemas) {
    if (schema->contains("const")) return values(place, schema, "const");
    if (schema->contains("enum")) return values(place, schema, "enum");
  }
  std::vector<ExprId> parts;
  for (unsigned bit = 1; bit < kAllTypes; bit <<= 1)
    if ((place.types & bit) != 0 && !(bit == kFractionType && (place.types & kIntegerType) != 0))
      parts.push_back(type(place, bit));
  return ex_.any_of(std::move(parts));
}

// Those values of an enumeration that all other keywords allow.
ExprId SchemaCompiler::values(const Place& place, Schema of, std::string_view key) {
  const OrderedJson& listed = of->at(std::string(key));
  const OrderedJson all = key == "const" ? OrderedJson::array({listed}) : listed;
  std::vector<ExprId> parts;
  std::vector<std::string> texts;
  std::unordered_map<unsigned, ExprId> types;
  for (const OrderedJson& value : all) {
    ex_.check_time();
    check_listed(of, key, value);
    const bool is_structured = value.is_structured();
    const Json sorted = is_structured ? Json(value) : Json();  // members in one order, whatever theirs is
    const bool listed_by_all = std::ranges::all_of(place.schemas, [&](Schema schema) {
      const auto constant = schema->find("const"), list = schema->find("enum");
      const auto is_value = [&](const OrderedJson& other) {
        if (!is_structured || !other.is_structured()) return other == value;
        return other.type() == value.type() && other.size() == value.size() && Json(other) == sorted;
      };
      return (constant == schema->end() || is_value(*constant)) &&
             (list == schema->end() || &*list == &listed || std::ranges::any_of(*list, is_value));
    });
    const unsigned bits = place.types & type_bits(value.type_name());
    if (!listed_by_all || bits == 0) continue;
    if (is_structured) {
      check_beside_values(place);
      parts.push_back(json_.literal(value));
      continue;
    }
    const unsigned lowest = bits & -bits;
    if (!types.contains(lowest)) types.emplace(lowest, type(place, lowest));
    const auto is_of_type = [&](const std::string& text) { return ex_.matches(types.at(lowest), text); };
    std::string text = value.dump();
    if (value.is_number_float() && !is_of_type(text)) text = Decimal(value).text();  // of 1.0 or 1e+15
    if (is_of_type(text)) texts.push_back(std::move(text));
  }
  parts.push_back(ex_.literals({texts.begin(), texts.end()}));
  return ex_.any_of(std::move(parts));
}

// Objects and arrays that are listed are not checked against other keywords.
void SchemaCompiler::check_beside_values(const Place& place) const {
  for (const Schema schema : place.schemas)
    for (const auto& [key, unused] : schema->items())
      if (const Form* const form = form_of(key); key == kNotEnum || (form != nullptr && form->of_structures))
        fail_at(schema, key, "is not supported beside an enumeration of objects or arrays");
}

}  // namespace quire::grammar
