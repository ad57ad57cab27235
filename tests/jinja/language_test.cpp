// The language, feature by feature. Expected texts are what Jinja2 3.1 prints with Hugging Face's settings.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "tokenizer/chat_template.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

const ordered_json& variables() {
  static const auto v = ordered_json::parse(R"({
    "s": "Hello, World", "u": "Größe 😀", "q": "it's \"q\"\n<b>&", "i": 7, "f": 2.5, "l": [3, 1, 2], "w": ["b", "A", "c"],
    "d": {"b": 1, "A": 2, "items": 5}, "users": [{"name": "x", "age": 3}, {"name": "Y"}, {"name": "z", "age": 1}],
    "big": 18446744073709551615, "nil": null})");
  return v;
}

// The rendered text, or "ERROR: ..." with the message.
std::string render(const std::string& source, const jinja::Limits& limits = {}) {
  auto parsed = ChatTemplate::parse(source, limits);
  if (!parsed.ok()) return "ERROR: " + parsed.error().message;
  auto text = parsed->render_variables(variables());
  return text.ok() ? text->text : "ERROR: " + text.error().message;
}

struct Case {
  const char* source;
  const char* expected;
};

void check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) EXPECT_EQ(render(c.source), c.expected) << c.source;
}

TEST(Jinja, Operators) {
  check(
      {{"{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
        "7 3 -4 2 3.5 64 4"},
       {"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ true + true }} {{ 1 == true }}", "True False True 2 True"},
       {"{{ 'a' ~ 1 ~ none ~ missing }} {{ 'ab' * 2 }} {{ 2 * [1] }} {{ [1] + [2] }}", "a1None abab [1, 1] [1, 2]"},
       {"{{ 1 in l }} {{ 9 not in l }} {{ 'lo' in s }} {{ 'b' in d }} {{ 1 in missing }}", "True True True True False"},
       {"{{ 0 or 'x' }} {{ 1 and [] }} {{ not 0 }} {{ 'y' if nil else 'n' }}{{ 'z' if nil }}", "x [] True n"},
       {"{{ -1|abs }} {{ 1 + 2|abs }} {{ 'a' 'b' }} {{ 1 if 0 else 2 if 0 else 3 }}", "1 3 ab 3"},
       {"{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-7 }} {{ 0.0001 }} {{ 1_000 }} {{ 0x1F }} {{ 100.0 }}",
        "0.30000000000000004 1e+16 1000000000000000.0 1.5e-07 0.0001 1000 31 100.0"}});
}

TEST(Jinja, Printing) {
  check({{"{{ none }} {{ true }} {{ missing }}|{{ [1, 'a', none, missing, 2.0] }}",
          "None True |[1, 'a', None, Undefined, 2.0]"},
         {"{{ d }} {{ (1,) }} {{ (1, 2) }} {{ {} }}", "{'b': 1, 'A': 2, 'items': 5} (1,) (1, 2) {}"},
         {"{{ [q] }} {{ ['\\u200b\\x01é'] }}", "['it\\'s \"q\"\\n<b>&'] ['\\u200b\\x01é']"},
         {"{{ range(3) }} {{ d.items() }} {{ d.keys() }}",
          "range(0, 3) dict_items([('b', 1), ('A', 2), ('items', 5)]) dict_keys(['b', 'A', 'items'])"},
         {"{{ '<' ~ '<'|e }} {{ ('<'|safe) + '<' }}", "<&lt; <&lt;"}});
}

TEST(Jinja, WhitespaceControl) {
  check({{"a\n  {% if 1 %}\nb\n  {% endif %}\nc\n", "a\nb\nc"},
         {"a \n {%- if 1 -%} \n b \n {%- endif -%} \n c", "abc"},
         {"a\n  {%+ if 1 %}\nb{% endif +%}\nc", "a\n  b\nc"},
         {"a {{- 1 -}} b {{ 2 }}\n", "a1b 2"},
         {"a\n  {# x #}\nb{#- y -#} c", "a\nbc"},
         {"{% raw %}{{ x }}{% endraw %} {%- raw -%}  {% y %} {%- endraw -%}  z", "{{ x }}{% y %}z"},
         {"a\r\nb\rc\n\n", "a\nb\nc\n"},
         {"{{ {'a': {'b': 1}}}} {{ '}}' }}", "{'a': {'b': 1}} }}"}});
}

TEST(Jinja, Loops) {
  check({{"{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ "
          "loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
          "1032TrueFalse3 2121FalseFalse3 3210FalseTrue3 "},
         {"{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "<3>1 3<1>2 1<2> "},
         {"{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
          "1:3/2 2:2/2 "},
         {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
         {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for (a, b), c in [[[1, 2], 3]] %}{{ a "
          "}}{{ b }}{{ c }}{% endfor %}",
          "b=1;A=2;items=5;123"},
         {"{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}", "aTrue bTrue aTrue "},
         {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif "
          "%}{{ x }}{% endfor %}",
          "013"},
         {"{% for x in [1, [2, [3]]] recursive %}{{ loop.depth }}{{ loop(x) if x is not number else x }}{% "
          "endfor %}",
          "1112"
          "2233"},
         {"{% set x = 1 %}{% for y in l %}{% set x = y %}{{ x }}{% endfor %}{{ x }}", "3121"},
         {"{% for c in u %}{{ c }}.{% endfor %}", "G.r.ö.ß.e. .😀."},
         {"{% for x in 5 %}{% endfor %}", "ERROR: chat template, line 1: 'int' object is not iterable"}});
}

TEST(Jinja, Assignments) {
  check({{"{% set a, b = 1, 2 %}{{ a }}{{ b }}", "12"},
         {"{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}{{ "
          "ns['n'] }}{{ ns.z }}",
          "66"},
         {"{% set a %}x{{ 1 }}{% endset %}[{{ a }}]{% set b | upper | trim %} y {% endset %}[{{ b }}]", "[x1][Y]"},
         {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
         {"{% if 1 %}{% set a = 2 %}{% endif %}{{ a }}{% filter upper %}x{% endfilter %}", "2X"},
         {"{% set d.x = 1 %}", "ERROR: chat template, line 1: cannot assign attribute 'x': 'd' is not a namespace"},
         {"{% generation %}a{% endgeneration %}", "a"},
         {"{% set true = 1 %}", "ERROR: chat template, line 1: cannot assign to 'true'"}});
}

TEST(Jinja, Macros) {
  check({{"{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }} {% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m() }}",
          "122 123 22 "},
         {"{% macro m(i=i) %}[{{ i }}]{% endmacro %}{{ m() }}{{ m(1) }}", "[][1]"},
         {"{% macro m(a=b, b=2) %}[{{ a }}]{% endmacro %}{{ m(b=5) }}{{ m() }}", "[5][]"},
         {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, x=2) }}", "(1,){'x': 2}"},
         {"{% macro m(t) %}<{{ caller(t) }}>{% endmacro %}{% call(x) m(5) %}{{ x }}!{% endcall %}", "<5!>"},
         {"{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}{{ m.name }}{{ "
          "m.arguments }}",
          "3210m('n',)"},
         {"{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}", "1"},
         {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
          "ERROR: chat template, line 1: macro 'm' takes not more than 1 argument(s)"},
         {"{% macro m(a) %}{% endmacro %}{{ m(z=2) }}",
          "ERROR: chat template, line 1: macro 'm' takes no keyword argument 'z'"},
         {"{% set args = [1, 2] %}{{ dict(*[[['a', 1]]], **{'b': 2}) }}", "{'a': 1, 'b': 2}"}});
}

TEST(Jinja, AttributesAndSlices) {
  check({{"{{ d.b }}{{ d['A'] }}{{ d.items is callable }}{{ d['items'] }}{{ d.zz }}{{ l.0 }}{{ l[-1] }}{{ l[9] "
          "}}",
          "12True532"},
         {"{{ s[1:4] }} {{ s[::-1] }} {{ s[-5:] }} {{ u[2:4] }} {{ u[-1] }} {{ u|length }} {{ l[::2] }} {{ "
          "l[5:] }}",
          "ell dlroW ,olleH World öß 😀 7 [3, 2] []"},
         {"{{ missing.x }}", "ERROR: chat template, line 1: 'missing' is undefined"},
         {"{{ d.zz.x }}", "ERROR: chat template, line 1: 'dict object' has no attribute 'zz'"},
         {"{{ l.append(1) }}",
          "ERROR: chat template, line 1: 'append' of 'list' objects is not allowed: values cannot be changed"},
         {"{{ s.__class__ }}{{ l.append is defined }}", "False"},
         {"{{ s.nosuch() }}", "ERROR: chat template, line 1: 'str object' has no attribute 'nosuch'"},
         {"{{ l[::0] }}", "ERROR: chat template, line 1: slice step cannot be zero"}});
}

TEST(Jinja, Filters) {
  check({{"{{ missing|default('x') }}{{ ''|d('y', true) }}{{ l|length }}{{ l|first }}{{ l|last }}{{ "
          "l|join('-') }}{{ users|join(',', attribute='name') }}",
          "xy3323-1-2x,Y,z"},
         {"{{ l|sort }}{{ w|sort }}{{ w|sort(case_sensitive=true, reverse=true) }}{{ "
          "users|sort(attribute='name')|map(attribute='name')|join }}",
          "[1, 2, 3]['A', 'b', 'c']['c', 'b', 'A']xYz"},
         {"{{ users|selectattr('age')|map(attribute='age')|list }}{{ users|rejectattr('name', 'in', "
          "['x'])|list|length }}{{ l|select('gt', 1)|list }}{{ l|reject('odd')|list }}",
          "[3, 1]2[3, 2][2]"},
         {"{{ users|map(attribute='age', default=0)|sum }}{{ l|map('string')|map('upper')|list }}{{ l|min "
          "}}{{ l|max }}{{ ['a', 'B', 'A']|unique|list }}",
          "4['3', '1', '2']13['a', 'B']"},
         {"{{ d|dictsort }}{{ d|dictsort(by='value', reverse=true) }}{{ d|items|list }}",
          "[('A', 2), ('b', 1), ('items', 5)][('items', 5), ('A', 2), ('b', 1)][('b', 1), ('A', 2), "
          "('items', 5)]"},
         {"{{ l|batch(2, 'x')|list }}{{ l|slice(2)|list }}{{ l|reverse|list }}{{ s|reverse }}",
          "[[3, 1], [2, 'x']][[3, 1], [2]][2, 1, 3]dlroW ,olleH"},
         {"{% for g in [{'k': 1, 'v': 2}, {'k': 1, 'v': 3}]|groupby('k') %}{{ g.grouper }}{{ g.list|length "
          "}}{% endfor %}",
          "12"},
         {"{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent('>', true) }}", "a\n  b\n\n  c|>a\n>b"},
         {"{{ 42.55|round }}{{ 2.5|round }}{{ 2.675|round(2) }}{{ 42.1|round(method='ceil') }}{{ 7|round "
          "}}{{ '12'|int }}{{ 'x'|int(5) }}{{ '3.9'|int }}{{ '1e2'|float }}",
          "43.02.02.6743.07125"
          "3100.0"},
         {"{{ 'heLLo wORLD-foo'|title }}{{ 'heLLO'|capitalize }}{{ ' x '|trim }}{{ 'aXbX'|replace('X', '', "
          "1) }}{{ 'a b  c'|wordcount }}{{ 'a b/ü'|urlencode }}",
          "Hello World-FooHellox"
          "abX3a%20b/%C3%BC"},
         {"{{ '%s-%05.1f|%3d|%-3s|%x' % ('a', 2.55, 7, 'b', 255) }} {{ '%s'|format(l) }} {{ '{} "
          "{1}'.format(1, 2) }}",
          "ERROR: chat template, line 1: format: numbered and unnumbered fields cannot be mixed"},
         {"{{ '%s-%05.1f|%3d|%-3s|%x' % ('a', 2.55, 7, 'b', 255) }} {{ '{:>4}|{a!r}|{:.2f}|{:,}'.format(1, "
          "2, 12345, a='x') }}",
          "a-002.5|  7|b  |ff    1|'x'|2.00|12,345"},
         {"{{ 1|nosuch }}", "ERROR: chat template, line 1: no filter named 'nosuch'"},
         {"{{ [1, missing.x]|first if false }}{{ [{'a': 1}, 5]|selectattr('a')|first }}", "{'a': 1}"},
         {"{{ l|join(1, 2, 3) }}", "ERROR: chat template, line 1: join takes 2 argument(s), but 3 were given"}});
}

TEST(Jinja, UnknownNamesInConditionsFailOnlyWhenReached) {
  check({{"{% if 0 %}{{ 1|nosuch }}{% endif %}{{ 1 if 1 else 2|nosuch }}{{ -0.1|round(method='ceil') }}", "10.0"},
         {"{{ 2|nosuch if 1 else 1 }}", "ERROR: chat template, line 1: no filter named 'nosuch'"},
         {"{% if 0 %}{% for x in l %}{{ 1|nosuch }}{% endfor %}{% endif %}",
          "ERROR: chat template, line 1: no filter named 'nosuch'"},
         {"{% for x in l %}{% break %}{% else %}none{% endfor %}", "none"}});
}

TEST(Jinja, ToJson) {
  check({{"{{ d|tojson }} {{ [1, 2.0, none, true, 'é<\"\\n\\x01']|tojson }}",
          "{\"b\": 1, \"A\": 2, \"items\": 5} [1, 2.0, null, true, \"é<\\\"\\n\\u0001\"]"},
         {"{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
         {"{{ {'b': '😀', 'a': 1}|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
          "{\"a\":1,\"b\":\"\\ud83d\\ude00\"}"},
         {"{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ (1, 2)|tojson }} {{ big|tojson }}",
          "{\"1\": 4, \"null\": 3, \"1.5\": 5} [1, 2] 1.8446744073709552e+19"},
         {"{{ missing|tojson }}", "ERROR: chat template, line 1: tojson: 'missing' is undefined"},
         {"{{ l|map('abs')|tojson }}",
          "ERROR: chat template, line 1: tojson: an object of type generator cannot be written as JSON"}});
}

TEST(Jinja, Tests) {
  check({{"{{ s is string }}{{ i is number }}{{ i is integer }}{{ f is float }}{{ true is integer }}{{ true "
          "is number }}{{ d is mapping }}{{ l is sequence }}{{ s is iterable }}{{ i is iterable }}",
          "TrueTrueTrueTrueFalseTrueTrueTrueTrueFalse"},
         {"{{ missing is defined }}{{ nil is none }}{{ nil is defined }}{{ i is odd }}{{ i is divisibleby 7 "
          "}}{{ i is eq 7 }}{{ i is not gt 8 }}{{ i is in [7] }}{{ nil is sameas none }}",
          "FalseTrueTrueTrueTrueTrueTrueTrueTrue"},
         {"{{ 'A1' is upper }}{{ 'a' is lower }}{{ range is callable }}{{ true is true }}{{ 0 is false }}{{ "
          "'upper' is filter }}{{ not missing is defined }}",
          "TrueTrueTrueTrueFalseTrueTrue"},
         {"{{ 1 is nosuch }}", "ERROR: chat template, line 1: no test named 'nosuch'"},
         {"{{ 1 is odd is even }}", "ERROR: chat template, line 1: tests cannot be chained with 'is'"}});
}

TEST(Jinja, StringMethods) {
  check({{"{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a b c'.rsplit(' ', 1) }}{{ ' a b '.split(None, "
          "1) }}{{ 'a\nb\r\nc'.splitlines() }}",
          "['a', 'b', 'c']['a', 'b,c']['a b', 'c']['a', 'b ']['a', 'b', 'c']"},
         {"{{ 'xxaxx'.strip('x') }}{{ ' a'.lstrip() }}{{ 'a\n'.rstrip('\n') }}{{ s.startswith(('x', 'He')) "
          "}}{{ s.endswith('d') }}{{ u.find('😀') }}{{ s.rfind('o') }}{{ s.count('l') }}{{ u.upper() }}",
          "aaaTrueTrue683GRÖSSE 😀"},
         {"{{ '-'.join(w) }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'ab'.replace('', '-') }}{{ 'a-b'.partition('-') "
          "}}{{ 'foobar'.removeprefix('foo') }}{{ 'they\\'re'.title() }}{{ '42'.isdigit() }}{{ '7'.zfill(3) }}",
          "b-A-cbba-a-b-('a', '-', 'b')barThey'ReTrue007"},
         {"{{ d.get('b') }}{{ d.get('z') }}{{ d.get('z', 4) }}{{ d.keys()|list }}{{ d.values()|list }}{{ "
          "l.index(1) }}",
          "1None4['b', 'A', 'items'][1, 2, 5]1"},
         {"{{ '-'.join(l) }}", "ERROR: chat template, line 1: join: expected strings, found int"}});
}

TEST(Jinja, Globals) {
  check({{"{{ range(2, 8, 3)|list }}{{ range(3)|length }}{{ range(5, 0, -2)|list }}{{ dict(a=1) }}{{ "
          "range(3, 0, -1)[::2] }}",
          "[2, 5]3[5, 3, 1]{'a': 1}range(3, 0, -2)"},
         {"{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = "
          "joiner('|') %}{{ j() }}{{ j() }}",
          "abab|"},
         {"\n{{ raise_exception('no ' ~ 1) }}", "ERROR: the chat template refuses the conversation (line 2): no 1"},
         {"{{ strftime_now('%Y') }}", "ERROR: chat template, line 1: strftime_now: no date was given to the template"},
         {"{{ self.x }}{{ self.x is defined }}{{ self is defined }}", "FalseTrue"},  // there are no blocks
         {"{{ lipsum() }}", "ERROR: chat template, line 1: 'lipsum' is undefined"}});
}

TEST(Jinja, SyntaxErrorsNameTheLine) {
  check({{"a\n{% if %}", "ERROR: chat template, line 2: expected an expression, found '%}'"},
         {"{% if 1 %}\n\nx", "ERROR: chat template, line 1: 'if' has no end: 'endif' is missing"},
         {"\n\n{% nosuch %}", "ERROR: chat template, line 3: unknown tag 'nosuch'"},
         {"{% include 'x' %}",
          "ERROR: chat template, line 1: '{% include %}' is not supported: a chat template stands alone"},
         {"{{ 'abc }}", "ERROR: chat template, line 1: the string that starts here has no end"},
         {"{{ 1 + }}", "ERROR: chat template, line 1: expected an expression, found '}}'"},
         {"{{ (1 }}", "ERROR: chat template, line 1: unexpected '}', expected ')'"},
         {"{{ 1 ] }}", "ERROR: chat template, line 1: unexpected ']'"},
         {"{# x", "ERROR: chat template, line 1: the comment has no end: '#}' is missing"},
         {"{% raw %}", "ERROR: chat template, line 1: the raw block has no end: '{% endraw %}' is missing"},
         {"{% endif %}", "ERROR: chat template, line 1: 'endif' without a beginning"},
         {"{% break %}", "ERROR: chat template, line 1: 'break' outside of a loop"},
         {"{{ a $ b }}", "ERROR: chat template, line 1: unexpected character '$'"},
         {"{{ 007 }}", "ERROR: chat template, line 1: expected '}}', found '7'"},
         {"{{ f(a=1, 2) }}", "ERROR: chat template, line 1: invalid order of call arguments"},
         {"{{ 99999999999999999999 }}", "ERROR: chat template, line 1: an integer does not fit 64 bits"}});
}

TEST(Jinja, HostileTemplatesHitALimit) {
  const auto refused = [](const std::string& source, const std::string& why) {
    jinja::Limits limits;
    limits.max_steps = 200'000;
    limits.max_string_bytes = 1 << 20;
    limits.max_output_bytes = 1 << 20;
    limits.max_allocated_bytes = 64 << 20;
    const std::string text = render(source, limits);
    EXPECT_TRUE(text.starts_with("ERROR: chat template, line ")) << source << ": " << text.substr(0, 200);
    EXPECT_NE(text.find(why), std::string::npos) << source << ": " << text.substr(0, 200);
  };
  const std::string deep(5000, '('), many_nots = [] {
    std::string s;
    for (int i = 0; i < 5000; ++i) s += "not ";
    return s;
  }();
  refused("{{ " + deep + "1" + std::string(5000, ')') + " }}", "nested more than");
  refused("{{ " + std::string(5000, '[') + std::string(5000, ']') + " }}", "nested more than");
  refused("{{ " + many_nots + "1 }}", "nested more than");
  refused("{{ " + std::string(5000, '-') + "1 }}", "nested more than");
  std::string sum = "1", ifs, chain = "x";
  for (int i = 0; i < 5000; ++i) sum += "+1", ifs += "{% if 1 %}", chain += ".a";
  refused("{{ " + sum + " }}", "nested more than");
  refused("{{ " + chain + " }}", "nested more than");
  refused(ifs, "nested more than");
  refused("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "steps");
  refused("{{ range(100001) }}", "at most 100000");
  refused("{{ 'x' * 100000000 }}", "longer than");
  refused("{{ [1] * 100000000 }}", "longer than");
  refused("{{ 'x'.center(100000000) }}", "longer than");
  refused("{{ '%99999999d' % 1 }}", "longer than");
  refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply");
  refused("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}", "levels deep");
  refused(
      "{% set ns = namespace(x='') %}{% for i in range(9999) %}{% set ns.x = ns.x|map('string') %}{% endfor "
      "%}",
      "levels deep");
  refused(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
      "ns.x == [ns.x] or ns.x|string }}",
      "steps");
  refused("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
          "longer than");
  refused("{% for i in range(99) %}{{ 'x' * 50000 }}{% endfor %}", "longer than");
}

TEST(Jinja, CyclesThroughNamespacesAreFreed) {  // LeakSanitizer watches
  check({{"{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{% endmacro %}{% set ns.m = m %}x", "x"},
         {"{% set ns = namespace(l=0) %}{% for i in range(20) %}{% for j in [ns.l] %}{% set ns.l = loop "
          "%}{% endfor %}{% endfor %}x",
          "x"},
         {"{% set ns = namespace(j=joiner()) %}{% for i in range(50) %}{% set ns.j = joiner(ns.j) %}{% "
          "endfor %}x",
          "x"}});
}

TEST(Jinja, RendersFromManyThreads) {
  auto parsed = ChatTemplate::parse(
      "{% macro m(x) %}{{ x|tojson }}{% endmacro %}{% for x in users %}{{ m(x) }}{{ 'k'|upper }}{% endfor "
      "%}");
  ASSERT_TRUE(parsed.ok());
  const std::string expected = parsed->render_variables(variables())->text;
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) wrong += parsed->render_variables(variables())->text != expected;
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Jinja, BytesThatAreNotUtf8PassThrough) {
  auto parsed = ChatTemplate::parse("\xff{{ x[0] }}|{{ x|length }}|{{ x|upper }}");
  ASSERT_TRUE(parsed.ok());
  ordered_json v;
  v["x"] = "\xc3(a";
  EXPECT_EQ(parsed->render_variables(v)->text, "\xff\xc3|3|\xc3(A");
}

}  // namespace
}  // namespace quire
