#include <optional>
#include <utility>

#include "dialects/tool_grammar.h"
#include "server/api_error.h"
#include "server/chat_request.h"

namespace quire::server {
namespace {

using Kind = StructuredOutputs::Kind;

// As a format of structural tags.
OrderedJson to_format(const StructuredOutputs& outputs) {
  const auto parsed = [&] { return parse_text(outputs.source, outputs.name, outputs.name); };
  switch (outputs.kind) {
    case Kind::kJsonSchema:
      return {{"type", "json_schema"}, {"json_schema", parsed()}, {"pointer", outputs.name}};
    case Kind::kJsonObject:
      return {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
    case Kind::kRegex:
      return {{"type", "regex"}, {"pattern", outputs.source}};
    case Kind::kGrammar:
      return {{"type", "grammar"}, {"grammar", outputs.source}};
    case Kind::kChoice: {
      OrderedJson elements = OrderedJson::array();
      for (const OrderedJson& text : parsed())
        elements.push_back({{"type", "const_string"}, {"value", text}});
      return {{"type", "or"}, {"elements", std::move(elements)}};
    }
    case Kind::kStructuralTag:
      break;
  }
  OrderedJson tag = parsed();
  if (!tag.is_object() || tag.value("type", OrderedJson()) != "structural_tag")
    refuse(outputs.name, "must be a structural tag: an object of type structural_tag");
  return tag;
}

// What the request asks of its output behind the reasoning; nothing if that is nothing.
std::optional<StructuredOutputs> asked_of(const dialects::OutputFormat& format, ChatRequest& request) {
  const auto& asked = request.params.structured_outputs;
  StructuredOutputs held = asked ? *asked : StructuredOutputs();
  if (format.tool_calls != nullptr &&
      (request.require_call || request.strict_tools || request.one_tool_call || asked)) {
    dialects::ToolGrammarOptions options{.name = request.only_tool,
                                         .parallel = !request.one_tool_call && request.only_tool.empty(),
                                         .required = request.require_call,
                                         .reasoning = format.reasoning};
    if (asked && !request.require_call) {
      options.answer = to_format(held);
      held.parts = {*asked};
    }
    held.name = "tools";
    try {
      held.source = tool_grammar(*format.tool_calls, request.context["tools"], options);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), "tools");
    }
  } else if (!asked || format.reasoning == nullptr || format.reasoning->answer.empty()) {
    return asked ? std::optional(std::move(held)) : std::nullopt;
  } else {
    held.source = answer_grammar(*format.reasoning, to_format(held));
  }
  held.kind = Kind::kStructuralTag;
  return held;
}

}  // namespace

void hold_output(const dialects::OutputFormat& format, std::string_view prompt, ChatRequest& request) {
  SamplingParams& params = request.params;
  if (request.require_call && format.tool_calls == nullptr)
    refuse("tool_choice",
           "asks for a call, and it is not known how this model writes one; the server's --tool-call-parser "
           "says it");
  if (request.thinking_token_budget && format.reasoning == nullptr)
    refuse("thinking_token_budget",
           "is for models that reason; the server's --reasoning-parser says how this one does");
  dialects::ReasoningTags tags;
  if (format.reasoning != nullptr) tags = reasoning_tags(*format.reasoning, prompt);
  if (auto held = asked_of(format, request)) {
    // Reasoning does not begin in the middle of a message.
    if (!request.final_text || tags.begin.empty()) {
      held->free_after = tags.begin;
      held->free_until = tags.end;
    }
    params.structured_outputs = std::make_shared<const StructuredOutputs>(*std::move(held));
  }
  if (request.thinking_token_budget && !tags.end.empty())
    params.thinking_budget = {*request.thinking_token_budget, std::move(tags.begin), std::move(tags.end)};
}

}  // namespace quire::server
