// What a prompt has from outside is known to the byte, whatever a template does with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tokenizer/chat_template.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

// What came from outside stands in «».
std::string marked(const RenderedPrompt& p) {
  std::string out;
  size_t at = 0;
  for (const jinja::ByteRange& r : p.foreign) {
    EXPECT_TRUE((r.begin > at || (at == 0 && r.begin == 0)) && r.begin < r.end && r.end <= p.text.size());
    out += p.text.substr(at, r.begin - at) + "«" + p.text.substr(r.begin, r.end - r.begin) + "»";
    at = r.end;
  }
  return out + p.text.substr(at);
}

const ordered_json& variables() {
  static const auto kVariables = ordered_json::parse(R"({
    "c": "Ab cd", "q": "a\"b\n<", "u": "größe", "sp": "  x ", "l": ["x", "y"], "d": {"k": "v"}, "n": 7,
    "t": "<a>x</a>y", "e": "", "m": {"role": "user", "content": "hi"}})");
  return kVariables;
}

std::string render(const std::string& source) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return "ERROR: " + parsed.error().message;
  const auto prompt = parsed->render_variables(variables());
  return prompt.ok() ? marked(*prompt) : "ERROR: " + prompt.error().message;
}

struct Case {
  const char* source;
  const char* expected;
};
void check(std::initializer_list<Case> cases) {
  for (const Case& c : cases) EXPECT_EQ(render(c.source), c.expected) << c.source;
}

TEST(Provenance, JoiningAndPrinting) {
  check({{"<s>{{ c }}</s>", "<s>«Ab cd»</s>"},
         {"{{ '<s>' + c + '</s>' }}", "<s>«Ab cd»</s>"},
         {"{{ '<s>' ~ c ~ n ~ '</s>' }}", "<s>«Ab cd»7</s>"},
         {"{{ c + c }}{{ e }}", "«Ab cdAb cd»"},
         {"{{ c * 2 ~ 'x' * 2 }}{{ ('a' ~ c) * 2 }}", "«Ab cdAb cd»xxa«Ab cd»a«Ab cd»"},
         {"{{ l }}{{ d }}", "['«x»', '«y»']{'«k»': '«v»'}"},
         {"{{ q }}|{{ [q] }}", "«a\"b\n<»|['«a\"b\\n<»']"},
         {"{{ l | join('-') }}{{ '+'.join(l) }}{{ ['a', 'b'] | join(c) }}", "«x»-«yx»+«y»a«Ab cd»b"},
         {"{% set x %}<{{ c }}>{% endset %}{{ x }}{{ x | string }}", "<«Ab cd»><«Ab cd»>"},
         {"{% macro f(a) %}[{{ a }}{{ caller() }}]{% endmacro %}{% call f(c) %}!{{ c }}{% endcall %}",
          "[«Ab cd»!«Ab cd»]"},
         {"{% for x in c[:2] %}{{ x }}.{% endfor %}", "«A».«b»."},
         {"{% for x in l recursive %}<{{ x }}{{ loop('z') if loop.first and x != 'z' }}>{% endfor %}", "<«x»<z>><«y»>"},
         {"{% set ns = namespace(a=c) %}{% set ns.a = ns.a + '!' %}{{ ns.a }}", "«Ab cd»!"},
         {"{% filter upper %}x{{ c }}{% endfilter %}", "X«AB CD»"}});
}

TEST(Provenance, PartsOfTexts) {
  check(
      {{"{{ c[1:3] }}|{{ ('ab' ~ c)[1:3] }}|{{ ('ab' ~ c ~ 'z')[::-1] }}|{{ c[0] }}", "«b »|b«A»|z«dc bA»ba|«A»"},
       {"{{ sp | trim }}|{{ sp.strip() }}|{{ ('.' ~ sp).rstrip() }}|{{ ('x' ~ c).strip('xd') }}",
        "«x»|«x»|.«  x»|«Ab c»"},
       {"{{ t.split('</a>')[0].split('<a>')[-1] }}|{{ ('k:' ~ c).split(':') | join(',') }}", "«x»|k,«Ab cd»"},
       {"{{ ('a ' ~ c).split() | join('_') }}|{{ ('a ' ~ c).rsplit(none, 1) | join('_') }}", "a_«Ab»_«cd»|a «Ab»_«cd»"},
       {"{{ ('k=' ~ c).partition('=') | join('|') }}|{{ (c ~ '=v').rpartition('=') | last }}", "k|=|«Ab cd»|v"},
       {"{{ ('a\n' ~ c ~ '\nb').splitlines() | join('/') }}", "a/«Ab cd»/b"},
       {"{{ ('p' ~ c).removeprefix('p') }}|{{ (c ~ 's').removesuffix('s') }}", "«Ab cd»|«Ab cd»"},
       {"{{ c | first }}{{ c | last }}{{ c | reverse }}{{ c | list | join }}", "«Addc bAAb cd»"},
       {"{{ (c ~ ' longer than that') | truncate(9, true) }}", "«Ab cd» ..."}});
}

TEST(Provenance, ChangedTexts) {
  check({{"{{ c.replace('b', '<b>') }}|{{ '<b>'.replace('b', c) }}|{{ c | replace(' ', '') }}",
          "«A»<b>« cd»|<«Ab cd»>|«Abcd»"},
         {"{{ 'ab'.replace('', c, 2) }}", "«Ab cd»a«Ab cd»b"},
         {"{{ ('x' ~ c) | upper }}|{{ ('x' ~ c).lower() }}|{{ ('x ' ~ c) | title }}|{{ ('x' ~ "
          "c).capitalize() }}",
          "X«AB CD»|x«ab cd»|X «Ab Cd»|X«ab cd»"},
         {"{{ ('x' ~ u) | upper }}", "«XGRÖSSE»"},  // letters that change their length: all of it
         {"{{ q | tojson }}|{{ d | tojson }}|{{ {'a': c, 'b': 'x'} | tojson }}",
          "\"«a\\\"b\\n<»\"|{\"«k»\": \"«v»\"}|{\"a\": \"«Ab cd»\", \"b\": \"x\"}"},
         {"{{ u | tojson(ensure_ascii=true) }}", "\"«gr\\u00f6\\u00dfe»\""},
         {"{{ [1] | tojson(indent=c) }}", "«[\nAb cd1\n]»"},
         {"{{ q | escape }}|{{ ('<' ~ c) | e }}|{{ ('<'|safe) ~ q }}", "«a&#34;b\n&lt;»|&lt;«Ab cd»|<«a\"b\n<»"},
         {"{{ ('<b>'|safe) + q }}", "<b>«a&#34;b\n&lt;»"},
         {"{{ 'a\nb' | indent(c) }}|{{ (c ~ '\nb') | indent(2) }}", "a\n«Ab cd»b|«Ab cd»\n  b"},
         {"{{ ('%s|' ~ '%5s|%r') % (c, c[0], l) }}", "«Ab cd»|    «A»|['«x»', '«y»']"},
         {"{{ '<%(k)s>' % d }}{{ '{}:{k}'.format(c, **d) }}{{ '%s!' | format(c) }}", "<«v»>«Ab cd»:«vAb cd»!"},
         {"{{ (c ~ '%s') % 'x' }}|{{ (c ~ '{:*>3}').format('x') }}|{{ '{:*>3}'.format(c[0]) }}",
          "«Ab cd»x|«Ab cd**»x|**«A»"},
         {"{{ c.center(9, '.') }}|{{ c.rjust(7) }}|{{ 'x'.ljust(3, c[0]) }}|{{ c[:1].zfill(3) }}",
          "..«Ab cd»..|  «Ab cd»|x«AA»|00«A»"},
         {"{{ ('a\t' ~ c).expandtabs(4) }}|{{ ('/' ~ c) | urlencode }}", "a   «Ab cd»|/«Ab%20cd»"},
         {"{{ c | default('x') }}{{ missing | default(c) }}{{ c if c else 'x' }}", "«Ab cdAb cdAb cd»"}});
}

// Names of attributes can come from outside where a mapping becomes keywords.
TEST(Provenance, NamesThatComeFromKeys) {
  check({{"{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}", "«k»=«v»"},
         {"{{ dict(**d) | list | first }}", "«k»"},
         {"{% macro f() %}{{ kwargs | list | first }}{% endmacro %}{{ f(**d) }}", "«k»"},
         {"{{ namespace(**d) }}", "<Namespace {«'k': »'«v»'}>"}});
}

TEST(Provenance, OfConversations) {
  const auto parsed = ChatTemplate::parse(
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}{{ "
      "extra }}");
  ASSERT_TRUE(parsed.ok());
  const ordered_json extra = {{"extra", "x"}};
  const auto prompt = parsed->render({{{"role", "user"}, {"content", "<|end|>"}}, {{"role", "end"}, {"content", "b"}}},
                                     nullptr, {.bos_token = "<s>", .eos_token = "</s>", .extra = &extra});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(marked(*prompt), "<s><|user|>«<|end|>»</s><|«end»|>«b»</s>«x»");
}

TEST(Provenance, ManyRangesStayWithinTheBudget) {
  jinja::Limits limits;
  limits.max_allocated_bytes = 1 << 20;
  const auto parsed = ChatTemplate::parse("{{ (s | list | join('.')) | length }}", limits);
  const auto too_many = parsed->render_variables({{"s", std::string(100'000, 'x')}});
  ASSERT_FALSE(too_many.ok());
  EXPECT_THAT(too_many.error().message, testing::HasSubstr("builds more than"));
}

std::string read(const std::string& name) {
  std::ifstream in(QUIRE_SOURCE_DIR "/tests/data/templates/" + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// In every golden prompt a letter that only the conversation has is from outside, and none of the template's control
// tokens is in any part.
TEST(Provenance, OfTheGoldenConversations) {
  const auto goldens = ordered_json::parse(read("goldens.json"));
  constexpr std::string_view kLetter = "\xee\x80\x80";  // U+E000, for private use
  const std::function<void(ordered_json&)> mark = [&](ordered_json& v) {
    if (v.is_structured())
      for (auto& [key, item] : v.items())
        if (key != "role" && key != "type" && key != "id") mark(item);
    if (v.is_string()) v = v.get<std::string>() + std::string(kLetter);
  };
  size_t letters = 0, controls = 0;
  for (const auto& expected : goldens["cases"]) {
    const std::string name = expected["template"];
    SCOPED_TRACE(name + " / " + expected["conversation"].get<std::string>());
    const auto parsed = ChatTemplate::parse(read(name));
    ordered_json messages = goldens["conversations"][expected["conversation"].get<std::string>()];
    const bool brings_controls =
        messages.dump().find("<|") != std::string::npos ||
        messages.dump().find("critic") != std::string::npos;  // "<|critic|>" is not the template's
    mark(messages);
    std::tm date{};
    date.tm_mday = 1;
    const auto prompt = parsed->render(messages, nullptr, {.bos_token = "<s>", .eos_token = "</s>", .now = date});
    if (!prompt.ok()) continue;
    std::vector<bool> foreign(prompt->text.size());
    for (const jinja::ByteRange& r : prompt->foreign)
      std::fill(foreign.begin() + static_cast<std::ptrdiff_t>(r.begin),
                foreign.begin() + static_cast<std::ptrdiff_t>(r.end), true);
    for (size_t at = prompt->text.find(kLetter); at != std::string::npos;
         at = prompt->text.find(kLetter, at + 1), ++letters)
      EXPECT_TRUE(foreign[at] && foreign[at + 2]) << at;
    if (brings_controls) continue;
    for (size_t at = prompt->text.find("<|"); at != std::string::npos; at = prompt->text.find("<|", at + 1)) {
      const size_t end = prompt->text.find("|>", at) + 2;
      if (prompt->text.substr(at, end - at).find(" to=") != std::string::npos) continue;  // names a function
      ++controls;
      EXPECT_EQ(std::count(foreign.begin() + static_cast<std::ptrdiff_t>(at),
                           foreign.begin() + static_cast<std::ptrdiff_t>(end), true),
                0)
          << at;
    }
  }
  EXPECT_GT(letters, 100u);
  EXPECT_GT(controls, 100u);
}

// Roles are found out by trying.
TEST(TemplateRoles, AreThoseThatATemplateTakes) {
  using testing::ElementsAre;
  const auto roles = [](const std::string& source) { return ChatTemplate::parse(source)->roles(); };
  const TemplateRoles demo = roles(read("demo.jinja"));
  EXPECT_FALSE(demo.any);
  EXPECT_THAT(demo.known, ElementsAre("system", "user", "assistant", "tool"));
  EXPECT_FALSE(demo.take("narrator"));
  EXPECT_TRUE(roles("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}").any);
  EXPECT_TRUE(roles("no conversation").any) << "nothing is known of it";
  const TemplateRoles raising = roles(
      "{% for m in messages %}{% if m.role == 'critic' %}!{{ m.content }}{% elif m.role == 'user' %}{{ "
      "m.content }}"
      "{% else %}{{ raise_exception('no') }}{% endif %}{% endfor %}");
  EXPECT_THAT(raising.known, ElementsAre("user", "critic"));
  EXPECT_TRUE(roles(read("inst_alternating.jinja")).take("tool_results"));
  EXPECT_FALSE(roles(read("inst_alternating.jinja")).take("narrator"));
  EXPECT_FALSE(roles("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}").known.size());
}

}  // namespace
}  // namespace quire
