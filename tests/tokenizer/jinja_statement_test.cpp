#include "tokenizer/jinja_cases.h"

namespace quire {
namespace {

using test::Case;
using test::expect_cases;

constexpr Case kStatements[] = {
    {"{% for x in missing %}a{% else %}b{% endfor %}", "b"},
    {"{% if false %}{{ s is nope }}{{ s|nope }}{% endif %}ok", "ok"},
    {"{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}", "12"},
    {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, e2) = [3, 4] %}{{ c }}{{ e2 }}", "1234"},
    {"{% set x %}hello {{ s }}{% endset %}[{{ x }}]", "[hello Hello]"},
    {"{% set x | upper | replace(\"H\", \"J\") %}hello {{ s }}{% endset %}[{{ x }}]", "[JELLO JELLO]"},
    {"{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "7"},
    {"{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "14,12,13,1"},
    {"{% for i in l %}{% set y = i %}{% endfor %}{{ y }}|{{ i }}", "|"},
    {"{% if b %}{% set y = 1 %}{% endif %}{{ y }}", "1"},
    {"{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first "
     "}}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
     "1032TrueFalse310;2121FalseFalse310;3210FalseTrue310;"},
    {"{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }};{% endfor %}", "<3>1;3<1>2;1<2>;"},
    {"{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
     "FalseTrueTrueTrueTrueFalse"},
    {"{% for i in l %}{{ loop.cycle(\"a\",\"b\") }}{% endfor %}{% for i in [1,1,2] %}{{ loop.changed(i) }}{% "
     "endfor %}",
     "abaTrueFalseTrue"},
    {"{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% else %}none{% endfor %}",
     "1/2:3 2/2:2 "},
    {"{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}", "none"},
    {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "b=1;a={'x': [1, 2]};items=7;"},
    {"{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "b=1;a={'x': [1, 2]};items=7;"},
    {"{% for k in d %}{{ k }};{% endfor %}", "b;a;items;"},
    {"{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
    {"{% for c in \"añ😀\" %}[{{ c }}]{% endfor %}", "[a][ñ][😀]"},
    {"{% for i in l %}{% for j in l %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }};{% endfor "
     "%}",
     "1121311;1121312;1121313;"},
    {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "32"},
    {"{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "3"},
    {"{% for i in l %}{% break %}{% else %}E{% endfor %}", "E"},
    {"{% for i in l %}{% continue %}{% else %}E{% endfor %}", "E"},
    {"{% for i in l %}{% if loop.last %}{% continue %}{% endif %}{{ i }}{% else %}E{% endfor %}", "31"},
    {"{% for i in [] %}{% else %}{% set q = 1 %}{{ q }}{% endfor %}{{ q }}", "1"},
    {"{% for i in l %}{{ i }}{% endfor %}{{ loop }}", "312"},
    {"{% set g = l|map(\"string\") %}{{ g|list }}{{ g|list }}", "['3', '1', '2'][]"},
    {"{% set g = l|map(\"string\") %}{{ g|first }}{{ g|first }}{{ g|list }}", "31['2']"},
    {"{% set g = l|map(\"string\") %}{{ \"1\" in g }}{{ g|list }}", "True['2']"},
    {"{% set g = l|map(\"string\") %}{{ g[0] }}|", "|"},
    {"{% macro m(a, b=2, c=none) %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, "
     "a=4) }}{{ m() }}{{ m(1,2,3) }}",
     "[1,2,None][1,2,3][4,5,None][,2,None][1,2,3]"},
    {"{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(3) }}", "33"},
    {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "(1, 2){'x': 3}"},
    {"{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in {{ s }}{% endcall %}", "<in Hello>"},
    {"{% macro m() %}<{{ caller(\"a\", 2) }}>{% endmacro %}{% call(x, y=5, z=6) m() %}{{ x }}{{ y }}{{ z "
     "}}{% endcall %}",
     "<a26>"},
    {"{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "FalseTrue"},
    {"{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "3210"},
    {"{% macro f() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ f() }}{{ q }}", "1"},
    {"{% set q = 5 %}{% macro f() %}{{ q }}{% endmacro %}{% set q = 6 %}{{ f() }}", "6"},
    {"{% for i in l %}{% macro f() %}{{ i }}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}", "311223"},
    {"{% macro f() %}{{ loop }}{% endmacro %}{% for i in l %}{{ f() }}{% endfor %}", ""},
    {"{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1)|length }}{{ m(\"ab\") + \"c\" }}{{ m is callable }}{{ "
     "m(1) is string }}",
     "1abcTrueTrue"},
    {"{% filter upper %}abc {{ s }}{% endfilter %} {% filter replace(\"a\", \"b\")|title %}aa{% endfilter %}",
     "ABC HELLO Bb"},
    {"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "12"},
    {"{% generation %}{{ s }}{% set q = 3 %}{% endgeneration %}{{ q }}", "Hello"},
    {"{% raw %}{{ x }}{% if %}{% endraw %}", "{{ x }}{% if %}"},
    {"  {% raw -%}  {{ x }} {%- endraw %}  z", "{{ x }}  z"},
    {"{%- if true -%}   a   {%- endif -%}", "a"},
    {"{% set x = namespace %}{{ x is callable }}", "True"},
    {"{% if s %}x{% elif n %}y{% else %}z{% endif %}{% if not s %}x{% elif n %}y{% else %}z{% endif %}{% if "
     "e %}x{% elif z %}y{% else %}z{% endif %}",
     "xyz"},
    {"{% if 1, %}t{% endif %}", "t"},
    {"{% set x = 1, 2 %}{{ x }}", "(1, 2)"},
    {"{% set x = s if b else n %}{{ x }}", "Hello"},
    {"{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }} {{ "
     "ns[\"l\"] }} {{ ns.nope }}",
     "[6, 2, 4] [6, 2, 4] "},
    {"{% for m in ms %}{% if loop.first and m.role == \"user\" %}A{% endif %}{% if loop.previtem and "
     "loop.previtem.role == \"user\" %}B{% endif %}{% endfor %}",
     "AB"},
};

constexpr Case kWhitespace[] = {
    {"{% if true %}\n  a\n{% endif %}\nb\n", "  a\nb"},
    {"  {% if true %}  \n  a\n  {% endif %}  \nb", "  \n  a\n  \nb"},
    {"{% for i in l %}\n{{ i }}\n{% endfor %}\n", "3\n1\n2\n"},
    {"a\n  {{ s }}  \n b\n\n", "a\n  Hello  \n b\n"},
    {"a\n  {#- c #}\n b", "a b"},
    {"a\n  {# c #}\n b", "a\n b"},
    {"a {# c #}\n b\n  {# d #}x", "a  b\nx"},
    {"x  {%+ if true %}y{% endif +%}\nz", "x  y\nz"},
    {"x\n  {%+ if true %}y{%- endif -%}\n\n z", "x\n  yz"},
    {"{% if true -%}\n\n  a\n{%- endif %}\n\nb", "a\nb"},
    {"a\r\nb\r{{ s }}\r\n", "a\nb\nHello"},
    {"\n\n{{ s }}\n\n\n", "\n\nHello\n\n"},
    {"{%- for m in ms %}\n    {{- m.role }}\n    {%- if not loop.last %}, {% endif %}\n{%- endfor %}\n",
     "user, assistant, user"},
    {"{% set x = 1 %}\n{{ x }}\n", "1"},
    {"{% macro f(a) %}\n  {{ a }}\n{% endmacro %}\n{{ f(1) }}x", "  1\nx"},
    {"{% raw %}\n a {{ b }}\n{% endraw %}\nc", "\n a {{ b }}\nc"},
    {" {% raw %} a {% endraw %} b", " a  b"},
    {"{{ s\n}}\n{%\nif true\n%}x{% endif\n%}", "Hello\nx"},
    {"{{ 'a\nb' }}", "a\nb"},
    {"{#\n c\n#}\nx", "x"},
    {"  {{- s -}}  \n x", "Hellox"},
    {"{% if true %}{% endif %}\n{% if true %}\n{% endif %}\nq", "q"},
    {"\t{% if true %}\tx\n\t{% endif %}\ty", "\tx\n\ty"},
    {"a{% if true %}\n\nb{% endif %}", "a\nb"},
    {"{% set x %}\n a\n{% endset %}[{{ x }}]", "[ a\n]"},
    {"{{ s }}\n\n{{ n }}\n", "Hello\n\n5"},
    {"  text {% if true %} t {% endif %}  ", "  text  t   "},
    {"{% if true %}\n{# c #}\n{% endif %}x", "x"},
    {"{%- set a = 1 -%}\n{{ a }}", "1"},
    {"\302\240{% if true %}x{% endif %}", "x"},
    {"\343\200\200{%- if true %}x{% endif -%}\343\200\200y", "xy"},
    {"{{\302\240s\343\200\200}}{%\302\240raw\343\200\200%}{{{%\302\240endraw\302\205%}{%-\302\240if "
     "true%}x{% endif %}",
     "Hello{{x"},
    {"{{ s }}{#x#}\n", "Hello"},
    {"{% generation %}\n a\n{% endgeneration %}\nb", " a\nb"},
};

TEST(JinjaStatementTest, StatementsAndScopes) { expect_cases(kStatements); }
TEST(JinjaStatementTest, WhitespaceAroundTags) { expect_cases(kWhitespace); }

}  // namespace
}  // namespace quire
