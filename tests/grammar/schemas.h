#pragma once

#include <array>
#include <string_view>

namespace quire::grammar::test {

// Schemas over all that is supported, for random walks.
inline constexpr std::array<std::string_view, 40> kSchemas = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}, "abc": {"type": "boolean"}}})",
    R"({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2})",
    R"({"type": "object", "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 3}},
        "additionalProperties": {"type": "boolean"}})",
    R"({"type": "object", "propertyNames": {"pattern": "^[a-c]+$"}, "additionalProperties": {"type": "null"}})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -12, "maximum": 345}, "minItems": 1, "maxItems": 3})",
    R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 1})",
    R"({"type": "array", "items": {"type": "boolean"}, "contains": {"const": true}})",
    R"({"type": "array", "items": {"type": "boolean"}, "allOf": [{"contains": {"const": true}}, {"uniqueItems": false}]})",
    R"({"type": "array", "items": {"type": "boolean"}, "allOf": [{"maxItems": 1}, {"uniqueItems": true},
        {"contains": {"const": true}, "minContains": 0}]})",
    R"({"type": "object", "properties": {"x": {"$ref": "#/definitions/d/patternProperties/^a"}, "y": {"$ref": "#/definitions/d"}},
        "required": ["x", "y"], "additionalProperties": false, "definitions": {"d": {"type": "object",
        "patternProperties": {"^a": {"type": "boolean"}}, "additionalProperties": {"type": "null"}}}})",
    R"({"type": "string", "minLength": 2, "maxLength": 5})",
    R"({"type": "string", "pattern": "^(ab|xyz)+[0-9]{2}$"})",
    R"({"type": "string", "pattern": "a.c", "maxLength": 6})",
    R"({"type": "string", "not": {"enum": ["a", "ab", ""]}, "maxLength": 4})",
    R"({"type": "string", "pattern": "^(?:[^ ]+ +){0,30}[^ ]+$", "minLength": 1, "maxLength": 40})",
    R"({"type": "string", "pattern": "^a{0,30}(xyz){0,9}$", "maxLength": 52})",
    R"({"type": "string", "minLength": 30, "maxLength": 60})",
    R"({"type": "string", "format": "date"})",
    R"({"type": "string", "format": "date-time"})",
    R"({"type": "string", "format": "ipv4"})",
    R"({"type": "string", "format": "uuid"})",
    R"({"type": "number", "minimum": -0.5, "exclusiveMaximum": 12.25})",
    R"({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5, "maximum": 100})",
    R"({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 1000})",
    R"({"enum": ["a", "abc", 12, null, true, 0.5]})",
    R"({"const": {"a": [1, "x"]}})",
    R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 3}, {"type": "null"}]})",
    R"({"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "multipleOf": 3}]})",
    R"({"oneOf": [{"required": ["a"]}, {"required": ["x"]}], "type": "object",
        "properties": {"a": {"type": "integer"}, "x": {"type": "integer"}}, "additionalProperties": false})",
    R"({"allOf": [{"properties": {"a": {"minimum": 5}}}, {"properties": {"a": {"maximum": 9}}, "required": ["a"]}],
        "type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"enum": [1, 2]}, "x": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false, "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["x"]}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "x": {"type": "integer"}},
        "additionalProperties": false, "dependentRequired": {"a": ["x"]}})",
    R"({"not": {"type": ["object", "array", "string"]}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}}, "not": {"required": ["xx"]}, "maxProperties": 2})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v"],
        "additionalProperties": false}}})",
    R"({"type": "object", "properties": {"a": {"$ref": "#/definitions/p"}, "b": {"$ref": "#/definitions/p"}},
        "definitions": {"p": {"type": ["integer", "null"]}}, "required": ["b", "a"], "additionalProperties": false})",
    R"({"type": "array", "items": {"anyOf": [{"type": "array", "items": {"type": "number"}, "maxItems": 1},
        {"type": "string", "enum": ["x", "xx"]}]}, "maxItems": 2})",
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"a": false, "x": {"type": "string", "maxLength": 2}}, "maxProperties": 2})"};

}  // namespace quire::grammar::test
