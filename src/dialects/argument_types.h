#pragma once

#include <string_view>

#include "base/json.h"

namespace quire::dialects {

// The schema of a tool's arguments; nullptr where no tool has the name. tools: a list, as OpenAI's requests
// have it.
const OrderedJson* parameters_of(const OrderedJson& tools, std::string_view name);

// What a schema allows, as bits. A schema that says nothing of types, or is none, allows all.
using ArgumentTypes = unsigned;
inline constexpr ArgumentTypes kTypeText = 1, kTypeNull = 2, kTypeBoolean = 4, kTypeInteger = 8,
                               kTypeNumber = 16, kTypeArray = 32, kTypeObject = 64, kAnyType = 127;

// schema: of a tool's arguments, or nullptr; only references within it are followed.
ArgumentTypes argument_types(const OrderedJson* schema, std::string_view argument);
// Those that a value is of.
ArgumentTypes types_of(const OrderedJson& value);

// The schema that a "$ref" within `root` points to, or the schema itself. nullptr: it points nowhere.
const OrderedJson* resolve(const OrderedJson& root, const OrderedJson& schema);

}  // namespace quire::dialects
