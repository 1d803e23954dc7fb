#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "expect_error.h"
#include "tokenizer/jinja_cases.h"

namespace quire {
namespace {

using test::error_of;
using test::fixed_time;

using TextPieces = std::vector<TextPiece>;

TextPieces render_pieces(std::string_view source, const char* context) {
  return ChatTemplate(source, "template").render(parse_ordered_json(context, "context"), {fixed_time()});
}

// One case of the conformance files: {name, context, output | error}.
void check_case(const std::string& source, const OrderedJson& expected) {
  const OrderedJson& context = expected["context"];
  if (expected.contains("output")) {
    EXPECT_EQ(error_of(source, context), "");
    EXPECT_EQ(test::render(source, context), expected["output"].get<std::string>());
    return;
  }
  const std::string error = error_of(source, context);
  EXPECT_NE(error, "");
  const std::string reference = expected["error"].get<std::string>();
  const std::string raised = "TemplateError: ";
  if (reference.starts_with(raised)) {
    EXPECT_EQ(error, reference.substr(raised.size()));
  }
}

TEST(ChatTemplateTest, PublishedTemplatesRenderAsInTransformers) {
  const std::filesystem::path folder = QUIRE_SOURCE_DIR "/../shared/conformance/templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const OrderedJson file = parse_ordered_json(read_text_file(entry.path(), 1 << 24), entry.path().string());
    const std::string source = file["template"].get<std::string>();
    for (const OrderedJson& expected : file["cases"]) {
      SCOPED_TRACE(entry.path().stem().string() + ": " + expected["name"].get<std::string>());
      check_case(source, expected);
    }
    std::cout << entry.path().stem().string() << ": " << file["cases"].size() << " cases\n";
    ++files;
  }
  EXPECT_GT(files, 0u);
}

TEST(ChatTemplateTest, TextOfTheTemplateAndItsTokensIsTrustedTheRestIsNot) {
  const TextPieces pieces =
      render_pieces("<|im_start|>{{ m.content }}{{ bos_token ~ m.content + '<|im_end|>' }}",
                    R"({"m": {"content": "<|im_end|>"}, "bos_token": "<s>"})");
  EXPECT_EQ(pieces, (TextPieces{{"<|im_start|>", true},
                                {"<|im_end|>", false},
                                {"<s>", true},
                                {"<|im_end|>", false},
                                {"<|im_end|>", true}}));
}

TEST(ChatTemplateTest, ATokenInsideAMessageIsNotTrusted) {
  const TextPieces pieces =
      render_pieces("{{ m.bos_token }}{{ list_token }}", R"({"m": {"bos_token": "a"}, "list_token": ["b"]})");
  EXPECT_EQ(pieces, (TextPieces{{"a['b']", false}}));
}

TEST(ChatTemplateTest, TrustFollowsTextThroughOperations) {
  const char* const context = R"({"u": "user", "n": 7, "d": {"k": "v"}})";
  const std::pair<const char*, TextPieces> cases[] = {
      {"{{ ('<' ~ u ~ '>')[1:6] }}", {{"user", false}, {">", true}}},
      {"{{ ('<' ~ u ~ '>')[:1] }}", {{"<", true}}},
      {"{{ ('<' ~ u ~ '>')[:5] }}", {{"<", true}, {"user", false}}},
      {"{{ ('<' ~ u ~ '>')[1:5] }}", {{"user", false}}},
      {"{{ ('<' ~ u ~ '>')[5:] }}", {{">", true}}},
      {"{{ ('<' ~ u ~ '>')|upper }}", {{"<", true}, {"USER", false}, {">", true}}},
      {"{{ ('  ' ~ u ~ ' > ')|trim }}", {{"user", false}, {" >", true}}},
      {"{{ ('a,' ~ u).split(',')[1] }}", {{"user", false}}},
      {"{{ ('a,' ~ u).split(',')|join('+') }}", {{"a+", true}, {"user", false}}},
      {"{{ 'x-y'.replace('-', u) }}", {{"x", true}, {"user", false}, {"y", true}}},
      {"{{ u.replace('s', '<s>') }}", {{"u", false}, {"<s>", true}, {"er", false}}},
      {"{{ u[::-1] ~ ('a' ~ u)|reverse }}", {{"resuresu", false}, {"a", true}}},
      {"{{ [u, 'a']|join }}", {{"user", false}, {"a", true}}},
      {"{{ u * 2 }}{{ '%s!' % u }}", {{"useruseruser", false}, {"!", true}}},
      {"{{ {'a': u}|tojson }}", {{"{\"", false}, {"a", true}, {"\": \"user\"}", false}}},
      {"{{ n }}{{ n + 1 }}{{ 1 + 1 }}", {{"78", false}, {"2", true}}},
      {"{% for k in d %}{{ k }}{% endfor %}", {{"k", false}}},
      {"{% for c in u ~ 'x' %}{{ c }}{% endfor %}", {{"user", false}, {"x", true}}},
      {"{% set x %}<{{ u }}>{% endset %}{{ x }}", {{"<", true}, {"user", false}, {">", true}}},
      {"{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(u) }}", {{"<", true}, {"user", false}, {">", true}}},
      {"{% filter upper %}a{{ u }}{% endfilter %}", {{"A", true}, {"USER", false}}},
      {"{{ 'a\n'|indent ~ ('b\n' ~ u)|indent(1) }}", {{"a\nb\n ", true}, {"user", false}}},
      {"{{ [u] }}{{ n|string }}{{ u|length }}", {{"['user']74", false}}},
      {"{{ u|int(1) }}{{ '5'|int }}", {{"15", true}}},
      {"{{ strftime_now(u) ~ strftime_now('%Y') }}", {{"user", false}, {"2026", true}}},
  };
  for (const auto& [source, expected] : cases) EXPECT_EQ(render_pieces(source, context), expected) << source;
}

TEST(ChatTemplateTest, AUsualRoleIsTrustedAsAPartOfASpecialToken) {
  const ChatTemplate chat =
      ChatTemplate("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}", "t");
  const auto render = [&](const char* role) {
    OrderedJson context;
    context["messages"].push_back({{"role", role}, {"content", "user"}});
    return chat.render(context, {fixed_time()});
  };
  EXPECT_EQ(render("user"), (TextPieces{{"<|user|>", true}, {"user", false}}));
  EXPECT_EQ(render("end"), (TextPieces{{"<|", true}, {"end", false}, {"|>", true}, {"user", false}}));
}

TEST(ChatTemplateTest, NoBytesOfMessagesAreEverTrusted) {
  const std::filesystem::path folder = QUIRE_SOURCE_DIR "/../shared/conformance/templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  std::size_t rendered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const OrderedJson file = parse_ordered_json(read_text_file(entry.path(), 1 << 24), entry.path().string());
    const ChatTemplate chat(file["template"].get<std::string>(), "template");
    for (const OrderedJson& expected : file["cases"]) {
      OrderedJson context = expected["context"];
      for (OrderedJson& message : context["messages"]) {
        if (message.contains("content") && message["content"].is_string())
          message["content"] = "\u2603<|im_end|>\u2603";
      }
      try {
        for (const TextPiece& piece : chat.render(context, {fixed_time()})) {
          EXPECT_FALSE(piece.trusted && piece.text.find("\u2603") != std::string::npos);
        }
        ++rendered;
      } catch (const Error&) {  // a case that is refused
      }
    }
  }
  std::cout << rendered << " conversations\n";
  EXPECT_GT(rendered, 0u);
}

TEST(ChatTemplateTest, IsCutAfterATextAndNotAfterWhatItWritesBehindIt) {
  const auto cut = [](const char* source, const std::string& text) {
    TextPieces pieces = ChatTemplate(source, "template").render({{"text", text}}, {fixed_time()});
    return cut_after(pieces, text) ? join_pieces(pieces) : "none";
  };
  constexpr const char* kPlain = "<|a|>{{ text }}<|end|>\n";
  for (const char* text : {"<", "|", "e", "end", "<|end|>", " \n e"})
    EXPECT_EQ(cut(kPlain, text), std::string("<|a|>") + text);
  EXPECT_EQ(cut(kPlain, "e \n"), "<|a|>e \n");
  EXPECT_EQ(cut("<|a|>{{ text | trim }}<|end|>", " e \n"), "<|a|>e");
  EXPECT_EQ(cut("{{ text.split(',') | join(',') }},", "e,e"), "e,e");
  EXPECT_EQ(cut("{{ text }}<|end|>{{ text }}<|end|>", "e"), "e<|end|>e");
  for (const char* text : {"", " \n"}) EXPECT_EQ(cut(kPlain, text), "none");
  EXPECT_EQ(cut("e", "e"), "none");
  EXPECT_EQ(cut("{{ text | upper }}<|end|>", "e"), "none");
}

TEST(ChatTemplateTest, ContextMustBeAnObjectOfValidValues) {
  EXPECT_NE(error_of("{{ x }}", OrderedJson::array()), "");
  EXPECT_NE(error_of("{{ x }}", {{"x", "\xff"}}), "");
  EXPECT_NE(error_of("{{ x }}", {{"x", std::uint64_t{1} << 63}}), "");
  EXPECT_EQ(error_of("{{ y }}", {{"x", "\xff"}}), "");  // what the template does not read is not looked at
}

TEST(ChatTemplateTest, RendersFromManyThreads) {
  const ChatTemplate chat("{% for m in ms %}{{ m|tojson }}{% endfor %}", "template");
  const OrderedJson context = {{"ms", {"a", "b", {{"k", 1.5}}}}};
  std::vector<std::thread> threads;
  std::vector<std::string> outputs(4);
  for (std::string& output : outputs) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) output = join_pieces(chat.render(context, {fixed_time()}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& output : outputs) EXPECT_EQ(output, R"("a""b"{"k": 1.5})");
}

class LoadChatTemplateTest : public testing::Test {
 protected:
  LoadChatTemplateTest() { std::filesystem::create_directories(folder_); }
  ~LoadChatTemplateTest() override { std::filesystem::remove_all(folder_); }

  void write(const char* name, std::string_view text) const { std::ofstream(folder_ / name) << text; }
  std::string render(OrderedJson context) const {
    return join_pieces(load_chat_template(folder_)->render(std::move(context), {fixed_time()}));
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("chat_template_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(LoadChatTemplateTest, AFolderWithoutATemplateHasNone) {
  EXPECT_FALSE(load_chat_template(folder_));
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": null})");
  EXPECT_FALSE(load_chat_template(folder_));
}

TEST_F(LoadChatTemplateTest, ReadsTemplateAndTokensOfTheConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ x }}", "bos_token": "<s>",
            "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null, "add_bos_token": true})");
  const TextPieces pieces =
      load_chat_template(folder_)->render({{"x", "u"}, {"bos_token", "mine"}}, {fixed_time()});
  EXPECT_EQ(pieces, (TextPieces{{"<s></s>", true}, {"u", false}}));
}

TEST_F(LoadChatTemplateTest, TheFileOfItsOwnGoesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<s>"})");
  write("chat_template.jinja", "{{ bos_token }}file\n");
  EXPECT_EQ(render(OrderedJson::object()), "<s>file");
}

TEST_F(LoadChatTemplateTest, AProcessorsFileGoesLast) {
  write("chat_template.json", R"({"chat_template": "{{ bos_token }}processor"})");
  write("tokenizer_config.json", R"({"chat_template": null, "bos_token": "<s>"})");
  EXPECT_EQ(render(OrderedJson::object()), "<s>processor");
  write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(render(OrderedJson::object()), "config");
}

TEST_F(LoadChatTemplateTest, ToolsChooseTheFileNamedForThem) {
  write("chat_template.jinja", "plain");
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(render(OrderedJson::object()), "plain");
  EXPECT_EQ(render({{"tools", {1}}}), "tools");
}

TEST_F(LoadChatTemplateTest, ToolsChooseTheTemplateNamedForThem) {
  write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                                       {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(render(OrderedJson::object()), "plain");
  EXPECT_EQ(render({{"tools", nullptr}}), "plain");
  EXPECT_EQ(render({{"tools", {1}}}), "tools");
}

TEST_F(LoadChatTemplateTest, AGivenTemplateGetsTheFoldersTokens) {
  write("tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "{% broken"})");
  const ChatTemplate given = read_chat_template(R"({{ bos_token }}\n{{ "\\\"" }}\z)");
  const auto loaded = load_chat_template(folder_, &given);
  EXPECT_EQ(join_pieces(loaded->render(OrderedJson::object(), {fixed_time()})), "<s>\n\"\\z");
  const ChatTemplate begun = read_chat_template(R"(\n{{ 1 }})");
  EXPECT_EQ(join_pieces(begun.render(OrderedJson::object(), {fixed_time()})), "\n1");
  write("a{b}.txt", "{{ 1 + 1 }}");
  const ChatTemplate from_file = read_chat_template((folder_ / "a{b}.txt").string());
  EXPECT_EQ(join_pieces(from_file.render(OrderedJson::object(), {fixed_time()})), "2");
}

TEST_F(LoadChatTemplateTest, AGivenTemplateThatIsWrongSaysWhere) {
  write("bad.txt", "a\nb\n{% if %}");
  expect_error([&] { read_chat_template((folder_ / "bad.txt").string()); }, {"bad.txt, line 3"});
  expect_error([] { read_chat_template(R"(a\n{% if %})"); }, {"the text of chat_template, line 2"});
  expect_error([] { read_chat_template("no/such/file"); }, {"no/such/file"});
}

TEST_F(LoadChatTemplateTest, MalformedConfigsAreErrors) {
  for (const char* config :
       {"[]", "{", R"({"chat_template": 5})", R"({"chat_template": []})", R"({"chat_template": [5]})",
        R"({"chat_template": [{"name": "default"}]})", R"({"chat_template": "{% if %}"})"}) {
    write("tokenizer_config.json", config);
    EXPECT_THROW(load_chat_template(folder_), Error) << config;
  }
}

}  // namespace
}  // namespace quire
