#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire::dialects {

// What an object has for a key; nullptr where it has none, and of what is no object.
const OrderedJson* member(const OrderedJson* value, std::string_view key);

// The schema of a tool's arguments; nullptr where no tool has the name. tools: a list, as OpenAI's requests
// have it, or nullptr.
const OrderedJson* parameters_of(const OrderedJson* tools, std::string_view name);

// What a schema allows, as bits. A schema that says nothing of types, or is none, allows all.
using ArgumentTypes = unsigned;
inline constexpr ArgumentTypes kTypeText = 1, kTypeNull = 2, kTypeBoolean = 4, kTypeInteger = 8,
                               kTypeNumber = 16, kTypeArray = 32, kTypeObject = 64, kAnyType = 127;

// schema: of a tool's arguments, or nullptr; only references within it are followed.
ArgumentTypes argument_types(const OrderedJson* schema, std::string_view argument);
// Those of a schema's `type`: a name, or a list of names.
ArgumentTypes named_types(const OrderedJson& type);
// Those that a value is of.
ArgumentTypes types_of(const OrderedJson& value);

// How texts begin that are not read as values of other types (types_read): not as a number, a list or an
// object, nor are they one of the words. Of `types`; excluded: a character that is in none of them.
struct TextBeginning {
  std::string pattern;  // a regular expression
  std::uint64_t characters;
  bool whole = false;  // nothing follows
};
std::vector<TextBeginning> text_beginnings(ArgumentTypes types, char excluded);

// The schema that a "$ref" within `root` points to, or the schema itself. nullptr: it points nowhere.
const OrderedJson* resolve(const OrderedJson& root, const OrderedJson& schema);

// The properties that an object may have, without those whose schema is false: by name, with the required
// ones that have no schema. pointer: of the object's schema, for an Error where they are no such.
struct Properties {
  OrderedJson all = OrderedJson::object();
  std::set<std::string> required = {};
};
Properties properties_of(const OrderedJson& schema, std::string_view pointer);

// Takes out of a schema, and those within it, what asks nothing of a value and may be long; if it is not
// strict, also the keywords that no grammar enforces, and `not` and `if` over them. Returns whether there
// were such.
bool drop_keywords(OrderedJson& schema, bool strict);

}  // namespace quire::dialects
