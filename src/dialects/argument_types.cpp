#include "dialects/argument_types.h"

#include <string>

namespace quire::dialects {
namespace {

constexpr int kMostReferences = 8;  // one behind the other

const OrderedJson* member(const OrderedJson* value, std::string_view key) {
  if (value == nullptr || !value->is_object()) return nullptr;
  const auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}

void add_type(const OrderedJson& name, ArgumentTypes& types) {
  (name == "string" ? types.text : types.other) = true;
}

ArgumentTypes types_of(const OrderedJson& root, const OrderedJson& unresolved, int depth) {
  constexpr ArgumentTypes kAny;
  const OrderedJson* schema = resolve(root, unresolved);
  if (schema == nullptr || depth > kMostReferences) return kAny;
  ArgumentTypes types{.text = false, .other = false};
  const OrderedJson* type = member(schema, "type");
  if (type != nullptr && type->is_array()) {
    for (const OrderedJson& name : *type) add_type(name, types);
  } else if (type != nullptr) {
    add_type(*type, types);
  } else if (const OrderedJson* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const OrderedJson& value : *values) (value.is_string() ? types.text : types.other) = true;
  } else if (const OrderedJson* value = member(schema, "const")) {
    (value->is_string() ? types.text : types.other) = true;
  } else {
    for (const std::string_view key : {"anyOf", "oneOf"}) {
      const OrderedJson* choices = member(schema, key);
      if (choices == nullptr || !choices->is_array()) continue;
      for (const OrderedJson& choice : *choices) {
        const ArgumentTypes more = types_of(root, choice, depth + 1);
        types = {.text = types.text || more.text, .other = types.other || more.other};
      }
    }
  }
  return types.text || types.other ? types : kAny;
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
  return found == nullptr ? ArgumentTypes() : types_of(*schema, *found, 0);
}

}  // namespace quire::dialects
