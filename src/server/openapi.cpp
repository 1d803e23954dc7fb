#include "server/openapi.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace quire::server {
namespace {

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

// Everywhere within: limits have their values, what has properties is an object, and optional ones may be
// null.
void complete_schemas(OrderedJson& value, const OrderedJson& limits) {
  if (value.is_string() && limits.contains(value.get_ref<const std::string&>()))
    value = OrderedJson(limits[value.get_ref<const std::string&>()]);
  if (!value.is_structured()) return;
  for (OrderedJson& inner : value) complete_schemas(inner, limits);
  if (!value.is_object() || !value.contains("properties")) return;
  value.emplace("type", "object");
  const OrderedJson required = value.value("required", OrderedJson::array());
  for (auto& [name, schema] : value["properties"].items())
    if (std::find(required.begin(), required.end(), name) == required.end()) allow_null(schema);
}

OrderedJson answer(const OrderedJson& description, const OrderedJson& schema, const std::string& type) {
  return {{"description", description}, {"content", {{type, {{"schema", schema}}}}}};
}

// The operation of a row of `routes`.
OrderedJson operation(const OrderedJson& route, const OrderedJson& errors) {
  const std::set<std::string> of_bodies = {"404", "415", "429"}, of_keys = {"401", "403"};
  const bool is_post = route["method"] == "post", is_open = route.contains("open");
  OrderedJson made = {{"summary", route["summary"]}};
  if (is_open) made["security"] = OrderedJson::array();
  if (const std::string path = route["path"]; path.ends_with('}')) {
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
  const OrderedJson error = {{"$ref", route.value("error", "#/components/schemas/Error")}};
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
  const OrderedJson limits = {{"{names}", OrderedJson(model.names)},
                              {"{max_n}", model.max_n},
                              {"{max_prompts}", model.max_prompts},
                              {"{hidden_size}", model.hidden_size},
                              {"{max_logprobs}", model.sampling.max_logprobs},
                              {"{max_token_id}", model.sampling.vocab_size - 1}};
  complete_schemas(document, limits);
  document["info"]["version"] = QUIRE_VERSION;
  document["servers"] = OrderedJson::array({{{"url", root_path + "/"}}});
  OrderedJson& paths = document["paths"];
  for (const OrderedJson& route : document["routes"])
    paths[route["path"].get<std::string>()][route["method"].get<std::string>()] =
        operation(route, document["errors"]);
  document.erase("routes");
  document.erase("errors");
  return document;
}

}  // namespace quire::server
