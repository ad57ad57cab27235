// Calls of tools as models write them, well and badly, cut at every place.
#include <gmock/gmock.h>

#include "server/tool_texts.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Call = Read::Call;

Read read(std::string_view format, std::string_view text, bool ended = true) {
  return read_however_cut(syntax_of(format, some_tools()), text, ended);
}
Call whole(std::string name, std::string arguments) {
  return {std::move(name), std::move(arguments), true};
}

constexpr std::string_view kXml =
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>";

TEST(ToolCalls, QwenXml) {
  const Read r = read("qwen3_coder", kXml);
  EXPECT_THAT(r.calls, ElementsAre(whole("get_weather", R"({"city": "Paris", "days": 3})")));
  EXPECT_EQ(r.text, "");
}

TEST(ToolCalls, WhiteSpaceAroundCallsIsNoContentAndTextAroundThemIs) {
  const std::string xml(kXml);
  EXPECT_EQ(read("qwen3_xml", "\n\n" + xml + "\n").text, "");
  EXPECT_EQ(read("qwen3_xml", "Let me see.\n\n" + xml).text, "Let me see.");
  EXPECT_EQ(read("qwen3_xml", xml + "\n\nDone. ").text, "Done. ");
  const Read r = read("qwen3_xml", "One\n" + xml + "\n two \n" + xml + "\n" + xml);
  EXPECT_EQ(r.text, "One\n two");
  EXPECT_EQ(r.calls.size(), 3u) << "the same call, three times";
  EXPECT_EQ(read("qwen3_xml", " no call \n").text, " no call \n");
}

TEST(ToolCalls, ValuesHaveTheTypesOfTheSchema) {
  const auto argument = [](const std::string& key, const std::string& value) {
    const Read r = read("qwen3_xml", "<tool_call>\n<function=get_weather>\n<parameter=" + key + ">\n" + value +
                                         "\n</parameter>\n</function>\n</tool_call>");
    EXPECT_EQ(r.calls.size(), 1u);
    return Json::parse(r.calls.at(0).arguments)[key].dump();
  };
  EXPECT_EQ(argument("city", "5"), R"("5")") << "a number as a string";
  EXPECT_EQ(argument("city", "null"), R"("null")");
  EXPECT_EQ(argument("days", "5"), "5");
  EXPECT_EQ(argument("days", "five"), R"("five")") << "no integer: what the model wrote";
  EXPECT_EQ(argument("days", "12345678901234567890"), "12345678901234567890");
  EXPECT_EQ(argument("metric", "True"), "true") << "as Python prints it";
  EXPECT_EQ(argument("metric", "false"), "false");
  EXPECT_EQ(argument("where", R"({"a": {"b": []}})"), R"({"a":{"b":[]}})");
  EXPECT_EQ(argument("where", "{}"), "{}");
  EXPECT_EQ(argument("tags", R"(["x", 1])"), R"(["x",1])");
  EXPECT_EQ(argument("code", "None"), "null");
  EXPECT_EQ(argument("code", "x"), R"("x")");
  EXPECT_EQ(argument("limit", "1.5"), "1.5");
  EXPECT_EQ(argument("days", "None"), "null") << "no integer, and not the word either";
  EXPECT_EQ(argument("unknown", "null"), R"("null")");
  EXPECT_EQ(argument("days", std::string("3\0x", 3)), R"("3\u0000x")") << "a NUL ends no value";
  EXPECT_EQ(argument("kind", "a"), R"("a")");
  EXPECT_EQ(argument("unknown", "7"), R"("7")");
  EXPECT_EQ(argument("unknown", "[7]"), "[7]");
}

TEST(ToolCalls, ValuesMayHoldAnything) {
  for (const std::string value : {"two\nlines",
                                  "\nlines around\n",
                                  "a $HOME `x` $1 \\",
                                  "a < b && c > d",
                                  "say \"hi\" 'x'",
                                  "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
                                  "",
                                  " ",
                                  "<b>bold</b>",
                                  "</parameter> is a tag",
                                  "x</function> y",
                                  "</parameter></parameter>",
                                  "<parameter=x>",
                                  "<tool_call>",
                                  "</tool_call>",
                                  "<|im_end|>",
                                  "tab\tand \x01 control",
                                  "\\n",
                                  "<",
                                  "</",
                                  "\n<",
                                  "{\"a\": 1}"}) {
    const Read r = read("qwen3_xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + value +
                                         "\n</parameter>\n</function>\n</tool_call>");
    ASSERT_EQ(r.calls.size(), 1u) << value;
    EXPECT_TRUE(r.calls[0].complete) << value;
    EXPECT_EQ(Json::parse(r.calls[0].arguments)["city"], value);
    EXPECT_EQ(r.text, "");
  }
}

TEST(ToolCalls, XmlThatIsNotQuiteRight) {
  const Call call = whole("get_weather", R"({"city": "Paris"})");
  for (const char* text : {
           "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
           "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
           "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis</parameter>\n</function>\n</tool_call>",
           "<tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter></function></tool_call>",
           "<tool_call><function=get_weather><parameter=city>\nParis\n</parameter></tool_call>",
           "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
           "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
           "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>",
           "<tool_call>\n<function=get_weather>\n{\"city\": \"Paris\"}\n</function>\n</tool_call>",
           "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
       }) {
    const Read r = read("qwen3_xml", text);
    EXPECT_THAT(r.calls, ElementsAre(call)) << text;
    EXPECT_EQ(r.text, "") << text;
  }
  EXPECT_THAT(read("qwen3_xml", "<tool_call>\n<function=now>\n</function>\n</tool_call>").calls,
              ElementsAre(whole("now", "{}")));
  EXPECT_THAT(read("qwen3_xml", "<tool_call><function=nobody></function></tool_call>").calls,
              ElementsAre(whole("nobody", "{}")))
      << "an unknown name in its tag is a call all the same";
}

TEST(ToolCalls, WhatIsNoCallIsText) {
  for (const std::string_view format : {"qwen3_xml", "hermes", "llama3_json", "mistral", "json"})
    for (const char* text : {
             "plain",
             "a < b",
             "<tool",
             "<tool_call>",
             "<tool_call></tool_call>",
             "<tool_call>\n\n</tool_call> x",
             "<tool_call>\n<function=>\n</function></tool_call>",
             "<tool_call>maybe",
             "<function=unknown> is XML",
             "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
             "<tool_call>{}</tool_call>",
             "<tool_call>{\"name\": 5}</tool_call>",
             "<tool_call>[]</tool_call>",
             "<tool_call>{\"a\" 1}",
             "[TOOL",
             "{",
             "{\"answer\": 42}",
             "{\"name\": \"Bob\", \"age\": 5}",
             "[1, 2]",
             "</tool_call>",
             "<|python_tag|",
             "```json\n{\"x\": 1}\n```",
             "``",
             "{\"name\": \"get_weather\"",
             "<tool_call>{\"name\": \"now\"",
         }) {
      const Read r = read(format, text, false);
      EXPECT_EQ(r.text, text) << format;
      EXPECT_THAT(r.calls, IsEmpty()) << format << ": " << text;
    }
}

TEST(ToolCalls, Json) {
  const Call call = whole("get_weather", R"({"city": "Paris"})");
  for (const char* text : {
           R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>)",
           R"(<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>)",
           R"(<tool_call>{"name": "get_weather", "parameters": {"city": "Paris"}}</tool_call>)",
           R"(<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>)",
           R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>)",
           R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}</tool_call>)",
           R"(<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</tool_call>)",
           R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}})",
           R"(<tool_call>{"id": 7, "x": [1, {"y": "}"}], "name": "get_weather", "arguments": {"city": "Paris"}})",
           R"(<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}})",
       }) {
    const Read r = read("hermes", text);
    EXPECT_THAT(r.calls, ElementsAre(call)) << text;
    EXPECT_EQ(r.text, "") << text;
  }
  const Read two = read("hermes",
                        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
                        "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>");
  EXPECT_THAT(two.calls, ElementsAre(whole("now", "{}"), call));
  EXPECT_THAT(read("hermes", "<tool_call>{\"name\": \"now\"}</tool_call>").calls, ElementsAre(whole("now", "{}")));
  EXPECT_THAT(read("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>").calls,
              ElementsAre(whole("now", "{}")));
}

TEST(ToolCalls, JsonStringsThatAreNotQuiteRight) {
  const Read r =
      read("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"x\ny\\d+\", \"b\": {}}}</tool_call>");
  EXPECT_THAT(r.calls, ElementsAre(whole("now", R"({"a": "x\ny\\d+", "b": {}})")));
  // What is no JSON in the end is cut, and text.
  const Read bad = read("hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\" 1}}</tool_call> after");
  ASSERT_EQ(bad.calls.size(), 1u);
  EXPECT_FALSE(bad.calls[0].complete);
  EXPECT_EQ(bad.cut + bad.text, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\" 1}}</tool_call> after");
}

TEST(ToolCalls, Llama) {
  const Call call = whole("get_weather", R"({"city": "Paris"})");
  const std::string one = R"({"name": "get_weather", "parameters": {"city": "Paris"}})";
  EXPECT_THAT(read("llama3_json", one).calls, ElementsAre(call));
  EXPECT_THAT(read("llama3_json", "\n<|python_tag|>" + one).calls, ElementsAre(call));
  EXPECT_THAT(read("llama3_json", one + "; " + one).calls, ElementsAre(call, call));
  EXPECT_THAT(
      read("llama3_json", R"({"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}})").calls,
      ElementsAre(call));
  const Read quoted = read("llama3_json", "It is " + one);
  EXPECT_THAT(quoted.calls, IsEmpty());
  EXPECT_EQ(quoted.text, "It is " + one);
}

TEST(ToolCalls, Mistral) {
  const Call call = whole("get_weather", R"({"city": "Paris"})");
  const std::string one = R"({"name": "get_weather", "arguments": {"city": "Paris"}})";
  EXPECT_THAT(read("mistral", "[TOOL_CALLS][" + one + "]").calls, ElementsAre(call));
  EXPECT_THAT(read("mistral", "[TOOL_CALLS] [" + one + ", " + one + "]").calls, ElementsAre(call, call));
  EXPECT_THAT(read("mistral", "Wait. [TOOL_CALLS]get_weather{\"city\": \"Paris\"}").calls, ElementsAre(call));
  EXPECT_THAT(read("mistral", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]now[ARGS]{}").calls,
              ElementsAre(call, whole("now", "{}")));
  EXPECT_THAT(read("mistral", "[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Paris\"}").calls,
              ElementsAre(call));
}

TEST(ToolCalls, Generic) {
  const Call call = whole("get_weather", R"({"city": "Paris"})");
  const std::string one = R"({"name": "get_weather", "arguments": {"city": "Paris"}})";
  for (const std::string& text :
       {one, "[" + one + "]", "```json\n" + one + "\n```", "<tool_call>" + one + "</tool_call>",
        "<function_call> " + one + " </function_call>"}) {
    const Read r = read("json", text);
    EXPECT_THAT(r.calls, ElementsAre(call)) << text;
    EXPECT_EQ(r.text, "") << text;
  }
}

TEST(ToolCalls, Harmony) {
  const Read r = read("openai",
                      "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant<|channel|>commentary "
                      "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>");
  EXPECT_EQ(r.reasoning, "I should look.");
  EXPECT_EQ(r.text, "");
  EXPECT_THAT(r.calls, ElementsAre(whole("get_weather", R"({"city": "Paris"})")));
  const Read final =
      read("openai", "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b < c");
  EXPECT_EQ(final.reasoning, "a");
  EXPECT_EQ(final.text, "b < c");
  EXPECT_THAT(read("openai", "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}").calls,
              ElementsAre(whole("now", "{}")));
  EXPECT_THAT(read("openai", "<|channel|>commentary to=functions.now<|message|>").calls,
              ElementsAre(whole("now", "{}")));
  EXPECT_EQ(read("openai", "<|channel|>commentary<|message|>First this.<|end|>").text, "First this.");
  EXPECT_EQ(read("openai", "plain").text, "plain") << "a header that is missing";
  EXPECT_EQ(read("openai", "<|channel|>nonsense here<|message|>x").text, "x");
  const Read broken = read("openai", "<|channel|>commentary to=functions.now<|message|>not JSON<|call|>");
  EXPECT_EQ(broken.cut, "not JSON");
  ASSERT_EQ(broken.calls.size(), 1u);
  EXPECT_FALSE(broken.calls[0].complete);
}

TEST(ToolCalls, ReasoningAndCallsInAnyOrder) {
  const std::string xml(kXml);
  const Read inside = read("qwen3_xml", "<think>\nShall I <tool_call>? " + xml + "\n</think>\n\nNo.");
  EXPECT_THAT(inside.calls, IsEmpty()) << "a call within reasoning is none";
  EXPECT_EQ(inside.text, "No.");
  EXPECT_EQ(inside.reasoning, "Shall I <tool_call>? " + xml);
  const Read both =
      read("qwen3_xml", "<think>\nfirst\n</think>\n\n" + xml + "\n<think>\nsecond\n</think>\n" + xml + "\nend");
  EXPECT_EQ(both.reasoning, "firstsecond");
  EXPECT_EQ(both.calls.size(), 2u);
  EXPECT_EQ(both.text, "end");
  server::AnswerSyntax open = syntax_of("qwen3_xml", some_tools());
  open.inside_reasoning = true;
  const Read unclosed = read_however_cut(open, "hm " + xml);
  EXPECT_THAT(unclosed.calls, IsEmpty());
  EXPECT_EQ(unclosed.reasoning, "hm " + xml);
}

TEST(ToolCalls, ACallThatIsCutIsNoCall) {
  const std::string json = R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>)";
  const std::string harmony = "<|channel|>commentary to=functions.now<|message|>{\"a\": 1}";
  const std::string mistral = R"([TOOL_CALLS]now[ARGS]{"a": 1})";
  for (const auto& [format, text, end] :
       {std::tuple{"qwen3_xml", std::string(kXml), "</function>"}, std::tuple{"hermes", json, "}}"},
        std::tuple{"openai", harmony, "}"}, std::tuple{"mistral", mistral, "}"}}) {
    const size_t enough = text.find(end) + std::string_view(end).size();
    for (size_t n = 0; n < text.size(); ++n) {
      const Read r = read_pieces(syntax_of(format, some_tools()), {std::string_view(text).substr(0, n)}, false);
      const bool complete = !r.calls.empty() && r.calls[0].complete;
      EXPECT_EQ(complete, n >= enough) << format << " after " << n;
      EXPECT_TRUE(r.ordered) << format << " after " << n;
      if (complete || std::string_view(format) == "openai") continue;
      EXPECT_EQ(r.text + r.cut, text.substr(0, n)) << "nothing of it is lost";
    }
  }
}

TEST(ToolCalls, ACallThatIsTooLongIsText) {
  server::AnswerSyntax syntax = syntax_of("hermes", some_tools());
  syntax.limits.max_call_bytes = 100;
  const std::string text =
      R"(<tool_call>{"name": "now", "arguments": {"a": ")" + std::string(200, 'x') + R"("}}</tool_call>)";
  const Read r = read_however_cut(syntax, text);
  ASSERT_EQ(r.calls.size(), 1u);
  EXPECT_FALSE(r.calls[0].complete);
  EXPECT_EQ(r.cut + r.text, text);
}

TEST(ToolCalls, WithoutParallelCallsTheFirstOneStands) {
  server::AnswerSyntax syntax = syntax_of("qwen3_xml", some_tools());
  syntax.parallel = false;
  EXPECT_EQ(read_however_cut(syntax, std::string(kXml) + "\n" + std::string(kXml)).calls.size(), 1u);
}

TEST(ToolCalls, FormatsAreFoundByNameAndByTemplate) {
  for (const auto& [name, ours] : {std::pair{"qwen3_coder", "qwen3_xml"},
                                   {"qwen3_xml", "qwen3_xml"},
                                   {"hermes", "hermes"},
                                   {"openai", "harmony"},
                                   {"mistral", "mistral"},
                                   {"llama3_json", "llama3_json"}})
    EXPECT_EQ(server::find_tool_format(name)->name, ours);
  EXPECT_EQ(server::find_tool_format("pythonic"), nullptr);
  EXPECT_EQ(server::find_tool_format(""), nullptr);
  EXPECT_EQ(server::tool_format_of("{{ '<tool_call>\\n<function=' }}").name, "qwen3_xml");
  EXPECT_EQ(server::tool_format_of("{{ '<tool_call>' }}").name, "hermes");
  EXPECT_EQ(server::tool_format_of("<|start_header_id|>{{ tools }}").name, "llama3_json");
  EXPECT_EQ(server::tool_format_of("anything").name, "json");
}

}  // namespace
}  // namespace quire::test
