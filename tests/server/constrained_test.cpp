// Constrained output over HTTP: every name that clients have for it, what is refused and how, and what is told of what
// is not enforced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const Json kPerson = Json::parse(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
    "age": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "age"],
    "additionalProperties": false})");
const Json kMessages = Json::parse(R"([{"role": "user", "content": "Tell me about a fox."}])");
const Json kWeather = Json::parse(R"({"type": "function", "function": {"name": "get_weather", "parameters":
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}, "days": {"type": "integer",
    "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": false}}})");

class Constrained : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
  static Reply chat(const Json& more, int seed = 1) {
    Json body = {{"messages", kMessages}, {"max_tokens", 300}, {"seed", seed}};
    body.update(more);
    return ask(demo_server().port(), post("/v1/chat/completions", body));
  }
  static std::string content(const Json& more, int seed = 1) {
    const Reply r = chat(more, seed);
    EXPECT_EQ(r.status, 200) << r.body;
    if (r.status != 200) return "";
    EXPECT_EQ(r.json()["choices"][0]["finish_reason"], "stop") << r.body;
    return r.json()["choices"][0]["message"]["content"].get<std::string>();
  }
  static void expect_person(const std::string& text) {
    const Json person = Json::parse(text, nullptr, false);
    ASSERT_TRUE(person.is_object()) << text;
    EXPECT_EQ(person.size(), 2u) << text;
    EXPECT_TRUE(person["name"].is_string()) << text;
    ASSERT_TRUE(person["age"].is_number_integer()) << text;
    EXPECT_LE(person["age"].get<int>(), 99);
  }
};

TEST_F(Constrained, SchemasByEveryName) {
  const Json strict = {{"type", "json_schema"},
                       {"json_schema", {{"name", "person"}, {"strict", true}, {"schema", kPerson}}}};
  for (const Json& more :
       {Json{{"response_format", strict}}, Json{{"response_format", {{"type", "json_object"}, {"schema", kPerson}}}},
        Json{{"structured_outputs", {{"json", kPerson}}}}, Json{{"structured_outputs", {{"json", kPerson.dump()}}}},
        Json{{"guided_json", kPerson}}, Json{{"json_schema", kPerson}}})
    for (const int seed : {1, 2, 3}) expect_person(content(more, seed));
}

TEST_F(Constrained, GrammarsByEveryName) {
  const auto matches = [](const std::string& text, const char* pattern) {
    EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << text;
  };
  for (const char* name : {"guided_regex", "regex"})
    matches(content({{name, "[0-9]{3}-[0-9]{4}"}}), "[0-9]{3}-[0-9]{4}");
  matches(content({{"structured_outputs", {{"regex", "ab+c"}}}}), "ab+c");
  matches(content({{"guided_choice", {"red", "green", "re\"d\n"}}}), "red|green|re\"d\n");
  matches(content({{"structured_outputs", {{"choice", {"red", "green"}}}}}), "red|green");
  for (const char* name : {"guided_grammar", "grammar", "ebnf"})
    matches(content({{name, "root ::= \"yes\" | \"no, \" [a-z]{2,5} \".\""}}), "yes|no, [a-z]{2,5}\\.");
  const Json tag = Json::parse(R"({"type": "structural_tag", "format": {"type": "tag", "begin": "<a>",
      "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</a>"}})");
  matches(content({{"response_format", tag}}), "<a>-?[0-9]+</a>");
  matches(content({{"structured_outputs", {{"structural_tag", tag.dump()}}}}), "<a>-?[0-9]+</a>");
}

TEST_F(Constrained, OtherApis) {
  const uint16_t port = demo_server().port();
  const Json completion = {{"prompt", "A person: "}, {"max_tokens", 300}, {"seed", 3}, {"guided_json", kPerson}};
  Reply r = ask(port, post("/v1/completions", completion));
  ASSERT_EQ(r.status, 200) << r.body;
  expect_person(r.json()["choices"][0]["text"].get<std::string>());
  const Json options = {{"num_predict", 300}, {"seed", 5}};
  r = ask(port, post("/api/chat",
                     Json{{"messages", kMessages}, {"stream", false}, {"format", kPerson}, {"options", options}}));
  ASSERT_EQ(r.status, 200) << r.body;
  expect_person(r.json()["message"]["content"].get<std::string>());
  r = ask(port, post("/v1/responses",
                     Json{{"input", "hi"},
                          {"max_output_tokens", 300},
                          {"text", {{"format", {{"type", "json_schema"}, {"name", "p"}, {"schema", kPerson}}}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(r.body, HasSubstr("age"));
  r = ask(port, post("/v1/messages", Json{{"messages", kMessages},
                                          {"max_tokens", 300},
                                          {"output_format", {{"type", "json_schema"}, {"schema", kPerson}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  expect_person(r.json()["content"][0]["text"].get<std::string>());
}

TEST_F(Constrained, WhatIsNotEnforcedIsToldOrRefused) {
  const Json schema = {{"type", "array"},
                       {"items", {{"type", "integer"}, {"maximum", 9}, {"minimum", 0}}},
                       {"maxItems", 3},
                       {"uniqueItems", true}};
  const auto format = [&](bool strict) {
    return Json{{"response_format",
                 {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"strict", strict}, {"schema", schema}}}}}};
  };
  const Reply refused = chat(format(true));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error(), HasSubstr("'uniqueItems' is not enforced"));
  const Reply told = chat(format(false));
  EXPECT_EQ(told.status, 200) << told.body;
  EXPECT_THAT(told.header("X-Unenforced"), HasSubstr("'uniqueItems' is not enforced"));
  EXPECT_EQ(chat({{"guided_json", kPerson}}).header("X-Unenforced"), "");
}

TEST_F(Constrained, WhatIsNoGrammarIsRefused) {
  for (const auto& [more, says] :
       {std::pair{Json{{"guided_regex", "(("}}, "the regular expression cannot be used"},
        {Json{{"grammar", "root = 5"}}, "the grammar cannot be used"},
        {Json{{"guided_json", {{"type", "strange"}}}}, "there is no type \"strange\""},
        {Json{{"guided_json", {{"$ref", "#/nowhere"}}}}, "which does not exist"},
        {Json{{"guided_json", {{"$ref", "https://example.com/schema"}}}}, "only references within the schema"},
        {Json{{"guided_json", {{"type", "string"}, {"enum", {1}}}}}, "nothing can satisfy it"},
        {Json{{"structured_outputs", {{"structural_tag", "{}"}}}}, "the structural tag cannot be used"},
        {Json{{"guided_json", {{"type", "array"}, {"minItems", -1}}}}, "'minItems' must be a whole number"},
        {Json{{"guided_json", {{"required", "a"}}}}, "'required' must be an array of strings"},
        {Json{{"guided_json", {{"properties", {{"a", {{"$ref", "#"}}}}}, {"required", {"a"}}}}},
         "nothing can satisfy it"},
        {Json{{"guided_regex", "a(?=b)"}}, "lookahead is not supported (at position 2)"},
        {Json{{"guided_regex", "ab\\Acd"}}, "\\A stands in the middle"},
        {Json{{"structured_outputs", {{"regex", ""}}}}, "'structured_outputs.regex' is empty"},
        {Json{{"guided_regex", ""}}, "'guided_regex' is empty"},
        {Json{{"structured_outputs", {{"grammar", ""}}}}, "'structured_outputs.grammar' is empty"},
        {Json{{"guided_grammar", "start: a"}}, "unknown name 'a'"},
        {Json{{"tools", {kWeather}}, {"guided_regex", "a("}}, "the regular expression cannot be used"}}) {
    const Reply r = chat(more);
    EXPECT_EQ(r.status, 400) << more;
    EXPECT_THAT(r.error(), HasSubstr(says));
  }
}

TEST_F(Constrained, TextsComeAsTheyWereAskedFor) {
  EXPECT_EQ(content({{"structured_outputs", {{"choice", {"Yes\nbecause"}}}}}), "Yes\nbecause");
  EXPECT_EQ(content({{"guided_regex", "\\x41\\x0ab"}}), "A\nb");
  EXPECT_EQ(content({{"grammar", "root ::= \"x\\x0Ab\""}}), "x\nb");
  EXPECT_EQ(content({{"structured_outputs", {{"grammar", "start: \"x\\x0Ab\" END\nEND: \"!\""}}}}), "x\nb!");
  EXPECT_EQ(content({{"guided_json", {{"const", "\n0a\t4"}}}}), R"("\n0a\t4")");
  EXPECT_FALSE(content({{"grammar", ""}}).empty()) << "llama.cpp's clients mean none";
}

TEST_F(Constrained, WhatNoGrammarHoldsToIsToldWhereTheSchemaIsNotStrict) {
  const auto with = [](const char* pattern, bool strict) {
    const Json schema = {{"type", "string"}, {"maxLength", 5}, {"pattern", pattern}};
    return chat(
        {{"response_format",
          {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"strict", strict}, {"schema", schema}}}}}});
  };
  const Reply letters = with("^\\p{L}+$", true);
  EXPECT_EQ(letters.status, 200) << letters.body;
  EXPECT_EQ(letters.header("X-Unenforced"), "");
  for (const char* pattern : {"\\p{Greek}", "\\bword", "(?!a)b"}) {
    const Reply told = with(pattern, false);
    EXPECT_EQ(told.status, 200) << told.body;
    EXPECT_THAT(told.header("X-Unenforced"), HasSubstr("'pattern' (")) << pattern;
    EXPECT_EQ(with(pattern, true).status, 400) << pattern;
  }
}

TEST_F(Constrained, ObjectsHaveNoPropertiesThatNobodyNamed) {
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "boolean"}}}}}, {"minProperties", 0}};
  for (const int seed : {1, 2, 3, 4})
    for (const Json& more :
         {Json{{"guided_json", schema}},
          Json{{"structured_outputs", {{"json", schema}, {"disable_additional_properties", true}}}}}) {
      const Json object = Json::parse(content(more, seed), nullptr, false);
      ASSERT_TRUE(object.is_object());
      for (const auto& [name, value] : object.items()) EXPECT_EQ(name, "a");
    }
  const Reply wrong = chat({{"structured_outputs", {{"json", schema}, {"disable_additional_properties", 1}}}});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.error(), HasSubstr("must be a boolean"));
}

// --additional-properties: the model fills objects with names of its own, unless the request says otherwise.
TEST_F(Constrained, TheStandardsLetterIsAnOption) {
  DemoServer server({.limits = {.additional_properties = true}});
  const Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "boolean"}}}}}, {"maxProperties", 3}};
  const auto invented = [&](bool disable) {
    int count = 0;
    for (const int seed : {1, 2, 3, 4}) {
      const Reply r =
          ask(server.port(),
              post("/v1/chat/completions",
                   Json{{"messages", kMessages},
                        {"max_tokens", 500},
                        {"seed", seed},
                        {"structured_outputs", {{"json", schema}, {"disable_additional_properties", disable}}}}));
      EXPECT_EQ(r.status, 200) << r.body;
      const std::string text = r.json()["choices"][0]["message"]["content"].get<std::string>();
      const Json object = Json::parse(text, nullptr, false);
      if (object.is_object())
        for (const auto& [name, value] : object.items()) count += name != "a";
    }
    return count;
  };
  EXPECT_GT(invented(false), 0);
  EXPECT_EQ(invented(true), 0);
}

TEST_F(Constrained, WhatExplodesIsRefusedAndNothingStalls) {
  for (const Json& more : {Json{{"guided_regex", "(a|b|c){1,3000}(d{1,3000}|e{1,3000}){1,300}"}},
                           Json{{"guided_regex", "(.*a){40}.{200}"}},
                           Json{{"guided_json", {{"type", "integer"}, {"multipleOf", 999999999}}}}}) {
    const auto begin = std::chrono::steady_clock::now();
    const Reply r = chat({{"max_tokens", 4}, {more.begin().key(), more.begin().value()}});
    EXPECT_THAT(r.status, testing::AnyOf(200, 400)) << r.body;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << more;
  }
  Json choices = Json::array();
  for (int i = 0; i < 10000; ++i) choices.push_back(fmt::format("option {}", i));
  EXPECT_THAT(content({{"guided_choice", choices}}), testing::StartsWith("option "));
  EXPECT_THAT(content({{"guided_json", {{"enum", choices}}}}), testing::StartsWith("\"option "));
}

TEST_F(Constrained, CallsThatMustBe) {
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"function", {{"name", "get_weather"}}}}})
    for (const int seed : {1, 2, 3}) {
      const Reply r = chat({{"tools", {kWeather}}, {"tool_choice", choice}, {"parallel_tool_calls", false}}, seed);
      ASSERT_EQ(r.status, 200) << r.body;
      const Json answer = r.json()["choices"][0];
      EXPECT_EQ(answer["finish_reason"], "tool_calls") << r.body;
      ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u) << r.body;
      const Json& call = answer["message"]["tool_calls"][0]["function"];
      EXPECT_EQ(call["name"], "get_weather");
      const Json arguments = Json::parse(call["arguments"].get<std::string>(), nullptr, false);
      ASSERT_TRUE(arguments.is_object()) << r.body;
      EXPECT_TRUE(arguments["city"].is_string()) << r.body;
      EXPECT_TRUE(arguments["days"].is_number_integer()) << r.body;
    }
  const Json tool = {
      {"name", "f"},
      {"input_schema", {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}}}};
  const Reply r =
      ask(demo_server().port(),
          post("/v1/messages", Json{{"messages", kMessages},
                                    {"max_tokens", 100},
                                    {"tools", {tool}},
                                    {"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", true}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["stop_reason"], "tool_use") << r.body;
}

// Agents send tools and a form with every turn.
TEST_F(Constrained, ToolsBesideAForm) {
  const Json format = {{"type", "json_schema"}, {"json_schema", {{"name", "person"}, {"schema", kPerson}}}};
  const auto ask_both = [&](const Json& choice, int seed) {
    return chat({{"tools", {kWeather}},
                 {"tool_choice", choice},
                 {"parallel_tool_calls", false},
                 {"max_tokens", 400},
                 {"response_format", format}},
                seed);
  };
  int calls = 0, forms = 0;
  for (int seed = 1; seed <= 8; ++seed) {
    const Reply r = ask_both("auto", seed);
    ASSERT_EQ(r.status, 200) << r.body;
    const Json answer = r.json()["choices"][0];
    if (answer["finish_reason"] == "tool_calls") {
      ++calls;
      const Json arguments =
          Json::parse(answer["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>(), nullptr, false);
      EXPECT_TRUE(arguments["days"].is_number_integer()) << r.body;
    } else {
      ++forms;
      EXPECT_EQ(answer["finish_reason"], "stop") << r.body;
      expect_person(answer["message"]["content"].get<std::string>());
    }
  }
  EXPECT_GT(forms, 0);
  EXPECT_GT(calls, 0);
  const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  for (const Json& choice : {Json("required"), named}) {
    const Reply r = ask_both(choice, 1);
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(r.json()["choices"][0]["finish_reason"], "tool_calls") << r.body;
  }
  const Reply none = ask_both("none", 1);
  ASSERT_EQ(none.status, 200) << none.body;
  expect_person(none.json()["choices"][0]["message"]["content"].get<std::string>());
}

TEST_F(Constrained, ToolsBesideAFormInEveryApi) {
  const uint16_t port = demo_server().port();
  const Json schema = kPerson, parameters = kWeather["function"]["parameters"];
  const auto is_either = [&](const std::string& text, bool called) {
    if (!called) expect_person(text);
  };
  Reply r = ask(port, post("/v1/responses",
                           Json{{"input", "Weather?"},
                                {"max_output_tokens", 400},
                                {"tools", {{{"type", "function"}, {"name", "w"}, {"parameters", parameters}}}},
                                {"text", {{"format", {{"type", "json_schema"}, {"name", "p"}, {"schema", schema}}}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json item = r.json()["output"].back();
  is_either(item["type"] == "message" ? item["content"][0]["text"].get<std::string>() : "",
            item["type"] == "function_call");
  r = ask(port, post("/v1/messages", Json{{"messages", kMessages},
                                          {"max_tokens", 400},
                                          {"tools", {{{"name", "w"}, {"input_schema", parameters}}}},
                                          {"output_format", {{"type", "json_schema"}, {"schema", schema}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json block = r.json()["content"].back();
  is_either(block["type"] == "text" ? block["text"].get<std::string>() : "", block["type"] == "tool_use");
  r = ask(port, post("/api/chat", Json{{"messages", kMessages},
                                       {"stream", false},
                                       {"tools", {kWeather}},
                                       {"format", schema},
                                       {"options", {{"num_predict", 400}}}}));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json message = r.json()["message"];
  is_either(message["content"].get<std::string>(), message.contains("tool_calls"));
}

TEST_F(Constrained, StrictToolsDoNotHinderText) {
  Json strict = kWeather;
  strict["function"]["strict"] = true;
  EXPECT_FALSE(content({{"tools", {strict}}, {"temperature", 0}}).empty());
  strict["function"]["parameters"]["properties"]["city"]["not"] = {{"const", "Rome"}};
  const Reply r = chat({{"tools", {strict}}});
  EXPECT_EQ(r.status, 400) << r.body;
  EXPECT_THAT(r.error(), HasSubstr("'not' is not enforced"));
}

TEST_F(Constrained, TokensWordsAndStops) {
  const std::string free = content({{"temperature", 0}});
  const std::string word = free.substr(free.find(' ') + 1, free.find(' ', free.find(' ') + 1) - free.find(' ') - 1);
  EXPECT_EQ(content({{"temperature", 0}, {"bad_words", {word}}}).find(" " + word + " "), std::string::npos) << word;
  const std::string cut = content({{"temperature", 0}, {"stop", {word}}});
  EXPECT_EQ(content({{"temperature", 0}, {"stop", {word}}, {"include_stop_str_in_output", true}}), cut + word);
  const Reply r = chat({{"allowed_token_ids", {100, 101, 102}}, {"max_tokens", 8}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["usage"]["completion_tokens"], 8);
}

TEST_F(Constrained, AnswersCountAndMetricsTell) {
  ASSERT_EQ(chat({{"guided_json", kPerson}, {"max_tokens", 1}}).status, 200);  // compiles the schema
  const Reply r = chat({{"n", 3}, {"guided_json", kPerson}, {"logprobs", true}, {"top_logprobs", 2}});
  ASSERT_EQ(r.status, 200) << r.body;
  const Json body = r.json();
  ASSERT_EQ(body["choices"].size(), 3u);
  for (const Json& choice : body["choices"]) expect_person(choice["message"]["content"].get<std::string>());
  EXPECT_GT(demo_server().metric("quire:grammars_compiled_total"), 0);
  EXPECT_GT(demo_server().metric("quire:grammar_cache_hits_total"), 0);
  EXPECT_GE(demo_server().metric(R"(quire:mask_waited_steps_total{model_name="demo",engine="0"})"), 0);
}

TEST_F(Constrained, RequestsAreCountedByWhatTheyMustBe) {
  const auto count = [](const std::string& kind) {
    return std::max(0.0, demo_server().metric("quire:constrained_requests_total{constraint=\"" + kind + "\"}"));
  };
  for (const auto& [kind, more] : {std::pair{"json_schema", Json{{"guided_json", kPerson}}},
                                   {"json_object", Json{{"response_format", {{"type", "json_object"}}}}},
                                   {"regex", Json{{"guided_regex", "a"}}},
                                   {"grammar", Json{{"guided_choice", {"red"}}}},
                                   {"tokens", Json{{"bad_words", {"red"}}}},
                                   {"tools", Json{{"tools", {kWeather}}, {"tool_choice", "required"}}}}) {
    const double before = count(kind);
    Json body = {{"max_tokens", 1}};
    body.update(more);
    EXPECT_EQ(chat(body).status, 200) << kind;
    EXPECT_EQ(count(kind), before + 1) << kind;
  }
  const double tokens = count("tokens");
  EXPECT_EQ(chat({{"max_tokens", 1}, {"tools", {kWeather}}}).status, 200) << "free: no constraint";
  EXPECT_EQ(count("tokens"), tokens);
}

// A stream must not begin that no text can go on in.
TEST_F(Constrained, WhatNothingSatisfiesIsRefusedBeforeAStreamBegins) {
  for (const auto& [more, says] :
       {std::pair{Json{{"guided_json", {{"allOf", {{{"$ref", "#"}}}}}}}, "nothing can satisfy"},
        {Json{{"guided_regex", "[^\\s\\S]a"}}, "no text satisfies it"}}) {
    Json body = {{"stream", true}};
    body.update(more);
    const Reply r = chat(body);
    EXPECT_EQ(r.status, 400) << r.body;
    EXPECT_THAT(r.error(), HasSubstr(says));
  }
}

}  // namespace
}  // namespace quire::test
