#include "dialects/argument_types.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace quire::dialects {
namespace {

constexpr int kMostReferences = 8;  // one behind the other
constexpr int kMostSchemas = 1000;

// left: schemas that may still be looked at.
ArgumentTypes allowed_types(const OrderedJson& root, const OrderedJson& unresolved, int depth, int& left) {
  const OrderedJson* schema = resolve(root, unresolved);
  if (schema == nullptr || depth > kMostReferences || --left < 0) return kAnyType;
  ArgumentTypes types = 0;
  const auto add = [&](std::string_view key, auto&& types_in) {
    const OrderedJson* list = types == 0 ? member(schema, key) : nullptr;
    if (list != nullptr && !list->is_array()) types = types_in(*list);
    if (list == nullptr || !list->is_array()) return;
    for (const OrderedJson& one : *list) types |= types_in(one);
  };
  add("type", named_types);
  add("enum", types_of);
  if (const OrderedJson* value = member(schema, "const"); types == 0 && value != nullptr)
    types = types_of(*value);
  for (const char* key : {"anyOf", "oneOf"})
    add(key, [&](const OrderedJson& choice) { return allowed_types(root, choice, depth + 1, left); });
  if (const OrderedJson* all = member(schema, "allOf"); types == 0 && all != nullptr && all->is_array()) {
    types = kAnyType;
    for (const OrderedJson& one : *all) {
      const ArgumentTypes allowed = allowed_types(root, one, depth + 1, left);
      types &= (allowed & kTypeNumber) == 0 ? allowed : allowed | kTypeInteger;
    }
  }
  return types == 0 ? kAnyType : types;
}

}  // namespace

const OrderedJson* member(const OrderedJson* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}

const OrderedJson* resolve(const OrderedJson& root, const OrderedJson& schema) {
  const OrderedJson* at = &schema;
  for (int i = 0; i < kMostReferences && at != nullptr; ++i) {
    const OrderedJson* reference = member(at, "$ref");
    if (reference == nullptr || !reference->is_string()) return at;
    const std::string& text = reference->get_ref<const std::string&>();
    if (!text.starts_with('#')) return nullptr;
    try {
      const OrderedJson::json_pointer pointer(text.substr(1));
      at = root.contains(pointer) ? &root.at(pointer) : nullptr;
    } catch (const OrderedJson::exception&) {  // it is no pointer
      return nullptr;
    }
  }
  return nullptr;
}

bool drop_keywords(OrderedJson& schema, bool strict) {
  constexpr const char* kUnsupported[] = {"uniqueItems", "unevaluatedItems", "unevaluatedProperties",
                                          "$dynamicRef", "$recursiveRef",    "maxContains",
                                          "extends",     "disallow"};
  bool dropped = false;
  const auto drop = [&](OrderedJson& within) { dropped |= drop_keywords(within, strict); };
  if (schema.is_array()) std::ranges::for_each(schema, drop);
  if (!schema.is_object()) return dropped;
  for (const char* key : {"title", "description", "default", "examples"}) erase_key(schema, key);
  for (const char* key : kUnsupported)
    if (!strict) dropped |= erase_key(schema, key);
  // The opposite of a schema asks for more where that asks for less.
  for (const char* key : {"not", "if"}) {
    const auto found = schema.find(key);
    if (found == schema.end() || !drop_keywords(*found, strict)) continue;
    erase_key(schema, key);
    dropped = true;
  }
  // Of alternatives that exclude each other some may be the same now.
  if (const auto found = schema.find("oneOf"); found != schema.end() && drop_keywords(*found, strict)) {
    dropped = true;
    const OrderedJson any = std::move(*found);
    erase_key(schema, "oneOf");
    if (!schema.contains("anyOf")) schema["anyOf"] = any;
  }
  for (const char* key : {"items", "prefixItems", "additionalItems", "contains", "additionalProperties",
                          "propertyNames", "anyOf", "allOf", "then", "else"})
    if (const auto found = schema.find(key); found != schema.end()) drop(*found);
  for (const char* key :
       {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
    if (const auto found = schema.find(key); found != schema.end() && found->is_object())
      std::ranges::for_each(*found, drop);
  return dropped;
}

Properties properties_of(const OrderedJson& schema, std::string_view pointer) {
  Properties made;
  if (const OrderedJson* required = member(&schema, "required")) {
    const auto is_name = [](const OrderedJson& name) { return name.is_string(); };
    if (!required->is_array() || !std::ranges::all_of(*required, is_name))
      fail("{}/required must be a list of names", pointer);
    for (const OrderedJson& name : *required) made.required.insert(name.get<std::string>());
  }
  const OrderedJson* found = member(&schema, "properties");
  if (found != nullptr && !found->is_object()) fail("{}/properties must be an object", pointer);
  if (found != nullptr)
    for (const auto& [name, property] : found->items())
      if (property != false || made.required.contains(name)) made.all[name] = property;
  for (const std::string& name : made.required) made.all.emplace(name, OrderedJson::object());
  return made;
}

const OrderedJson* parameters_of(const OrderedJson* tools, std::string_view name) {
  if (tools == nullptr || !tools->is_array()) return nullptr;
  for (const OrderedJson& tool : *tools) {
    const OrderedJson* function = member(&tool, "function");
    const OrderedJson* known = member(function, "name");
    if (known != nullptr && *known == name) return member(function, "parameters");
  }
  return nullptr;
}

ArgumentTypes argument_types(const OrderedJson* schema, std::string_view argument) {
  const OrderedJson* found = member(member(schema, "properties"), argument);
  int left = kMostSchemas;
  return found == nullptr ? kAnyType : allowed_types(*schema, *found, 0, left);
}

ArgumentTypes named_types(const OrderedJson& type) {
  constexpr std::string_view kNames[] = {"string", "null", "boolean", "integer", "number", "array", "object"};
  ArgumentTypes types = 0;
  for (const OrderedJson& name : type.is_array() ? type : OrderedJson::array({type}))
    for (unsigned bit = 0; bit < std::size(kNames); ++bit)
      if (name == kNames[bit]) types |= 1U << bit;
  return types;
}

ArgumentTypes types_of(const OrderedJson& value) {
  return value.is_number_integer() ? kTypeInteger | kTypeNumber : named_types(value.type_name());
}

std::vector<TextBeginning> text_beginnings(ArgumentTypes types, char excluded) {
  std::vector<std::string> words;
  if ((types & kTypeBoolean) != 0) words = {"true", "false", "True", "False"};
  if ((types & kTypeNull) != 0) words.insert(words.end(), {"null", "None"});
  std::string first = format_text("\\s{}", excluded);
  if ((types & (kTypeInteger | kTypeNumber)) != 0) first += "0-9\\-";
  if ((types & kTypeArray) != 0) first += "\\[";
  if ((types & kTypeObject) != 0) first += "{";
  std::vector<TextBeginning> all = {{"(?:)", 0, true}};
  for (const std::string& word : words) {
    first += word.front();
    for (std::size_t i = 1; i < word.size(); ++i) {
      const std::string begun = word.substr(0, i);
      all.push_back({begun, i, true});
      all.push_back({format_text("{}[^{}{}]", begun, word[i], excluded), i + 1});
    }
    all.push_back({format_text("{}[^\\s{}]", word, excluded), word.size() + 1});
    all.push_back({format_text("{}\\s[^\\s{}]", word, excluded), word.size() + 2});
  }
  all.push_back({format_text("[^{}]", first), 1});
  return all;
}

}  // namespace quire::dialects
