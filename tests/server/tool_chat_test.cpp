// Tools in chat completions: what the template is given, and what clients are told of calls, in streams and whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const Json kWeather = Json::parse(R"({"type": "function", "function": {"name": "get_weather",
    "description": "Weather of a city & <more>, \u00e9", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}})");
const std::string kCall = R"({"name": "get_weather", "arguments": {"city": "Paris", "days": 3}})";

Json conversation(const Json& messages, const Json& more = Json::object()) {
  Json body = {{"messages", messages}};
  body.update(more);
  return body;
}
Json user(const std::string& text) {
  return {{"role", "user"}, {"content", text}};
}

// The text that a conversation becomes.
std::string prompt_of(uint16_t port, const Json& body) {
  const Reply r = ask(port, post("/tokenize", body));
  EXPECT_EQ(r.status, 200) << r.body;
  return ask(port, post("/detokenize", Json{{"tokens", r.json()["tokens"]}})).json()["prompt"].get<std::string>();
}

class ToolChat : public testing::Test {
 protected:
  ToolChat() { start({}); }
  void start(std::function<void(server::ModelContext::Options&)> context) {
    server_.reset();
    service_ = std::make_shared<ScriptedService>();
    DemoServer::Options o;
    o.service = service_;
    o.context_options = std::move(context);
    server_.emplace(std::move(o));
  }
  Reply chat(const std::vector<std::string>& texts, bool stream, const Json& more = Json::object(),
             FinishReason finish = FinishReason::kStop) {
    service_->will_answer({.texts = texts, .finish = finish});
    Json body = conversation(Json::array({user("hi")}), {{"tools", {kWeather}}, {"stream", stream}});
    body.update(more);
    return ask(server_->port(), post("/v1/chat/completions", body));
  }
  // The message that a client puts together from a stream.
  static Json message_of(const Reply& r) {
    Json message = {{"content", ""}, {"reasoning_content", ""}, {"tool_calls", Json::array()}};
    for (const std::string& e : r.events()) {
      const Json j = Json::parse(e, nullptr, false);
      if (!j.is_object() || j["choices"].empty()) continue;
      const Json& choice = j["choices"][0];
      if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
      const Json& delta = choice["delta"];
      for (const char* member : {"content", "reasoning_content"})
        if (delta.contains(member))
          message[member] = message[member].get<std::string>() + delta[member].get<std::string>();
      if (!delta.contains("tool_calls")) continue;
      for (const Json& d : delta["tool_calls"]) {
        Json& calls = message["tool_calls"];
        const size_t index = d["index"].get<size_t>();
        EXPECT_LE(index, calls.size());
        if (index == calls.size()) {
          EXPECT_EQ(d["type"], "function");
          calls.push_back({{"id", d["id"]}, {"name", d["function"]["name"]}, {"arguments", ""}});
        }
        calls[index]["arguments"] =
            calls[index]["arguments"].get<std::string>() + d["function"]["arguments"].get<std::string>();
      }
    }
    return message;
  }

  std::shared_ptr<ScriptedService> service_;
  std::optional<DemoServer> server_;
};

TEST_F(ToolChat, CallsAreToldWhereverTheirTextIsCut) {
  const std::string text = "<think>\nwhere?\n</think>\n\nLet me look.\n<tool_call>\n" + kCall + "\n</tool_call>";
  for (size_t at = 0; at <= text.size(); at += 3) {
    const std::vector<std::string> texts = {text.substr(0, at), text.substr(at, 5),
                                            text.substr(std::min(text.size(), at + 5))};
    const Json streamed = message_of(chat(texts, true));
    const Json whole = chat(texts, false).json()["choices"][0];
    EXPECT_EQ(whole["finish_reason"], "tool_calls");
    EXPECT_EQ(streamed["finish_reason"], "tool_calls");
    for (const Json& m : {streamed, whole["message"]}) {
      EXPECT_EQ(m["content"], "Let me look.") << "cut at " << at;
      EXPECT_EQ(m["reasoning_content"], "where?");
      ASSERT_EQ(m["tool_calls"].size(), 1u);
    }
    const Json& call = whole["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_THAT(call["id"].get<std::string>(), testing::StartsWith("call_"));
    EXPECT_EQ(call["function"]["name"], "get_weather");
    EXPECT_EQ(call["function"]["arguments"], R"({"city": "Paris", "days": 3})");
    EXPECT_EQ(streamed["tool_calls"][0]["name"], "get_weather");
    EXPECT_EQ(streamed["tool_calls"][0]["arguments"], R"({"city": "Paris", "days": 3})");
  }
}

TEST_F(ToolChat, ArgumentsStreamAsTheyCome) {
  const Reply r =
      chat({"<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par", "is\"}}", "</tool_call>"}, true);
  int with_arguments = 0;
  for (const std::string& e : r.events()) with_arguments += e.find("\"arguments\"") != e.npos;
  EXPECT_EQ(with_arguments, 2);
  EXPECT_EQ(message_of(r)["tool_calls"][0]["arguments"], R"({"city": "Paris"})");
}

TEST_F(ToolChat, AnAnswerOfCallsAloneHasNoContent) {
  const Json choice =
      chat({"<tool_call>" + kCall + "</tool_call>\n<tool_call>" + kCall + "</tool_call>"}, false).json()["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null());
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  EXPECT_NE(choice["message"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][1]["id"]);
  EXPECT_EQ(server_->metric("quire:tool_calls_total{outcome=\"complete\"}"), 2);
  const Json one = chat({"<tool_call>" + kCall + "</tool_call><tool_call>" + kCall + "</tool_call>"}, false,
                        {{"parallel_tool_calls", false}})
                       .json()["choices"][0];
  EXPECT_EQ(one["message"]["tool_calls"].size(), 1u);
}

TEST_F(ToolChat, ACallThatWasCutIsNoCall) {
  const std::vector<std::string> texts = {"Yes. <tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa"};
  const Json choice = chat(texts, false, Json::object(), FinishReason::kLength).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["message"]["content"], texts[0]) << "what was written is not lost";
  EXPECT_EQ(message_of(chat(texts, true, Json::object(), FinishReason::kLength))["finish_reason"], "length");
  EXPECT_EQ(server_->metric("quire:tool_calls_total{outcome=\"cut\"}"), 2);
}

TEST_F(ToolChat, WithoutToolsCallsAreText) {
  const std::string text = "<tool_call>" + kCall + "</tool_call>";
  for (const Json& more : {Json{{"tools", Json::array()}}, Json{{"tool_choice", "none"}}, Json{{"tools", nullptr}}}) {
    const Json choice = chat({text}, false, more).json()["choices"][0];
    EXPECT_EQ(choice["message"]["content"], text) << more;
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
}

TEST_F(ToolChat, ToolsReachTheTemplateAsTheyAre) {
  const std::string with = prompt_of(server_->port(), conversation(Json::array({user("hi")}), {{"tools", {kWeather}}}));
  // As json.dumps(tool, ensure_ascii=False) prints it: the keys in their order, and these separators.
  EXPECT_THAT(with, HasSubstr("\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": "
                              "\"Weather of a city & <more>, \xC3\xA9\", \"parameters\": {\"type\": \"object\", "
                              "\"properties\": {\"city\": {\"type\": \"string\"}"));
  const std::string without = prompt_of(server_->port(), conversation(Json::array({user("hi")})));
  EXPECT_EQ(prompt_of(server_->port(),
                      conversation(Json::array({user("hi")}), {{"tools", {kWeather}}, {"tool_choice", "none"}})),
            without);
  EXPECT_THAT(without, Not(HasSubstr("get_weather")));
}

TEST_F(ToolChat, HistoriesWithCallsAreRenderedAlikeInEveryShape) {
  const auto history = [](const Json& arguments, const Json& content, const Json& result) {
    return Json::array(
        {user("hi"),
         {{"role", "assistant"},
          {"content", content},
          {"tool_calls",
           {{{"id", "call_1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}}}},
         {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", result}}});
  };
  const Json more = {{"tools", {kWeather}}};
  const auto prompt = [&](const Json& messages) { return prompt_of(server_->port(), conversation(messages, more)); };
  const std::string usual = prompt(history({{"a", "\xC3\xA9"}, {"b", 1}}, "", "5"));
  EXPECT_THAT(usual, HasSubstr("{\"name\": \"f\", \"arguments\": {\"a\": \"\xC3\xA9\", \"b\": 1}}"));
  EXPECT_EQ(prompt(history("{\"a\":\"\\u00e9\",\"b\":1}", "", "5")), usual) << "arguments as text";
  EXPECT_EQ(prompt(history("{\"a\": \"\xC3\xA9\", \"b\": 1}", nullptr, "5")), usual) << "no content";
  EXPECT_EQ(prompt(history({{"a", "\xC3\xA9"}, {"b", 1}}, "", {{{"type", "text"}, {"text", "5"}}})), usual);
  EXPECT_EQ(prompt(history("", "", nullptr)), prompt(history(Json::object(), "", "")));
  prompt(history("not JSON", "", "5"));  // what a model wrote once must not end the conversation
  prompt(history("[1]", "", ""));
}

// A template that goes through the members of arguments, as that of Qwen3.5 does, and one that prints text.
TEST_F(ToolChat, TemplatesGetTheArgumentsThatTheyTake) {
  const std::string head =
      "{% for m in messages %}{{ m.role + ':' + (m.content or '') }}{% for c in m.tool_calls or [] %}";
  const std::string tail = "{% endfor %};{% endfor %}{{ tools or '' }}";
  const Json messages = {user("hi"),
                         {{"role", "assistant"},
                          {"content", nullptr},
                          {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", "{\"a\": 1}"}}}}}}}};
  Json broken = messages;
  broken[1]["tool_calls"][0]["function"]["arguments"] = "{\"a\": ";
  start([&](auto& m) {
    m.chat_template = head + "{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v }}]{% endfor %}" + tail;
  });
  EXPECT_THAT(prompt_of(server_->port(), conversation(messages)), HasSubstr("assistant:[a=1]"));
  EXPECT_THAT(prompt_of(server_->port(), conversation(broken)), HasSubstr("[arguments={\"a\": ]"));
  start([&](auto& m) { m.chat_template = head + "{{ '<' + c.function.arguments + '>' }}" + tail; });
  EXPECT_THAT(prompt_of(server_->port(), conversation(messages)), HasSubstr("assistant:<{\"a\": 1}>"));
}

TEST_F(ToolChat, AFormatCanBeChosen) {
  start([](auto& m) { m.tool_format = server::find_tool_format("qwen3_coder"); });
  const Json whole =
      chat({"<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n"
            "</parameter>\n</function>\n</tool_call>"},
           false)
          .json()["choices"][0]["message"];
  EXPECT_EQ(whole["tool_calls"][0]["function"]["arguments"], R"({"city": "Paris", "days": 3})");
  EXPECT_FALSE(service_->requests().back().render_special);
  start([](auto& m) { m.tool_format = server::find_tool_format("mistral"); });
  const Json mistral = chat({"[TOOL_CALLS]get_weather{\"city\": \"Paris\"}"}, false).json()["choices"][0]["message"];
  EXPECT_EQ(mistral["tool_calls"][0]["id"].get<std::string>().size(), 9u);
  EXPECT_TRUE(service_->requests().back().render_special) << "the markers are control tokens";
  start([](auto& m) { m.tool_format = server::find_tool_format("openai"); });
  const Json channels =
      chat({"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes"}, false,
           {{"tools", nullptr}})
          .json()["choices"][0]["message"];
  EXPECT_EQ(channels["content"], "yes");
  EXPECT_EQ(channels["reasoning_content"], "hm");
}

TEST_F(ToolChat, ATemplateWithoutToolsIsNotToldOfThem) {
  start([](auto& m) { m.chat_template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"; });
  const Reply r = chat({"<tool_call>" + kCall + "</tool_call>"}, false);
  EXPECT_EQ(r.header("X-Ignored-Parameters"), "tools");
  EXPECT_FALSE(r.json()["choices"][0]["message"].contains("tool_calls"));
}

TEST_F(ToolChat, ToolsAreLimited) {
  server_.reset();
  DemoServer::Options o;
  o.service = service_;
  o.limits.max_tools = 2;
  o.limits.max_schema_bytes = 2000;
  server_.emplace(std::move(o));
  EXPECT_EQ(chat({"a"}, false, {{"tools", {kWeather, kWeather}}}).status, 200);
  EXPECT_THAT(chat({"a"}, false, {{"tools", {kWeather, kWeather, kWeather}}}).error(), HasSubstr("limit max_tools"));
  Json large = kWeather;
  large["function"]["description"] = std::string(2000, 'x');
  EXPECT_THAT(chat({"a"}, false, {{"tools", {large}}}).error(), HasSubstr("limit max_schema_bytes"));
}

TEST_F(ToolChat, ALastMessageIsGoneOnWith) {
  const Json messages = {user("hi"), {{"role", "assistant"}, {"content", "Once upon "}}};
  const std::string prompt = prompt_of(server_->port(), conversation(messages, {{"continue_final_message", true}}));
  EXPECT_TRUE(prompt.ends_with("Once upon ")) << prompt;
  service_->will_answer({.texts = {"a time"}});
  const Reply r =
      ask(server_->port(), post("/v1/chat/completions", conversation(messages, {{"continue_final_message", true}})));
  EXPECT_EQ(r.json()["choices"][0]["message"]["content"], "a time");
  for (const char* content : {"", "  "}) {
    Json empty = messages;
    empty[1]["content"] = content;
    EXPECT_EQ(
        ask(server_->port(), post("/v1/chat/completions", conversation(empty, {{"continue_final_message", true}})))
            .status,
        400);
  }
}

}  // namespace
}  // namespace quire::test
