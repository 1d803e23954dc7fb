#include "dialects/argument_types.h"

#include <string>

namespace quire::dialects {
namespace {

constexpr int kMostReferences = 8;  // one behind the other
constexpr int kMostSchemas = 1000;

const OrderedJson* member(const OrderedJson* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}

ArgumentTypes named_type(const OrderedJson& name) {
  constexpr std::string_view kNames[] = {"string", "null", "boolean", "integer", "number", "array", "object"};
  for (unsigned bit = 0; bit < std::size(kNames); ++bit)
    if (name == kNames[bit]) return 1U << bit;
  return 0;
}

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
  add("type", named_type);
  add("enum", types_of);
  if (const OrderedJson* value = member(schema, "const"); types == 0 && value != nullptr)
    types = types_of(*value);
  for (const char* key : {"anyOf", "oneOf"})
    add(key, [&](const OrderedJson& choice) { return allowed_types(root, choice, depth + 1, left); });
  return types == 0 ? kAnyType : types;
}

}  // namespace

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

const OrderedJson* parameters_of(const OrderedJson& tools, std::string_view name) {
  if (!tools.is_array()) return nullptr;
  for (const OrderedJson& tool : tools) {
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

ArgumentTypes types_of(const OrderedJson& value) {
  switch (value.type()) {
    case OrderedJson::value_t::string:
      return kTypeText;
    case OrderedJson::value_t::null:
      return kTypeNull;
    case OrderedJson::value_t::boolean:
      return kTypeBoolean;
    case OrderedJson::value_t::array:
      return kTypeArray;
    case OrderedJson::value_t::object:
      return kTypeObject;
    default:
      return value.is_number_integer() ? kTypeInteger | kTypeNumber : kTypeNumber;
  }
}

}  // namespace quire::dialects
