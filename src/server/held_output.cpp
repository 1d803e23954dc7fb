#include "server/held_output.h"

#include <utility>

#include "dialects/tool_grammar.h"
#include "server/api_error.h"

namespace quire::server {
namespace {

using Kind = StructuredOutputs::Kind;

// As a format of structural tags.
OrderedJson to_format(const StructuredOutputs& outputs) {
  const auto parsed = [&] { return parse_text(outputs.source, "structured_outputs", "structured_outputs"); };
  switch (outputs.kind) {
    case Kind::kJsonSchema:
      return {{"type", "json_schema"}, {"json_schema", parsed()}};
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
  const OrderedJson tag = parsed();
  return JsonFields(to_object(tag, "structural_tag"), "structural_tag").required("format");
}

}  // namespace

void hold_output(const dialects::OutputFormat& format, std::string_view prompt, ChatRequest& request) {
  auto& asked = request.params.structured_outputs;
  const bool tools = request.require_call || request.strict_tools || request.one_tool_call || asked;
  if (request.require_call && format.tool_calls == nullptr)
    refuse("tool_choice",
           "tool_choice asks for a call, and it is not known how this model writes one; the "
           "server's --tool-call-parser says it");
  StructuredOutputs held = asked ? *asked : StructuredOutputs();
  if (format.tool_calls != nullptr && tools) {
    dialects::ToolGrammarOptions options{.name = request.only_tool,
                                         .parallel = !request.one_tool_call,
                                         .required = request.require_call,
                                         .reasoning = format.reasoning};
    if (asked && !request.require_call) options.answer = to_format(held);
    held.kind = Kind::kStructuralTag;
    try {
      held.source = tool_grammar(*format.tool_calls, request.context["tools"], options);
    } catch (const Error& e) {
      throw ApiError(400, e.what(), "tools");
    }
  } else if (!asked) {
    return;
  } else if (format.reasoning != nullptr && !format.reasoning->answer.empty()) {
    held.source = answer_grammar(*format.reasoning, to_format(held));
    held.kind = Kind::kStructuralTag;
  }
  if (format.reasoning != nullptr) {
    dialects::ReasoningTags tags = reasoning_tags(*format.reasoning, prompt);
    held.free_after = std::move(tags.begin);
    held.free_until = std::move(tags.end);
  }
  asked = std::make_shared<const StructuredOutputs>(std::move(held));
}

}  // namespace quire::server
