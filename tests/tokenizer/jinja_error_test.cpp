#include "expect_error.h"
#include "tokenizer/jinja_cases.h"

namespace quire {
namespace {

using test::error_of;
using test::render;

std::string repeat(std::string_view part, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += part;
  return text;
}

// Every one must end soon, within the memory that the step budget allows, and without overflowing the stack.
TEST(JinjaLimitsTest, DeepSourceIsRefused) {
  constexpr std::size_t kDeep = 6000;
  const std::string sources[] = {
      "{{ " + repeat("(", kDeep) + "1" + repeat(")", kDeep) + " }}",
      "{{ " + repeat("[", kDeep) + repeat("]", kDeep) + " }}",
      "{{ " + repeat("{1:", kDeep) + "1" + repeat("}", kDeep) + " }}",
      repeat("{% if 1 %}", kDeep) + repeat("{% endif %}", kDeep),
      repeat("{% macro f() %}", kDeep) + repeat("{% endmacro %}", kDeep),
      "{{ " + repeat("not ", kDeep) + "1 }}",
      "{{ " + repeat("-", kDeep) + "1 }}",
      "{{ " + repeat("1 if 0 else ", kDeep) + "1 }}",
      "{{ " + repeat("1 + ", kDeep) + "1 }}",
      "{{ " + repeat("1 and ", kDeep) + "1 }}",
      "{{ a" + repeat(".b", kDeep) + " }}",
      "{{ a" + repeat("[0]", kDeep) + " }}",
      "{{ a" + repeat("()", kDeep) + " }}",
      "{{ a" + repeat("|trim", kDeep) + " }}",
      "{{ a" + repeat(" is eq a", kDeep) + " }}",
      "{% set " + repeat("(", kDeep) + "a" + repeat(")", kDeep) + " = 1 %}",
  };
  for (const std::string& source : sources) EXPECT_NE(error_of(source), "") << source.substr(0, 40);
}

TEST(JinjaLimitsTest, SourceBeyondItsLimitIsRefused) {
  const ChatTemplateLimits limits{.max_source_bytes = 10};
  EXPECT_EQ(render("0123456789", OrderedJson::object(), limits), "0123456789");
  EXPECT_NE(error_of("0123456789a", OrderedJson::object(), limits), "");
}

TEST(JinjaLimitsTest, RunawayTemplatesEndWithAnError) {
  const char* const sources[] = {
      "{{ 'a' * 99999999999 }}",
      "{{ [0] * 99999999999 }}",
      "{{ 'ab' * 9223372036854775807 }}",
      "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s * 10 %}{% endfor %}",
      "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      "{{ range(99999999999) }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{{ f() }}",
      "{{ 9 ** 999999999 }}",
      "{{ 9.0 ** 999999999 }}",
      "{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
      "ns.l|tojson }}",
      "{% set ns = namespace(l=(1,)) %}{% for i in range(90) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ "
      "{ns.l: 1} }}",
      "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
      "{{ [[[[1]]]]|tojson(indent=999999999) }}",
      "{{ 'a\nb'|indent(9999999999) }}",
      "{{ [1]|batch(99999999999, 0)|list }}",
      "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}",
      "{% set a = 'a' * 1000000 %}{{ a.join(a) }}",
      "{% set a = 'a' * 1000000 %}{% for i in range(9999) %}{{ ('a' * 99999 ~ 'b') in a }}{% endfor %}",
      "{% set a = 'a' * 100000 %}{{ (a ~ 'b').strip(a) }}",
      "{% set t = ('a' * 100000,) * 1000 %}{% for i in range(9999) %}{{ t[0].startswith(t) }}{% endfor %}",
      "{{ strftime_now('%99999999d') }}",
      "{{ '%.9999999f' % 1 }}",
      "{{ '%.99999999999f' % 1 }}",
      "{{ '%.-5f' % 1 }}",
      "{{ ('%.99f' * 1000000) % ((1.5,) * 1000000) }}",
      "{{ strftime_now('a\\u0000') }}",
  };
  for (const char* source : sources) EXPECT_NE(error_of(source), "") << source;
}

TEST(JinjaLimitsTest, ACancelledRenderEndsSoon) {
  const std::string endless =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  const ChatTemplate chat(endless, "template", {.max_steps = 1 << 20});
  int looks = 0;
  const RenderOptions options{.is_cancelled = [&] { return ++looks == 3; }};
  expect_error([&] { chat.render(OrderedJson::object(), options); }, {"cancelled"});
  EXPECT_EQ(looks, 3);
}

TEST(JinjaErrorTest, WhatIsUndefinedIsNamedOnEitherSideOfAnOperator) {
  for (const char* source : {"{{ missing + 1 }}", "{{ 1 + missing }}"})
    EXPECT_THAT(error_of(source), testing::HasSubstr("'missing' is undefined")) << source;
}

TEST(JinjaLimitsTest, FiltersThatApplyThemselvesAreBounded) {
  EXPECT_NE(error_of("{{ 'a'|map(" + repeat("'map',", 2000) + "'upper')|list }}"), "");
}

TEST(JinjaLimitsTest, OutputAndStepsEndAtTheirLimits) {
  const OrderedJson context = OrderedJson::object();
  const ChatTemplateLimits limits{.max_steps = 100, .max_output_bytes = 4};
  EXPECT_EQ(render("{{ 'abcd' }}", context, limits), "abcd");
  EXPECT_NE(error_of("{{ 'abcde' }}", context, limits), "");
  EXPECT_EQ(render("{% for i in range(4) %}{% endfor %}", context, limits), "");
  EXPECT_NE(error_of("{% for i in range(50) %}{% endfor %}", context, limits), "");
  EXPECT_EQ(render("{{ ([''] * 20)|join }}", context, limits), "");
  EXPECT_NE(error_of("{{ ([''] * 45)|join }}", context, limits), "");  // two steps an item
}

TEST(JinjaLimitsTest, TextInAListIsChargedByItsLength) {
  const ChatTemplateLimits limits{.max_steps = 900};
  const OrderedJson context = {{"s", std::string(64000, 'x')}};  // 250 steps each time
  EXPECT_EQ(error_of("{{ s }}", context, limits), "");           // it is taken over, and put out
  EXPECT_NE(error_of("{{ [s] }}", context, limits), "");  // and joined to what is around it, and quoted
}

TEST(JinjaLimitsTest, DeepContextIsRefused) {
  OrderedJson deep = 1;
  for (int i = 0; i < 500; ++i) deep = OrderedJson::array({std::move(deep)});
  OrderedJson context = OrderedJson::object();
  context["deep"] = std::move(deep);
  EXPECT_NE(error_of("{{ deep }}", context), "");
}

TEST(JinjaLimitsTest, AReasonablyRecursiveMacroWorks) {
  EXPECT_EQ(render("{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(20) }}",
                   {{"x", 1}}),
            "2019181716151413121110987654321");
}

TEST(JinjaErrorTest, NamesTemplateAndLine) {
  EXPECT_EQ(error_of("a\n{{ 1 / 0 }}"), "template, line 2: division by zero");
  EXPECT_EQ(error_of("\n\n{% if %}"), "template, line 3: expected an expression, found ''");
  EXPECT_EQ(error_of("{{ x.y }}"), "template, line 1: 'x' is undefined");
}

TEST(JinjaErrorTest, AnItemOfADictHasALineOfItsOwn) {
  EXPECT_EQ(error_of("{{ {'a': 1,\n[1]: 2,\n'c': 3} }}"), "template, line 2: unhashable type: 'list'");
  EXPECT_EQ(error_of("{{ {'a': 1,\n[1]: 1 / 0} }}"), "template, line 2: division by zero");
}

TEST(JinjaErrorTest, WhatATemplateRaisesIsItsOwnMessage) {
  EXPECT_EQ(error_of("\n{{ raise_exception('no {} here: ' ~ 5) }}"), "no {} here: 5");
}

TEST(JinjaErrorTest, IntegersStayIn64Bits) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}", "{{ 10 ** 30 }}",
        "{{ 9223372036854775807 * 2 }}", "{{ 9223372036854775808 }}", "{{ ('9' * 30) | int }}",
        "{{ (-9223372036854775807 - 1) // -1 }}", "{{ -(-9223372036854775807 - 1) }}"}) {
    EXPECT_NE(error_of(source), "") << source;
  }
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) % -1 }}", OrderedJson::object()), "0");
}

TEST(JinjaErrorTest, SourceMustBeUtf8) { EXPECT_NE(error_of("a\xff"), ""); }

constexpr const char* kRefused[] = {
    "{{ 1 / 0 }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ 1.0 / 0 }}",
    "{{ 0 ** -1 }}",
    "{{ {[1]: 2} }}",
    "{{ \"a\" + 1 }}",
    "{{ 1 + \"a\" }}",
    "{{ \"a\" + none }}",
    "{{ \"a\" - \"b\" }}",
    "{{ \"ab\" * 1.5 }}",
    "{{ [1] + (2,) }}",
    "{{ \"%s\" % (1, 2) }}",
    "{{ \"%s %s\" % 1 }}",
    "{{ \"%d\" % \"a\" }}",
    "{{ missing }}|{{ missing.x }}",
    "{{ missing[\"x\"] }}",
    "{{ missing() }}",
    "{{ missing + 1 }}",
    "{{ 1 + missing }}",
    "{{ missing < 1 }}",
    "{{ -missing }}",
    "{{ missing|tojson }}",
    "{{ missing|int }}",
    "{{ missing|float }}",
    "{{ missing|indent }}",
    "{{ missing|dictsort }}",
    "{{ missing in \"abc\" }}",
    "{{ 1 in \"abc\" }}",
    "{{ none in \"abc\" }}",
    "{{ 1 in none }}",
    "{{ 1 in 5 }}",
    "{{ d.zzz.y }}",
    "{{ l[5].x }}",
    "{{ none.x.y }}",
    "{{ s.nosuch() }}",
    "{{ l.append(4) }}",
    "{{ d.pop(\"a\") }}",
    "{{ d.update({}) }}",
    "{{ l.sort() }}",
    "{{ d.get([]) }}",
    "{{ l.index(9) }}",
    "{{ s[::0] }}",
    "{{ s[\"a\":] }}|{{ d[1:2] }}",
    "{{ d[1:2].x }}",
    "{{ 1 < \"a\" }}",
    "{{ none < 1 }}",
    "{{ [1] < (1,) }}",
    "{{ {} < {} }}",
    "{{ [] in d }}",
    "{{ (\"y\" if not b).x }}",
    "{{ \"a\".strip(1) }}",
    "{{ \"a\".split(\"\") }}",
    "{{ s.startswith(1) }}",
    "{{ s.startswith([\"H\"]) }}",
    "{{ s.replace(\"l\", 1) }}",
    "{{ s.index(\"z\") }}",
    "{{ \",\".join([1]) }}",
    "{{ \",\".join(1) }}",
    "{{ 5|join }}",
    "{{ (e|first).x }}",
    "{{ 5|first }}",
    "{{ 5|length }}",
    "{{ none|length }}",
    "{{ l|map(\"string\")|length }}",
    "{{ [1, \"a\"]|sort }}",
    "{{ [none, 1]|sort }}",
    "{{ [[1],[1]]|unique|list }}",
    "{{ 5|reverse }}",
    "{{ l|map(\"nope\")|list }}",
    "{{ l|map|list }}",
    "{{ l|select(\"nope\")|list }}",
    "{{ [1]|items|list }}",
    "{{ l|dictsort }}",
    "{{ {\"b\":1}|dictsort(by=\"zz\") }}",
    "{{ -5|abs }} {{ (-5)|abs }} {{ (-2.5)|abs }} {{ -s|length }}",
    "{{ 5|indent }}",
    "{{ {(1,2): 1}|tojson }}",
    "{{ range(3)|tojson }}",
    "{{ d.items()|tojson }}",
    "{{ l|map(\"string\")|tojson }}",
    "{{ tojson(d) }}",
    "{{ d|tojson(foo=1) }}",
    "{{ s is nope }}",
    "{% if true %}{{ s|nope }}{% endif %}",
    "{{ s|nope }}",
    "{{ 1 is defined is defined }}",
    "{{ range(1000000) }}",
    "{{ range(1,2,0) }}",
    "{{ range(\"a\") }}",
    "{{ dict([1]) }}",
    "{% set a, b = 1, 2, 3 %}",
    "{% set a, b = 5 %}",
    "{% set d2 = {} %}{% set d2.x = 1 %}",
    "{% set q.x = 1 %}",
    "{% for i in l %}{{ loop.previtem.x }}{% endfor %}",
    "{% for k, v in l %}{% endfor %}",
    "{% for i in 5 %}{% endfor %}",
    "{% for i in none %}{% endfor %}",
    "{% break %}",
    "{% for loop in l %}{% endfor %}",
    "{{ (l|map(\"string\"))|last }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(q=2) }}",
    "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}",
    "{% macro m() %}<>{% endmacro %}{% call m() %}in{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{{ m(1) }}{% macro m(a) %}{{ a }}{% endmacro %}",
    "{% macro m(a, b=1, c) %}{% endmacro %}",
    "{% generation %}{% break %}{% endgeneration %}",
    "a{# unclosed",
    "{{ \"a\" }",
    "{{ 1 + }}",
    "{% if %}{% endif %}",
    "{% if 1 %}",
    "{% endif %}",
    "{% nope %}",
    "{% for x in l %}{% endif %}",
    "{{ [1, 2 }}",
    "{{ (1, 2] }}",
    "{{ \"a }}",
    "{{ 'a\" }}",
    "{{ @ }}",
    "{{ a b }}",
    "{{ }}",
    "{{ f(1 2) }}",
    "{{ f(a=1, 2) }}",
    "{{ f(a=1, a=2) }}",
    "{{ 08 }}",
    "{{ [,] }}",
    "{{ l. 1.5 }}",
    "{{ l. 1e0 }}",
    "{{ x.y.z }}",
    "{{ -\"a\" }}",
    "{{ \"a\"|upper ~ \"b\"|upper }} {{ 1 ~ 2 + 3 }} {{ \"a\" ~ 2 * 3 }} {{ 1 + 2 ~ 3 }}",
    "{{ loop.index }}",
    "{% set true = 1 %}",
    "{% set x.y.z = 1 %}",
    "{{ 1 if }}",
    "{{ \"x\" * 100 | length }}",
    "{{ \"a\\",
    "{{ '\\x4' }}",
    "{% include \"x\" %}",
    "{% extends \"x\" %}",
    "{% import \"x\" as y %}",
    "{% do l %}",
    "{{ s.__class__.__mro__ }}",
    "{{ (1).__add__(2) }}",
    "{{ 10.0 ** 400 }}",
    "{{ \"x\" if missing else \"y\" }} {{ \"x\" if missing.y is defined else \"y\" }}",
};

TEST(JinjaErrorTest, RefusesWhatJinjaRefuses) {
  const OrderedJson context = test::case_context();
  for (const char* source : kRefused) EXPECT_NE(error_of(source, context), "") << source;
}

}  // namespace
}  // namespace quire
