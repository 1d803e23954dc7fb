#include "server/chat_request.h"

#include "protocol_fixtures.h"

namespace quire::server {
namespace {

using test::error_of;
using test::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kUser = R"([{"role": "user", "content": "hi"}])";
constexpr const char* kChatMl =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";
constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": {"b": 2}}}})";

ChatRequest parse_chat(const std::string& body, ContentFormat format = ContentFormat::kText) {
  ServedModel model = test::served_model();
  model.content_format = format;
  return parse_chat_request(parse_body(body), model);
}
std::string body_with(const std::string& messages, const std::string& fields = "") {
  return R"({"messages": )" + messages + (fields.empty() ? "" : ", " + fields) + "}";
}
ChatRequest chat_with(const std::string& fields) { return parse_chat(body_with(kUser, fields)); }
ApiError chat_error(const std::string& fields) {
  return error_of([&] { chat_with(fields); });
}
ApiError error_of_messages(const std::string& messages) {
  return error_of([&] { parse_chat(body_with(messages)); });
}
// The messages as a template gets them.
std::string messages(const std::string& given, ContentFormat format = ContentFormat::kText) {
  return parse_chat(body_with(given), format).context["messages"].dump();
}
CheckpointChatTemplate chat_template(const char* source) {
  return {ChatTemplate(source, "/secret/path/chat_template.jinja"), {}, json(R"({"bos_token": "<s>"})")};
}
std::string rendered(const ChatRequest& request, const char* source = kChatMl) {
  return join_pieces(render_chat(request, chat_template(source), {}));
}

TEST(ChatMessagesTest, ContentIsATextWhateverItCameAs) {
  EXPECT_EQ(messages(kUser), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(
      messages(
          R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])"),
      R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": null}])"),
            R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(messages(R"([{"role": "assistant"}])"), R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(messages(R"([{"role": "user", "content": []}])"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(messages(R"([{"role": "user", "content": ["x", {"type": "input_text", "text": "y"},
                          {"type": "refusal", "refusal": "z"}]}])"),
            R"([{"role":"user","content":"x\ny\nz"}])");
}

TEST(ChatMessagesTest, OrAListOfPartsWhereTheTemplateWantsThat) {
  EXPECT_EQ(messages(kUser, ContentFormat::kParts),
            R"([{"role":"user","content":[{"type":"text","text":"hi"}]}])");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": null}])", ContentFormat::kParts),
            R"([{"role":"assistant","content":[]}])");
}

TEST(ChatMessagesTest, WhatIsNoTextIsRefusedByName) {
  const ApiError image = error_of_messages(
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://x"}}]}])");
  EXPECT_EQ(image.status, 400);
  EXPECT_EQ(image.param, "messages[0].content[1].type");
  EXPECT_THAT(image.what(), HasSubstr("image_url"));
  for (const char* content :
       {"3", "true", "{}", "[3]", "[null]", "[{\"type\": \"text\"}]", "[{\"type\": 3}]",
        "[{\"type\": \"text\", \"text\": 3}]", "[{\"type\": \"input_audio\"}]", "[[]]"}) {
    const ApiError error =
        error_of_messages(R"([{"role": "user", "content": )" + std::string(content) + "}]");
    EXPECT_EQ(error.status, 400) << content;
    EXPECT_THAT(error.param, StartsWith("messages[0].content")) << content;
  }
}

TEST(ChatMessagesTest, ARoleIsAnyTextAndTheTemplatesToJudge) {
  for (const char* role : {"system", "user", "assistant", "tool", "function", "ipython", "robot 2"})
    EXPECT_THAT(messages(R"([{"role": ")" + std::string(role) + R"(", "content": "x"}])"), HasSubstr(role));
  EXPECT_EQ(messages(R"([{"role": "developer", "content": "x"}])"), R"([{"role":"system","content":"x"}])");
  for (const char* message :
       {R"({"role": 3, "content": "x"})", R"({"role": ["user"]})", R"({"content": "x"})", "3", "null"})
    EXPECT_THAT(error_of_messages("[" + std::string(message) + "]").param, StartsWith("messages[0]"))
        << message;
}

TEST(ChatMessagesTest, ThereIsAtLeastOne) {
  for (const char* none : {"[]", "null", "{}", "\"hi\"", "3"})
    EXPECT_EQ(error_of_messages(none).param, "messages") << none;
  EXPECT_EQ(error_of([] { parse_chat("{}"); }).param, "messages");
}

TEST(ChatMessagesTest, ToolCallsHaveTheirArgumentsAsObjects) {
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": null, "tool_calls": [
              {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": [2]}"}},
              {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {"b": 1}}},
              {"id": "c3", "type": "function", "function": {"name": "h", "arguments": ""}},
              {"id": "c4", "type": "function", "function": {"name": "i"}}]},
              {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"}])"),
            R"([{"role":"assistant","content":"","tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}},)"
            R"({"id":"c2","type":"function","function":{"name":"g","arguments":{"b":1}}},)"
            R"({"id":"c3","type":"function","function":{"name":"h","arguments":{}}},)"
            R"({"id":"c4","type":"function","function":{"name":"i","arguments":{}}}]},)"
            R"({"role":"tool","content":"42","name":"f","tool_call_id":"c1"}])");
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "x", "tool_calls": []}])"),
            R"([{"role":"assistant","content":"x"}])");
}

TEST(ChatMessagesTest, MalformedToolCallsAreRefused) {
  const std::string deep = R"({\"a\":)" + std::string(70, '[') + std::string(70, ']') + "}";
  for (const std::string& call :
       {std::string("3"), std::string("{}"), std::string(R"({"function": 3})"),
        std::string(R"({"function": {}})"), std::string(R"({"function": {"name": ""}})"),
        std::string(R"({"function": {"name": "f", "arguments": "{"}})"),
        std::string(R"({"function": {"name": "f", "arguments": "3"}})"),
        std::string(R"({"function": {"name": "f", "arguments": [1]}})"),
        R"({"function": {"name": "f", "arguments": ")" + deep + R"("}})"}) {
    const ApiError error = error_of_messages(R"([{"role": "assistant", "tool_calls": [)" + call + "]}]");
    EXPECT_EQ(error.status, 400) << call;
    EXPECT_THAT(error.param, StartsWith("messages[0].tool_calls[0]")) << call;
  }
  EXPECT_EQ(error_of_messages(R"([{"role": "assistant", "tool_calls": {"a": 1}}])").param,
            "messages[0].tool_calls");
  EXPECT_EQ(error_of_messages(R"([{"role": "assistant", "function_call": {"name": "f"}}])").param,
            "messages[0].function_call");
}

TEST(ChatMessagesTest, ArgumentsThatAreNoJsonAreRefusedSayingWhatStandsWhere) {
  const auto message = [](const std::string& arguments) {
    const OrderedJson call = {{"function", {{"name", "f"}, {"arguments", arguments}}}};
    return std::string(
        error_of_messages(R"([{"role": "assistant", "tool_calls": [)" + call.dump() + "]}]").what());
  };
  const std::string place = "messages[0].tool_calls[0].function.arguments";
  EXPECT_EQ(message("{"), place + ": not valid JSON: it ends too early, at line 1, column 2");
  EXPECT_EQ(message("{\"a\":\n ]}"), place + ": not valid JSON: unexpected \"]\" at line 2, column 2");
  EXPECT_EQ(message("{\"a\": 1, \"a\": 2}"), place + ": the key \"a\" stands twice in one object");
  std::string many = "{\"a\":[";
  for (int i = 0; i < 1 << 21; ++i) many += "0,";
  EXPECT_EQ(message(many + "0]}"), place + ": more than 2097152 JSON values");
}

TEST(ChatMessagesTest, ReasoningHasBothOfItsNames) {
  const std::string expected =
      R"([{"role":"assistant","content":"x","reasoning":"why","reasoning_content":"why"}])";
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "x", "reasoning": "why"}])"), expected);
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "x", "reasoning_content": "why"}])"), expected);
  EXPECT_EQ(messages(R"([{"role": "assistant", "content": "x", "reasoning": null}])"),
            R"([{"role":"assistant","content":"x"}])");
}

// Otherwise what it thought between its calls would be lost to gpt-oss.
TEST(ChatMessagesTest, ReasoningBeforeCallsHasTheNameOfGptOssToo) {
  const std::string call =
      R"("tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}])";
  const std::string turns = R"([{"role": "user", "content": "hi"},
      {"role": "assistant", "content": null, "reasoning": "why", )" +
                            call + R"(},
      {"role": "tool", "tool_call_id": "c", "content": "one"}])";
  EXPECT_EQ(parse_chat(body_with(turns)).context["messages"][1]["thinking"], "why");
  const std::string beside = R"([{"role": "assistant", "content": "x", "reasoning": "why", )" + call + "}]";
  EXPECT_FALSE(parse_chat(body_with(beside)).context["messages"][0].contains("thinking"));

  const std::filesystem::path path =
      QUIRE_SOURCE_DIR "/../shared/conformance/templates/openai-gpt-oss-120b.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is absent";
  const OrderedJson file = parse_ordered_json(read_text_file(path, 1 << 24), path.string());
  EXPECT_THAT(
      rendered(parse_chat(body_with(turns)), file["template"].get_ref<const std::string&>().c_str()),
      HasSubstr("<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>analysis<|message|>why<|end|>"
                "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"x\": 1}<|call|>"
                "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"one\"<|end|>"
                "<|start|>assistant"));
}

TEST(ChatRequestTest, DefaultsAreThoseOfVllm) {
  const ChatRequest request = chat_with("\"x\": 1");
  EXPECT_FALSE(request.max_tokens);
  EXPECT_FALSE(request.params.logprobs);
  EXPECT_FALSE(request.add_special_tokens);
  EXPECT_FALSE(request.parse_tools);
  EXPECT_FALSE(request.one_tool_call);
  EXPECT_TRUE(request.include_reasoning);
  EXPECT_EQ(request.context["add_generation_prompt"], true);
  EXPECT_FALSE(request.context.contains("tools"));
}

TEST(ChatRequestTest, MaxCompletionTokensWins) {
  EXPECT_EQ(chat_with(R"("max_tokens": 5)").max_tokens, 5);
  EXPECT_EQ(chat_with(R"("max_tokens": 5, "max_completion_tokens": 7)").max_tokens, 7);
  EXPECT_EQ(chat_with(R"("max_tokens": null, "max_completion_tokens": null)").max_tokens, std::nullopt);
}

TEST(ChatRequestTest, TheOutputMayHaveTheRestOfTheContext) {
  ServedModel model = test::served_model();
  const auto make = [&](const std::string& fields) {
    const ChatRequest request = chat_with(fields);
    const auto prompt = render_chat(request, chat_template("{{ messages[0].content }}"), {});
    return make_engine_request(request, test::byte_tokenizer().encode(prompt, request.add_special_tokens),
                               model);
  };
  EXPECT_EQ(make("\"n\": 1").params.max_tokens, 62);
  EXPECT_EQ(make("\"max_tokens\": 62").params.max_tokens, 62);
  EXPECT_EQ(error_of([&] { make("\"max_tokens\": 63"); }).code, "context_length_exceeded");
  EXPECT_EQ(error_of([&] { make("\"min_tokens\": 63"); }).param, "min_tokens");
  model.default_max_tokens = 10;
  EXPECT_EQ(make("\"n\": 1").params.max_tokens, 10);
  EXPECT_EQ(make("\"max_tokens\": 20").params.max_tokens, 20);
}

TEST(ChatRequestTest, LogprobsAreAFlagAndANumber) {
  EXPECT_EQ(chat_with(R"("logprobs": true)").params.logprobs, 0);
  EXPECT_EQ(chat_with(R"("logprobs": true, "top_logprobs": 20)").params.logprobs, 20);
  EXPECT_FALSE(chat_with(R"("logprobs": false)").params.logprobs);
  EXPECT_FALSE(chat_with(R"("top_logprobs": 0)").params.logprobs);
  EXPECT_EQ(chat_error(R"("top_logprobs": 2)").param, "top_logprobs");
  EXPECT_EQ(chat_error(R"("logprobs": 2)").param, "logprobs");
}

TEST(ChatRequestTest, ToolsReachTheTemplateAsTheyCame) {
  const ChatRequest request = chat_with("\"tools\": [" + std::string(kTool) + "]");
  EXPECT_EQ(request.context["tools"], json("[" + std::string(kTool) + "]"));
  EXPECT_EQ(request.context["tools"][0]["function"]["parameters"].dump(), R"({"z":1,"a":{"b":2}})");
  EXPECT_TRUE(request.parse_tools);
  EXPECT_TRUE(
      chat_with("\"parallel_tool_calls\": false, \"tools\": [" + std::string(kTool) + "]").one_tool_call);
  EXPECT_FALSE(chat_with(R"("tools": [])").context.contains("tools"));
}

TEST(ChatRequestTest, ToolChoiceSaysWhetherAndWhatIsCalled) {
  const std::string tools = "\"tools\": [" + std::string(kTool) + "], \"tool_choice\": ";
  EXPECT_TRUE(chat_with(tools + "\"auto\"").parse_tools);
  EXPECT_FALSE(chat_with(tools + "\"auto\"").require_call);
  const ChatRequest none = chat_with(tools + "\"none\"");
  EXPECT_FALSE(none.parse_tools);
  EXPECT_TRUE(none.context.contains("tools"));
  EXPECT_FALSE(chat_with(R"("tool_choice": "auto")").parse_tools);
  const ChatRequest required = chat_with(tools + "\"required\"");
  EXPECT_TRUE(required.parse_tools && required.require_call && required.only_tool.empty());
  const ChatRequest named = chat_with(tools + R"({"type": "function", "function": {"name": "f"}})");
  EXPECT_TRUE(named.parse_tools && named.require_call);
  EXPECT_EQ(named.only_tool, "f");
  for (const char* choice : {R"({"type": "function", "function": {"name": "other"}})", R"("any")", "3", "[]",
                             "{}", R"({"type": "function"})", R"({"type": "allowed_tools"})"})
    EXPECT_EQ(chat_error(tools + choice).param, "tool_choice") << choice;
  EXPECT_THAT(chat_error(tools + R"({"type": "function", "function": {"name": "x"}})").what(),
              HasSubstr("\"x\", which is none of the tools"));
  EXPECT_EQ(chat_error(R"("tool_choice": "required")").param, "tool_choice");
  EXPECT_EQ(chat_error(R"("tool_choice": {"type": "function", "function": {"name": "f"}})").param,
            "tool_choice");
}

TEST(ChatRequestTest, WithoutToolsAChoiceOfThemIsNone) {
  for (const char* choice : {"\"auto\"", "\"none\"", "null"}) {
    EXPECT_FALSE(chat_with(format_text("\"tool_choice\": {}", choice)).parse_tools) << choice;
    EXPECT_FALSE(chat_with(format_text("\"tools\": [], \"tool_choice\": {}", choice)).require_call) << choice;
  }
}

// vLLM's: only where the output is of the last message's role.
TEST(ChatRequestTest, EchoIsTheLastMessageThatTheOutputContinues) {
  const std::string begun =
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "text", "text": "So"}]}])";
  const auto echoed = [](const std::string& messages, const std::string& fields) {
    return parse_chat(body_with(messages, fields)).echoed;
  };
  EXPECT_EQ(echoed(begun, R"("echo": true, "continue_final_message": true)"), "So");
  EXPECT_EQ(echoed(begun, R"("echo": "yes")"), "So");
  EXPECT_EQ(echoed(kUser, R"("echo": true, "add_generation_prompt": false)"), "hi");
  EXPECT_EQ(echoed(kUser, R"("echo": true)"), "");
  EXPECT_EQ(echoed(begun, R"("echo": false)"), "");
  EXPECT_EQ(chat_error(R"("echo": 2)").param, "echo");
  const std::string two = body_with(R"([{"role": "assistant", "content": ["a", "b"]}])", "\"echo\": true");
  EXPECT_EQ(parse_chat(two, ContentFormat::kParts).echoed, "a\nb") << "all of its parts";
}

TEST(ChatRequestTest, OneStrictToolIsEnough) {
  const auto tools = [](const char* strict) {
    return "\"tools\": [" + std::string(kTool) +
           R"(, {"type": "function", "function": {"name": "g", "strict": )" + strict + "}}]";
  };
  EXPECT_TRUE(chat_with(tools("true")).strict_tools);
  EXPECT_FALSE(chat_with(tools("false")).strict_tools);
  EXPECT_FALSE(chat_with(tools("null")).strict_tools);
  EXPECT_TRUE(chat_with(tools("1")).strict_tools);  // as pydantic takes it
  EXPECT_EQ(chat_error(tools("2")).param, "tools[1].function.strict");
}

TEST(ChatRequestTest, MalformedToolsAreRefused) {
  for (const char* tool :
       {"3", "{}", R"({"type": "function"})", R"({"type": "web", "function": {"name": "f"}})",
        R"({"type": "function", "function": {"name": ""}})",
        R"({"type": "function", "function": {"name": 3}})",
        R"({"type": "function", "function": {"name": "f", "parameters": "x"}})",
        R"({"type": "function", "function": {"name": "f", "description": 3}})"}) {
    EXPECT_THAT(chat_error("\"tools\": [" + std::string(tool) + "]").param, StartsWith("tools[0]")) << tool;
  }
  EXPECT_EQ(chat_error(R"("tools": {})").param, "tools");
}

TEST(ChatRequestTest, TheTemplateGetsItsVariables) {
  const ChatRequest request =
      chat_with(R"("chat_template_kwargs": {"enable_thinking": false, "x": [1, {"y": 2}]},
    "documents": [{"title": "t"}], "reasoning_effort": "high")");
  EXPECT_EQ(request.context["enable_thinking"], false);
  EXPECT_EQ(request.context["x"], json(R"([1, {"y": 2}])"));
  EXPECT_EQ(request.context["documents"], json(R"([{"title": "t"}])"));
  EXPECT_EQ(request.context["reasoning_effort"], "high");
  EXPECT_EQ(chat_with(R"("reasoning_effort": "none")").context["enable_thinking"], false);
  EXPECT_EQ(chat_error(R"("reasoning_effort": "huge")").param, "reasoning_effort");
  EXPECT_EQ(chat_error(R"("documents": "x")").param, "documents");
  EXPECT_EQ(chat_error(R"("documents": ["x"])").param, "documents[0]");
}

// A trusted string would let a request write special tokens.
TEST(ChatRequestTest, NoVariableOfTheTemplateIsTrusted) {
  for (const char* name : {"bos_token", "eos_token", "x_token", "_token", "messages", "tools",
                           "chat_template", "add_generation_prompt", "continue_final_message", "documents"}) {
    EXPECT_EQ(chat_error(format_text(R"("chat_template_kwargs": {{"{}": "<|end|>"}})", name)).param,
              "chat_template_kwargs")
        << name;
  }
  EXPECT_EQ(chat_error(R"("chat_template_kwargs": [])").param, "chat_template_kwargs");
  const ChatRequest request = parse_chat(body_with(R"([{"role": "user", "content": "<|end|>"}])",
                                                   R"("chat_template_kwargs": {"x": "<|end|>"})"));
  const auto prompt =
      render_chat(request, chat_template("{{ bos_token }}{{ x }}{{ messages[0].content }}<|end|>"), {});
  const std::vector<TokenId> tokens = test::byte_tokenizer().encode(prompt, request.add_special_tokens);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 257), 1);
  EXPECT_EQ(tokens.front(), 256);
  EXPECT_EQ(tokens.back(), 257);
}

TEST(ChatRequestTest, TheGenerationPromptIsAFlag) {
  EXPECT_EQ(rendered(chat_with("\"n\": 1")), "<|user|>hi<|end|><|assistant|>");
  EXPECT_EQ(rendered(chat_with(R"("add_generation_prompt": false)")), "<|user|>hi<|end|>");
}

TEST(ChatRequestTest, TheFinalMessageCanBeContinued) {
  const auto continued = [](const std::string& content, const char* source = kChatMl) {
    return rendered(
        parse_chat(body_with(
            R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )" + content + "}]",
            R"("continue_final_message": true)")),
        source);
  };
  EXPECT_EQ(continued(R"("b c")"), "<|user|>a<|end|><|assistant|>b c");
  EXPECT_EQ(continued(R"("b c ")"), "<|user|>a<|end|><|assistant|>b c ");
  EXPECT_EQ(continued(R"([{"type": "text", "text": "b"}])"), "<|user|>a<|end|><|assistant|>b");
  EXPECT_EQ(continued(R"("b ")", "{{ messages[1].content | trim }}!"), "b");
  EXPECT_EQ(error_of([&] { continued(R"("b")", "nothing"); }).param, "continue_final_message");
  EXPECT_EQ(error_of([&] { continued(R"("  ")"); }).param, "continue_final_message");
  EXPECT_EQ(chat_error(R"("continue_final_message": true, "add_generation_prompt": true)").param,
            "continue_final_message");
}

TEST(ChatRequestTest, AShortBeginningIsNotFoundInWhatTheTemplateWritesBehindIt) {
  for (const std::string text : {"<", "|", "e", "end"}) {
    const std::string begun =
        R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": ")" + text + "\"}]";
    EXPECT_EQ(rendered(parse_chat(body_with(begun, R"("continue_final_message": true)"))),
              "<|user|>a<|end|><|assistant|>" + text);
  }
}

TEST(ChatRequestTest, WhatTheTemplateRefusesIsTheClientsError) {
  const ApiError raised =
      error_of([] { rendered(chat_with("\"n\": 1"), "{{ raise_exception('roles must alternate') }}"); });
  EXPECT_EQ(raised.status, 400);
  EXPECT_THAT(raised.what(), HasSubstr("roles must alternate"));
  const ApiError broken = error_of([] { rendered(chat_with("\"n\": 1"), "{{ 1 + 'a' }}"); });
  EXPECT_EQ(broken.status, 400);
  EXPECT_THAT(broken.what(), HasSubstr("line 1"));
  EXPECT_THAT(broken.what(), Not(HasSubstr("/secret")));
}

TEST(ChatRequestTest, TheFormatOfContentsIsFoundByRendering) {
  EXPECT_EQ(content_format(chat_template(kChatMl)), ContentFormat::kText);
  EXPECT_EQ(
      content_format(chat_template("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}"
                                   "{% endfor %}")),
      ContentFormat::kParts);
  EXPECT_EQ(content_format(chat_template("{% for m in messages %}{% if m.content is string %}{{ m.content }}"
                                         "{% else %}{{ m.content[0].text }}{% endif %}{% endfor %}")),
            ContentFormat::kText);
  EXPECT_EQ(content_format(chat_template("{{ raise_exception('no') }}")), ContentFormat::kText);
}

TEST(ChatRequestTest, WhatDoesNotExistIsRefusedByName) {
  for (const auto& [name, value] : {std::pair{"chat_template", R"("{{ x }}")"},
                                    {"functions", R"([{"name": "f"}])"},
                                    {"function_call", R"("auto")"},
                                    {"audio", R"({"voice": "x"})"},
                                    {"modalities", R"(["text", "audio"])"},
                                    {"response_format", R"({"type": "xml"})"},
                                    {"return_token_offsets", "true"},
                                    {"return_assistant_tokens_mask", "true"},
                                    {"mm_processor_kwargs", R"({"a": 1})"}}) {
    const ApiError error = chat_error(format_text("\"{}\": {}", name, value));
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_EQ(error.param, name);
  }
  EXPECT_NO_THROW(chat_with(R"("modalities": ["text"], "echo": false, "functions": [], "chat_template": null,
                          "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u")"));
}

// What vLLM's serving benchmark sends.
TEST(ChatRequestTest, TheBenchmarkIsUnderstood) {
  const ChatRequest request = parse_chat(R"({"model": "toy", "messages": [{"role": "user", "content":
    [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 8, "stream": true,
    "stream_options": {"include_usage": true}, "ignore_eos": true})");
  EXPECT_EQ(request.max_tokens, 8);
  EXPECT_TRUE(request.include_usage);
  EXPECT_EQ(rendered(request), "<|user|>hi<|end|><|assistant|>");
}

}  // namespace
}  // namespace quire::server
