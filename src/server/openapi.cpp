#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>

#include "base/json.h"
#include "server/text_requests.h"

namespace quire::server {
namespace {

const std::string kSchemas = "#/components/schemas/";
constexpr std::string_view kSource =
#include "server/openapi.json.inc"
    ;

void allow_null(OrderedJson& schema) {
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) *type = OrderedJson::array({*type});
    type->push_back("null");
  } else if (const auto values = schema.find("enum"); values != schema.end()) {
    values->push_back(nullptr);
  } else {
    schema = {{"anyOf", OrderedJson::array({schema, {{"type", "null"}}})}};
  }
}

// Writes a schema out. A text stands for what `words` have by it, or else for what the document has by that
// name, or for a type; [X] is a list of X; {"fields": ...} has properties, all of them required. What has
// properties is an object, and optional ones may be null.
void complete_schema(OrderedJson& schema, const OrderedJson& words) {
  if (schema.is_string() && words.contains(schema))
    schema = OrderedJson(words[schema.get_ref<const std::string&>()]);
  if (schema.is_array()) schema = {{"type", "array"}, {"items", OrderedJson(schema.front())}};
  if (schema.is_string()) {
    const auto name = schema.get<std::string>();
    const bool is_type = std::islower(static_cast<unsigned char>(name.front())) != 0;
    schema = {{is_type ? "type" : "$ref", is_type ? name : kSchemas + name}};
    return;
  }
  if (schema.contains("fields")) {
    OrderedJson required = OrderedJson::array();
    for (const auto& [name, field] : schema["fields"].items()) required.push_back(name);
    schema = {{"required", std::move(required)}, {"properties", std::move(schema["fields"])}};
  }
  for (auto& [key, value] : schema.items()) {
    if (value.is_string() && words.contains(value))  // a limit
      value = OrderedJson(words[value.get_ref<const std::string&>()]);
    if (key == "items" || key == "additionalProperties") complete_schema(value, words);
    if (key != "properties" && key != "allOf" && key != "anyOf") continue;
    for (OrderedJson& inner : value) complete_schema(inner, words);
  }
  if (!schema.contains("properties")) return;
  schema.emplace("type", "object");
  const OrderedJson required = schema.value("required", OrderedJson::array());
  for (auto& [name, property] : schema["properties"].items())
    if (std::find(required.begin(), required.end(), name) == required.end()) allow_null(property);
}

OrderedJson answer(const OrderedJson& description, const OrderedJson& schema, const std::string& type) {
  return {{"description", description}, {"content", {{type, {{"schema", schema}}}}}};
}

// The operation of a row of `routes`, for one of its paths.
OrderedJson operation(const OrderedJson& route, const std::string& path, const OrderedJson& errors) {
  const std::set<std::string> of_bodies = {"404", "415", "429"}, of_keys = {"401", "403"};
  const bool is_post = route["method"] == "post", is_open = route.contains("open");
  OrderedJson made = {{"summary", route["summary"]}};
  if (is_open) made["security"] = OrderedJson::array();
  if (path.ends_with('}')) {
    const std::size_t name = path.rfind('{') + 1;
    made["parameters"] = OrderedJson::array({{{"name", path.substr(name, path.size() - 1 - name)},
                                              {"in", "path"},
                                              {"required", true},
                                              {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (route.contains("request")) {
    made["requestBody"] = answer(route["summary"], route["request"], "application/json");
    made["requestBody"]["required"] = true;
  }
  OrderedJson& answers = made["responses"];
  answers["200"] = answer(route["summary"], route["answer"], route.value("type", "application/json"));
  if (route.contains("stream"))
    answers["200"]["content"]["text/event-stream"]["schema"] = {{"type", "string"}};
  const OrderedJson error = {{"$ref", kSchemas + route.value("error", "Error")}};
  const OrderedJson own = route.value("errors", OrderedJson::array());
  for (const auto& [status, text] : errors.items()) {
    const bool is_own = std::find(own.begin(), own.end(), status) != own.end();
    if (is_own || ((is_post || !of_bodies.contains(status)) && !(is_open && of_keys.contains(status))))
      answers[status] = answer(text, error, "application/json");
  }
  return made;
}

}  // namespace

OrderedJson openapi_document(const ServedModel& model, const std::string& root_path) {
  OrderedJson document = parse_ordered_json(kSource, "openapi.json");
  OrderedJson words = std::move(document["words"]);
  words.update({{"{names}", OrderedJson(model.names)},
                {"{max_n}", model.max_n},
                {"{max_prompts}", model.max_prompts},
                {"{hidden_size}", model.hidden_size},
                {"{max_logprobs}", model.sampling.max_logprobs},
                {"{max_token_id}", model.sampling.vocab_size - 1}});
  for (OrderedJson& schema : document["components"]["schemas"]) complete_schema(schema, words);
  document["info"]["version"] = QUIRE_VERSION;
  document["servers"] = OrderedJson::array({{{"url", root_path + "/"}}});
  OrderedJson& paths = document["paths"];
  for (OrderedJson& route : document["routes"]) {
    for (const char* schema : {"request", "answer"})
      if (route.contains(schema)) complete_schema(route[schema], words);
    for (const std::string path : route["paths"])
      paths[path][route["method"].get<std::string>()] = operation(route, path, document["errors"]);
  }
  for (const char* source : {"words", "routes", "errors"}) erase_key(document, source);
  return document;
}

}  // namespace quire::server
