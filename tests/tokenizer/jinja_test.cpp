#include "tokenizer/jinja_cases.h"

namespace quire {
namespace {

using test::Case;
using test::expect_cases;

constexpr Case kExpressions[] = {
    {"{{ [[1, 2]].0.1 }}", "2"},
    {"{{ {none: 1}|tojson }} {{ {true: 1}|tojson }} {{ {3: 1}|tojson }}",
     R"({"null": 1} {"true": 1} {"3": 1})"},
    {"{{ 1 + 2 * 3 - 4 }}", "3"},
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }}", "3 -4 -4 1 2 -2"},
    {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
     "3.5 3.0 1024 0.5 64 4"},
    {"{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }} {{ 1e308 * 10 }} {{ -1e308 * 10 }}",
     "3.0 -4.0 1.5 0.5 inf -inf"},
    {"{{ 1.0 }} {{ 1e16 }} {{ 1e15 }} {{ 123456789012345680.0 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5e-7 }} {{ "
     "0.1 + 0.2 }} {{ -0.0 }} {{ 1e100 }} {{ 100.0 }} {{ 12.5e3 }}",
     "1.0 1e+16 1000000000000000.0 1.2345678901234568e+17 0.0001 1e-05 1.5e-07 0.30000000000000004 -0.0 "
     "1e+100 100.0 12500.0"},
    {"{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}", "True True False None None"},
    {"{{ true + 1 }} {{ true * \"ab\" }} {{ -true }} {{ 1 == true }} {{ 1.0 == 1 }} {{ \"1\" == 1 }}",
     "2 ab -1 True True False"},
    {"{{ [1, \"a\", none, true, 1.5, [2], {\"k\": (1,)}] }}", "[1, 'a', None, True, 1.5, [2], {'k': (1,)}]"},
    {"{{ (1,) }} {{ () }} {{ (1, 2) }} {{ 1, 2 }}", "(1,) () (1, 2) (1, 2)"},
    {"{{ {\"a\": 1, 2: \"b\", none: none, (1,2): 3} }}", "{'a': 1, 2: 'b', None: None, (1, 2): 3}"},
    {"{{ {\"a\": 1, \"b\": 2, \"a\": 3} }}", "{'a': 3, 'b': 2}"},
    {"{{ {1: \"a\", true: \"b\", 1.0: \"c\"} }}", "{1: 'c'}"},
    {"{{ [s, quote, both, ctl, u] }}",
     "['Hello', \"it's\", '\\'\"', '\\x00\\x1f\\x7f\\xad\\u2028é😀', 'Grüße, Straße 日本']"},
    {"{{ \"a\" \"b\" 'c' }}", "abc"},
    {"{{ \"a\\n\\t\\\\\\\"\\'\\x41\\u00e9\\101\\q\" }}", "a\n\t\\\"'AéA\\q"},
    {"{{ \"a\" ~ 1 ~ none ~ 1.5 ~ true ~ undefined_thing ~ [1] }}", "a1None1.5True[1]"},
    {"{{ \"ab\" * 3 }} {{ 3 * \"ab\" }} {{ \"ab\" * -1 }} {{ [1] * 2 }} {{ (1, 2) * 2 }}",
     "ababab ababab  [1, 1] (1, 2, 1, 2)"},
    {"{{ [1] + [2] }} {{ (1,) + (2,) }}", "[1, 2] (1, 2)"},
    {"{{ \"%s-%s\" % (\"a\", 1) }} {{ \"%d\" % 3 }} {{ \"%.2f\" % 1.005 }} {{ \"%s\" % [1] }} {{ \"%%\" % () "
     "}} {{ \"%r\" % \"a\" }} {{ \"%f\" % 1 }}",
     "a-1 3 1.00 [1] % 'a' 1.000000"},
    {"{{ missing == missing2 }} {{ missing == none }} {{ missing != 1 }} {{ not missing }}",
     "True False True True"},
    {"{{ [missing] }}", "[Undefined]"},
    {"{{ \"a\" in missing }} {{ missing in [1] }}", "False False"},
    {"{{ l.0 }} {{ l[5] }} {{ l[-1] }} {{ l[\"a\"] }} {{ s[0] }} {{ s[10] }} {{ s.0 }} {{ s[\"upper\"]() }}",
     "3  2  H  H HELLO"},
    {"{{ none.x }}|{{ (5).x }}", "|"},
    {"{{ d[[1]] }}", ""},
    {"{{ s[1:3] }} {{ s[:-1] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[::2] }} {{ s[10:] }} {{ s[3:1] }} {{ "
     "s[-100:100:3] }} {{ s[4:0:-2] }} {{ u[2:9] }} {{ u[-2:] }} {{ u[::-1] }}",
     "el Hell olleH llo Hlo   Hl ol üße, St 日本 本日 eßartS ,eßürG"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1 != 2 }} {{ \"a\" < \"b\" }} {{ [1,2] < [1,3] }} {{ 2 in "
     "[1,2] == true }} {{ 1 <= 1 >= 1 }}",
     "True False True True True False True"},
    {"{{ not 1 == 2 }} {{ not not 1 }} {{ 1 and 0 }} {{ 0 or \"x\" }} {{ \"\" or none }} {{ 1 and \"a\" or "
     "\"b\" }}",
     "True True 0 x None a"},
    {"{{ dict(a=1, b=2) }} {{ dict({\"x\":1}, y=2) }} {{ dict([(\"a\", 1), [\"b\", 2]]) }} {{ dict() }}",
     "{'a': 1, 'b': 2} {'x': 1, 'y': 2} {'a': 1, 'b': 2} {}"},
    {"{{ strftime_now(\"%Y-%m-%d %H:%M:%S %d %b %B %a %A %j %p %y %I %e %-d %% %Z|%z|\") }}|{{ "
     "strftime_now(\"\") }}|",
     "2026-01-02 03:04:05 02 Jan January Fri Friday 002 AM 26 03  2 2 % ||||"},
    {"{# comment #}a{#- c -#} b {# {{ #}", "ab "},
    {"{{ 1.5.2 }}", ""},
    {"{{ 1_000 }} {{ 1e3 }} {{ 1_0.5 }} {{ 0 }} {{ 00 }}", "1000 1000.0 10.5 0 0"},
    {"{{ {\"a\": {\"b\": {}}}}}", "{'a': {'b': {}}}"},
    {"{{ {'a': 1}['a'] }}{{ {} }}", "1{}"},
    {"{{- \"a\" -}}   b   {{- \"c\" }}", "abc"},
    {"{{ true.x }}|{{ \"a\".x }}|{{ [].x }}", "||"},
    {"{{ 9223372036854775807 }} {{ -9223372036854775807 }}", "9223372036854775807 -9223372036854775807"},
    {"{{ ms[0]['role'] }} {{ ms[-1].content }} {{ ms[:1] }} {{ ms[0] }}",
     "user <b>&'\" [{'role': 'user', 'content': 'hi', 'n': 2}] {'role': 'user', 'content': 'hi', 'n': 2}"},
    {"{{ \"a\"if b else\"c\" }} {{ 1if b else 2 }}", "a 1"},
    {"{{ bos_token }}{{ bos_token + \"x\" }}", "<s><s>x"},
    {"{{ {\"a\":1} == {\"a\":1.0} }} {{ {\"a\":1,\"b\":2} == {\"b\":2,\"a\":1} }} {{ [1,[2]] == [1,[2]] }} "
     "{{ (1,2) == [1,2] }} {{ \"a\" == \"a\" }} {{ none == none }} {{ 1 != 1.0 }}",
     "True True True False True True False"},
    {"{{ \"é\" < \"z\" }} {{ \"Z\" < \"a\" }} {{ \"\" < \"a\" }}", "False True True"},
    {"b\" }}", "b\" }}"},
    {"{{ \"tab\tin\" }}", "tab\tin"},
    {"{{ '\\u00e9\\U0001F600\\x7f' }}", "é😀\177"},
    {"{{ s.__class__ }}|", "|"},
    {"{{ d.__init__ }}|{{ d[\"__class__\"] }}|", "||"},
    {"{{ range.__globals__ }}|", "|"},
    {"{{ 2.0 ** 0.5 }} {{ (-8.0) ** 2 }} {{ 4 ** 0.5 }} {{ 2 ** 62 }}",
     "1.4142135623730951 64.0 2.0 4611686018427387904"},
    {"{{ 5 // 0.3 }} {{ 5 % 0.3 }} {{ -5 // 0.3 }} {{ -5 % 0.3 }} {{ 1e20 // 3 }} {{ 0.0 // 5 }} {{ -0.0 % 3 "
     "}} {{ 1 // 0.1 }}",
     "16.0 0.20000000000000018 -17.0 0.09999999999999981 3.333333333333333e+19 0.0 0.0 9.0"},
    {"{{ (missing or {}).x }} {{ (missing or \"a\") }} {{ missing and missing.x }}", " a "},
    {"{{ \"abc\"[1] }}{{ \"abc\"[-1] }}{{ \"abc\"[true] }}{{ l[true] }}{{ l[1.0] }}|", "bcb1|"},
    {"{{ l[none] }}|{{ l[missing] }}|{{ d[missing] }}|{{ d[none] }}|", "||||"},
};

constexpr Case kMethods[] = {
    {"{{ d.keys() }} {{ d.values() }} {{ {\"a\": 1}.items() }}",
     "dict_keys(['b', 'a', 'items']) dict_values([1, {'x': [1, 2]}, 7]) dict_items([('a', 1)])"},
    {"{{ d.keys()[0] }}", ""},
    {"{{ l.index(1) }} {{ l.count(3) }} {{ (1,2).index(2) }} {{ l.copy() }}", "1 1 1 [3, 1, 2]"},
    {"{{ 2 not in l }} {{ 9 not in l }} {{ \"ell\" in s }} {{ \"b\" in d }} {{ \"x\" not in d }} {{ 1 in "
     "d.values() }}",
     "False True True True True True"},
    {"{{ ws.strip() }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}|{{ \"xyaxy\".strip(\"xy\") }}|{{ "
     "\"xyaxy\".lstrip(\"yx\") }}|{{ \"\\u3000a\\u00a0\".strip() }}|{{ \"a\".strip(none) }}",
     "a  b c|a  b c \n|  a  b c|a|axy|a|a"},
    {"{{ ws.split() }} {{ \"a,b,,c\".split(\",\") }} {{ \"a,b,,c\".split(\",\", 1) }} {{ ws.split(none, 1) "
     "}} {{ \"a,b,c\".rsplit(\",\", 1) }} {{ \" a b c \".rsplit(none, 1) }} {{ \" a b c \".split(none, 1) }} "
     "{{ \" a b c \".split(maxsplit=1) }} {{ \"\".split() }} {{ \"\".split(\",\") }} {{ "
     "\"aXXXb\".rsplit(\"XX\") }} {{ \"aXXXb\".split(\"XX\") }} {{ \" ab \".split(none, 0) }} {{ \" ab "
     "\".rsplit(none, 0) }}",
     "['a', 'b', 'c'] ['a', 'b', '', 'c'] ['a', 'b,,c'] ['a', 'b c \\n'] ['a,b', 'c'] [' a b', 'c'] ['a', 'b "
     "c '] ['a', 'b c '] [] [''] ['aX', 'b'] ['a', 'Xb'] ['ab '] [' ab']"},
    {"{{ \"k=v=w\".partition(\"=\") }} {{ \"k\".partition(\"=\") }} {{ \"k=v=w\".rpartition(\"=\") }} {{ "
     "\"k\".rpartition(\"=\") }}",
     "('k', '=', 'v=w') ('k', '', '') ('k=v', '=', 'w') ('', '', 'k')"},
    {"{{ s.startswith(\"He\") }} {{ s.endswith(\"lo\") }} {{ s.startswith((\"a\", \"H\")) }} {{ "
     "s.startswith(\"\") }} {{ s.removeprefix(\"He\") }} {{ s.removesuffix(\"lo\") }} {{ "
     "s.removesuffix(\"xx\") }}",
     "True True True True llo Hel Hello"},
    {"{{ s.upper() }} {{ s.lower() }} {{ \"they're bill's ab1cd\".title() }} {{ \"hELLO\".capitalize() }} {{ "
     "\"Straße\".upper() }}",
     "HELLO hello They'Re Bill'S Ab1Cd Hello STRASSE"},
    {"{{ s.replace(\"l\", \"L\") }} {{ s.replace(\"l\", \"L\", 1) }} {{ \"abc\".replace(\"\", \"-\") }} {{ "
     "\"abc\".replace(\"\", \"-\", 2) }} {{ \"aaa\".replace(\"aa\", \"b\") }} {{ \"\".replace(\"\", \"x\") "
     "}} {{ \"日本\".replace(\"\", \"-\") }}",
     "HeLLo HeLlo -a-b-c- -a-bc ba x -日-本-"},
    {"{{ s.find(\"l\") }} {{ s.find(\"z\") }} {{ s.rfind(\"l\") }} {{ u.find(\"日\") }} {{ s.find(\"\") }} "
     "{{ s.find(\"l\", 3) }} {{ s.find(\"l\", 1, 2) }} {{ s.find(\"\", 10) }} {{ s.index(\"e\") }} {{ "
     "s.count(\"l\") }} {{ \"aaa\".count(\"aa\") }} {{ \"ab\".count(\"\") }} {{ s.rfind(\"\") }} {{ "
     "s.find(\"l\", -2) }}",
     "2 -1 3 14 0 3 -1 -1 1 2 1 3 5 3"},
    {"{{ \",\".join([\"a\",\"b\"]) }} {{ \",\".join(\"abc\") }} {{ \",\".join([]) }} {{ \"\".join((\"a\",)) "
     "}} {{ \", \".join(d) }}",
     "a,b a,b,c  a b, a, items"},
    {"{{ lines.splitlines() }} {{ \"\".splitlines() }} {{ \"a\\n\".splitlines() }}",
     "['a', 'b', 'c', '', 'd'] [] ['a']"},
    {"{{ \"12\".isdigit() }} {{ \"a\".isalpha() }} {{ \" \".isspace() }} {{ \"A\".isupper() }} {{ "
     "\"a1\".islower() }} {{ \"\".isdigit() }} {{ \"1\".isupper() }}",
     "True True True True True False False"},
};

constexpr Case kTests[] = {
    {"{{ d.b }} {{ d.a.x[0] }} {{ d[\"a\"][\"x\"][-1] }} {{ d.zzz }} {{ d[\"items\"] }} {{ d.items is "
     "callable }} {{ d.items()|list }}",
     "1 1 2  7 True [('b', 1), ('a', {'x': [1, 2]}), ('items', 7)]"},
    {"{{ s.nosuch is defined }} {{ l.append is defined }} {{ d.pop is defined }} {{ d.get is defined }}",
     "False False False True"},
    {"{{ \"y\" if b else \"n\" }} {{ \"y\" if not b }}| {{ 1 if z is none else 2 if f else 3 }}", "y | 1"},
    {"{{ s is defined }} {{ s is undefined }} {{ z is none }} {{ s is string }} {{ d is mapping }} {{ l is "
     "iterable }} {{ 5 is iterable }} {{ l is sequence }} {{ d is sequence }} {{ s is sequence }} {{ s is "
     "iterable }} {{ 5 is number }} {{ true is number }} {{ true is integer }} {{ 5 is integer }} {{ 5.0 is "
     "float }} {{ b is boolean }} {{ b is true }} {{ 1 is true }} {{ b is false }} {{ range is callable }} "
     "{{ missing is callable }} {{ missing is iterable }} {{ missing is sequence }} {{ missing is string }}",
     "True False True True True True False True True True True True True False True True True True False "
     "False True True True True False"},
    {"{{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 1 is ne 2 }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 3 is "
     "odd }} {{ 3 is even }} {{ 4 is divisibleby 2 }} {{ 1 is sameas true }} {{ true is sameas true }} {{ "
     "\"a\" is lower }} {{ \"A\" is upper }} {{ 2 is gt 1 }} {{ 2 is lessthan 1 }} {{ s is not none and b is "
     "true }} {{ 1 is eq(1) or false }}",
     "True True True True False True False True False True True True True False True True"},
    {"{{ range(3) is iterable }} {{ range(3) is sequence }} {{ (l|map(\"string\")) is iterable }} {{ "
     "(l|map(\"string\")) is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ "
     "namespace() is mapping }} {{ range(3) is mapping }}",
     "True True True False False True False False"},
    {"{{ namespace(a=1) }} {{ namespace({\"x\": 2}).x }} {{ namespace().q is defined }}",
     "<Namespace {'a': 1}> 2 False"},
    {"{{ not_there is defined and not_there.x }}", "False"},
    {"{{ ms[0].role == 'user' and ms[0]['content'] is string }}", "True"},
    {"{{ \"a\" is in \"abc\" }} {{ \"a\" is in [\"b\"] }}", "True False"},
};

constexpr Case kFilters[] = {
    {"{{ \"%s and %s\"|format(\"a\", 2) }}", "a and 2"},
    {"{{ missing|length }} {{ missing|upper }} {{ missing|trim }} {{ missing|list }} {{ missing|join(\",\") "
     "}} {{ missing|string }} {{ missing|default(\"d\") }} {{ missing|items|list }}",
     "0   []   d []"},
    {"{{ missing|first }}|{{ missing|last }}|{{ missing|reverse|list }}", "||[]"},
    {"{{ missing|sort }} {{ missing|map(\"upper\")|list }} {{ missing|selectattr(\"a\")|list }}", "[] [] []"},
    {"{{ d.get(\"b\") }} {{ d.get(\"q\") }} {{ d.get(\"q\", 3) }} {{ d.keys()|length }} {{ d|length }}",
     "1 None 3 3 3"},
    {"{{ l[1:] }} {{ l[::-1] }} {{ l[:2] }} {{ (1,2,3)[1:] }} {{ range(5)[1:3]|list }} {{ l[5:] }}",
     "[1, 2] [2, 1, 3] [3, 1] (2, 3) [1, 2] []"},
    {"{{ s|upper }} {{ s|lower }} {{ u|upper }} {{ u|lower }} {{ \"hello wORLD-foo (bar)\"|title }} {{ "
     "\"hELLO wORLD\"|capitalize }} {{ \"ß\"|capitalize }} {{ 5|upper }}",
     "HELLO hello GRÜSSE, STRASSE 日本 grüße, straße 日本 Hello World-Foo (Bar) Hello world Ss 5"},
    {"{{ ws|trim }}| {{ \"xxaxx\"|trim(\"x\") }} {{ 5|trim }}", "a  b c| a 5"},
    {"{{ s|replace(\"l\", 1) }} {{ 112|replace(1, \"x\") }} {{ s|replace(\"l\", \"x\", 1) }} {{ "
     "s|replace(\"l\", \"x\", none) }}",
     "He11o xx2 Hexlo Hexxo"},
    {"{{ l|join }} {{ l|join(\"-\") }} {{ ms|join(\",\", attribute=\"role\") }} {{ [\"a\", none, 1]|join(\", "
     "\") }} {{ \"abc\"|join(\".\") }}",
     "312 3-1-2 user,assistant,user a, None, 1 a.b.c"},
    {"{{ l|first }} {{ l|last }} {{ \"abc\"|first }} {{ \"abc\"|last }} {{ e|first }}| {{ e|last }}| {{ "
     "d|first }} {{ d|last }}",
     "3 2 a c | | b items"},
    {"{{ l|length }} {{ s|count }} {{ u|length }} {{ \"😀\"|length }}", "3 5 16 1"},
    {"{{ l|sort }} {{ l|sort(reverse=true) }} {{ [\"b\",\"A\",\"a\"]|sort }} {{ "
     "[\"b\",\"A\",\"a\"]|sort(case_sensitive=true) }} {{ ms|sort(attribute=\"n\")|map(attribute=\"n\")|list "
     "}} {{ [1, 2.5, true]|sort }}",
     "[1, 2, 3] [3, 2, 1] ['A', 'a', 'b'] ['A', 'a', 'b'] [1, 2, 3] [1, True, 2.5]"},
    {"{{ [\"a\",\"A\",\"b\",\"a\"]|unique|list }} {{ [\"a\",\"A\"]|unique(case_sensitive=true)|list }} {{ "
     "ms|unique(attribute=\"role\")|map(attribute=\"n\")|list }}",
     "['a', 'b'] ['a', 'A'] [2, 1]"},
    {"{{ l|reverse|list }} {{ \"abc\"|reverse }} {{ u|reverse }} {{ d|reverse|list }}",
     "[2, 1, 3] cba 本日 eßartS ,eßürG ['items', 'a', 'b']"},
    {"{{ l|map(\"string\")|list }} {{ [\"a\",\"b\"]|map(\"upper\")|join }} {{ "
     "ms|map(attribute=\"content\")|list }} {{ ms|map(attribute=\"zz\", default=\"q\")|list }} {{ "
     "ms|map(attribute=\"zz\")|list }} {{ [[1,2],[3,4]]|map(attribute=1)|list }} {{ "
     "[[1,2],[3,4]]|map(attribute=\"0\")|list }} {{ [{\"a\":{\"b\":1}}]|map(attribute=\"a.b\")|list }} {{ "
     "[\"a-b\"]|map(\"replace\", \"-\", \"+\")|list }} {{ ms|map(\"length\")|list }}",
     "['3', '1', '2'] AB ['hi', None, '<b>&\\'\"'] ['q', 'q', 'q'] [Undefined, Undefined, Undefined] [2, 4] "
     "[1, 3] [1] ['a+b'] [3, 3, 3]"},
    {"{{ [1,2,3,4]|select(\"odd\")|list }} {{ [1,2,3]|reject(\"eq\", 2)|list }} {{ "
     "[0,1,\"\",none,\"a\"]|select|list }} {{ [0,1]|reject|list }} {{ [1,2,3]|select(\">\", 1)|list }} {{ "
     "[1,2,3]|select(\"in\", [1,2])|list }} {{ [1,2,3]|select(\"divisibleby\", 3)|list }}",
     "[1, 3] [1, 3] [1, 'a'] [0] [2, 3] [1, 2] [3]"},
    {"{{ ms|selectattr(\"content\")|map(attribute=\"n\")|list }} {{ ms|selectattr(\"role\", \"equalto\", "
     "\"user\")|map(attribute=\"n\")|list }} {{ ms|rejectattr(\"role\", \"eq\", "
     "\"user\")|map(attribute=\"n\")|list }} {{ ms|rejectattr(\"content\")|map(attribute=\"n\")|list }} {{ "
     "ms|selectattr(\"zz\", \"defined\")|list }} {{ ms|selectattr(\"content\", \"none\")|list|length }}",
     "[2, 3] [2, 3] [1] [1] [] 1"},
    {"{{ none|map(\"upper\")|list }} {{ false|select(\"odd\")|list }} {{ 0|reject|list }} {{ "
     "none|selectattr(\"a\")|list }} {{ none|rejectattr(\"a\", \"none\")|list }} {{ "
     "none|map(attribute=\"a\")|list }} {{ []|map(\"nosuch\")|list }} {{ []|selectattr|list }}",
     "[] [] [] [] [] [] [] []"},
    {"{{ d|dictsort }} {{ {\"b\":1,\"A\":2}|dictsort }} {{ {\"b\":1,\"A\":2}|dictsort(true) }} {{ "
     "{\"b\":1,\"A\":2}|dictsort(by=\"value\") }} {{ {\"b\":1,\"A\":2}|dictsort(reverse=true) }}",
     "[('a', {'x': [1, 2]}), ('b', 1), ('items', 7)] [('A', 2), ('b', 1)] [('A', 2), ('b', 1)] [('b', 1), "
     "('A', 2)] [('b', 1), ('A', 2)]"},
    {"{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2, \"x\")|list }} {{ []|batch(2)|list }}",
     "[[1, 2], [3, 4], [5]] [[1, 2], [3, 'x']] []"},
    {"{{ \"12\"|int }} {{ \" 12 \"|int }} {{ \"12.7\"|int }} {{ \"x\"|int }} {{ \"x\"|int(-1) }} {{ 3.9|int "
     "}} {{ -3.9|int }} {{ \"ff\"|int(base=16) }} {{ \"0xff\"|int(base=16) }} {{ true|int }} {{ none|int }} "
     "{{ [1]|int(5) }} {{ \"1_000\"|int }} {{ \"1__0\"|int }} {{ \"+5\"|int }} {{ \"-5\"|int }} {{ "
     "\"inf\"|int }} {{ \"nan\"|int }} {{ \"1e3\"|int }} {{ \"\"|int }} {{ \"--5\"|int }} {{ \"-+5\"|int }}",
     "12 12 12 0 -1 3 -3 255 255 1 0 5 1000 0 5 -5 0 0 1000 0 0 0"},
    {"{{ 5|string }} {{ none|string }} {{ 1.5|string + \"x\" }} {{ [1]|string }}", "5 None 1.5x [1]"},
    {"{{ s|default(\"d\") }} {{ \"\"|default(\"d\") }}| {{ \"\"|default(\"d\", true) }} {{ "
     "none|default(\"d\") }} {{ none|d(\"x\", boolean=true) }} {{ missing|default }}|",
     "Hello | d None x |"},
    {"{{ \"a\\nb\\n\\nc\"|indent }} {{ \"a\\nb\"|indent(2) }} {{ \"a\\nb\"|indent(2, true) }} {{ "
     "\"a\\n\\nb\"|indent(2, blank=true) }} {{ \"a\\nb\"|indent(\"> \") }} {{ \"a\\nb\"|indent(width=1, "
     "first=true) }} {{ \"a\\n\"|indent }}|",
     "a\n    b\n\n    c a\n  b   a\n  b a\n  \n  b a\n> b  a\n b a\n|"},
    {"{{ \"<b>\"|safe }} {{ (\"a\"|safe) + \"b\" }} {{ (1|safe|string) + \"<\" }}", "<b> ab 1&lt;"},
    {"{{ d|tojson(indent=2) }}",
     "{\n  \"b\": 1,\n  \"a\": {\n    \"x\": [\n      1,\n      2\n    ]\n  },\n  \"items\": 7\n}"},
    {"{{ d|tojson(indent=0) }}|{{ {\"a\":[],\"b\":{}}|tojson(indent=4) }}|{{ [1,[2]]|tojson(indent=\"--\") "
     "}}",
     "{\n\"b\": 1,\n\"a\": {\n\"x\": [\n1,\n2\n]\n},\n\"items\": 7\n}|{\n    \"a\": [],\n    \"b\": "
     "{}\n}|[\n--1,\n--[\n----2\n--]\n]"},
    {"{{ d|tojson(separators=(\",\", \":\")) }} {{ d|tojson(sort_keys=true) }} {{ "
     "u|tojson(ensure_ascii=true) }} {{ \"😀\\u007f\"|tojson(ensure_ascii=true) }} {{ d|tojson(indent=2, "
     "separators=(\",\", \"=\")) }}",
     "{\"b\":1,\"a\":{\"x\":[1,2]},\"items\":7} {\"a\": {\"x\": [1, 2]}, \"b\": 1, \"items\": 7} "
     "\"Gr\\u00fc\\u00dfe, Stra\\u00dfe \\u65e5\\u672c\" \"\\ud83d\\ude00\\u007f\" {\n  \"b\"=1,\n  "
     "\"a\"={\n    \"x\"=[\n      1,\n      2\n    ]\n  },\n  \"items\"=7\n}"},
    {"{{ range(3)|list }} {{ range(1,4)|list }} {{ range(5,0,-2)|list }} {{ range(0)|list }} {{ range(3)[1] "
     "}} {{ range(3)|length }} {{ range(3) == range(3) }} {{ 1 in range(3) }} {{ range(3)|last }}",
     "[0, 1, 2] [1, 2, 3] [5, 3, 1] [] 1 3 True True 2"},
    {"{{ l|map(\"string\") == l|map(\"string\") }}", "False"},
    {"{{ [1, 2,] }} {{ {\"a\": 1,} }} {{ (1, 2,) }} {{ range(3,)|list }}",
     "[1, 2] {'a': 1} (1, 2) [0, 1, 2]"},
    {"{{ 3 - - 2 }} {{ - 3 }} {{ +3 }} {{ -(-3) }} {{ -3|abs }} {{ 2 - -3|abs }}", "5 -3 3 3 3 -1"},
    {"{{ \"abc\"|upper|lower|title }} {{ (\"a\" ~ \"b\")|upper }} {{ \"a\" \"b\"|upper }}", "Abc AB AB"},
    {"{{ s.upper().lower()[1:].replace(\"l\",\"L\") }} {{ \"a,b\".split(\",\")[0] }} {{ s|upper()|first }}",
     "eLLo a H"},
    {"{{ d.a.x|join(\"|\") }} {{ d.a | tojson | length }}", "1|2 13"},
    {"{{ [none, none]|sort }} {{ ms|sort(attribute=\"missing\")|map(attribute=\"n\")|list }}",
     "[None, None] [2, 1, 3]"},
    {"{{ \"a\" % l }} {{ \"a\" % range(2) }}", "a a"},
    {"{{ \"'\"|safe + ms[2].content + \"'\"|safe }} {{ \"<\" + (1|safe + \">\") + \"&\" }} {{ \"<\" ~ 1|safe "
     "}}",
     "'&lt;b&gt;&amp;&#39;&#34;' &lt;1&gt;&amp; <1"},
    {"{{ [[1,2],[0,5]]|sort }} {{ \"cab\"|sort }} {{ \"cab\"|list }} {{ d|list }}",
     "[[0, 5], [1, 2]] ['a', 'b', 'c'] ['c', 'a', 'b'] ['b', 'a', 'items']"},
    {"{{ (\"x\" * 100) | length }}", "100"},
    {"{{ b + b }} {{ b // 1 }} {{ b ** 2 }} {{ b / 2 }} {{ b < 2 }} {{ [b, false]|sort }}",
     "2 1 1 0.5 True [False, True]"},
    {"{{ [\"a\", \"b\"]|map(\"upper\")|join(\", \") }} {{ [\" a \"]|map(\"trim\")|first }}", "A, B a"},
    {"{{ [3,1]|sort|first }} {{ ms|map(attribute=\"role\")|unique|join(\",\") }} {{ ms|length > 2 }} {{ "
     "ms|length - 1 }}",
     "1 user,assistant True 2"},
};

TEST(JinjaTest, ExpressionsPrintAsInPython) { expect_cases(kExpressions); }
TEST(JinjaTest, MethodsOfStringsListsAndDicts) { expect_cases(kMethods); }
TEST(JinjaTest, TestsAfterIs) { expect_cases(kTests); }
TEST(JinjaTest, Filters) { expect_cases(kFilters); }

}  // namespace
}  // namespace quire
