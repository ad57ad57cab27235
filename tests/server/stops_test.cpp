// Which stop text ended an answer, where stop texts are looked for, and how many tokens were reasoning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const Json kSum = {{{"role", "user"}, {"content", "77+94"}}};

Json ask_demo(const char* path, const Json& more) {
  Json body = {{"model", "demo"}, {"temperature", 0}, {"max_tokens", 64}};
  body.update(more);
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}

TEST(Stops, AreNamedInMessages) {
  const Json several = ask_demo("/v1/messages", {{"messages", kSum}, {"stop_sequences", {"9", "7"}}});
  EXPECT_EQ(several["content"][0]["text"], "1");
  EXPECT_EQ(several["stop_reason"], "stop_sequence");
  EXPECT_EQ(several["stop_sequence"], "7");
  const Json one = ask_demo("/v1/messages", {{"messages", kSum}, {"stop_sequences", {"71"}}});
  EXPECT_EQ(one["stop_sequence"], "71");
  const Json none = ask_demo("/v1/messages", {{"messages", kSum}, {"stop_sequences", {"9"}}});
  EXPECT_EQ(none["stop_reason"], "end_turn");
  EXPECT_TRUE(none["stop_sequence"].is_null());
  const Reply streamed = ask(demo_server().port(), post("/v1/messages", Json{{"max_tokens", 64},
                                                                             {"temperature", 0},
                                                                             {"stream", true},
                                                                             {"messages", kSum},
                                                                             {"stop_sequences", {"9", "7"}}}));
  EXPECT_THAT(streamed.body, HasSubstr(R"("delta":{"stop_reason":"stop_sequence","stop_sequence":"7"})"));
}

TEST(Stops, AreNamedInChatsAndTexts) {
  const Json chat = ask_demo("/v1/chat/completions", {{"messages", kSum}, {"stop", {"9", "7"}}})["choices"][0];
  EXPECT_EQ(chat["finish_reason"], "stop");
  EXPECT_EQ(chat["stop_reason"], "7");
  const Json ended = ask_demo("/v1/chat/completions", {{"messages", kSum}, {"stop", {"9"}}})["choices"][0];
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_TRUE(ended.at("stop_reason").is_null());
  const Json cut = ask_demo("/v1/chat/completions", {{"messages", kSum}, {"max_tokens", 1}})["choices"][0];
  EXPECT_TRUE(cut.at("stop_reason").is_null());
  const Json tokens = ask_demo("/v1/chat/completions", {{"messages", kSum}, {"return_token_ids", true}});
  const Json second = tokens["choices"][0]["token_ids"][1];
  const Json by_token =
      ask_demo("/v1/chat/completions", {{"messages", kSum}, {"stop_token_ids", {second}}})["choices"][0];
  EXPECT_EQ(by_token["stop_reason"], second);
  const Json text = ask_demo("/v1/completions", {{"prompt", "Once upon a time"}, {"stop", {"@@", "e"}}})["choices"][0];
  EXPECT_EQ(text["stop_reason"], "e");
  const Reply streamed = ask(demo_server().port(), post("/v1/completions", Json{{"prompt", "Once upon a time"},
                                                                                {"temperature", 0},
                                                                                {"max_tokens", 64},
                                                                                {"stream", true},
                                                                                {"stop", {"@@", "e"}}}));
  const std::vector<std::string> events = streamed.events();
  EXPECT_THAT(events.at(events.size() - 2), HasSubstr(R"("finish_reason":"stop","stop_reason":"e")"));
}

class ScriptedStops : public testing::Test {
 protected:
  void serve(bool split = true) {
    DemoServer::Options o;
    o.service = service_;
    o.api.split_reasoning = split;
    server_.emplace(std::move(o));
  }
  Reply chat(const Json& more, const std::vector<std::string>& texts = {"x"},
             const char* path = "/v1/chat/completions") {
    service_->will_answer({.texts = texts});
    Json body = {{"messages", kSum}, {"stop", {"END"}}};
    body.update(more);
    return ask(server_->port(), post(path, body));
  }
  std::optional<ReasoningMarks> marks() const { return service_->requests().back().reasoning; }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(ScriptedStops, AreLookedForInTheAnswer) {
  serve();
  chat(Json::object());
  ASSERT_TRUE(marks());
  EXPECT_EQ(marks()->open, "<think>");
  EXPECT_EQ(marks()->close, "</think>");
  EXPECT_FALSE(marks()->inside);
  EXPECT_FALSE(marks()->anywhere);
  chat({{"reasoning_effort", "high"}});
  EXPECT_TRUE(marks()->inside) << "the prompt opens it";
  chat({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", Json::object()}}}}}}});
  EXPECT_TRUE(marks()->anywhere) << "it may come again behind a call";
  chat({{"stop_in_reasoning", true}});
  EXPECT_FALSE(marks());
  chat({{"separate_reasoning", false}});
  EXPECT_FALSE(marks()) << "reasoning that stands in the text is text";
  for (const char* path : {"/v1/messages", "/v1/responses"}) {
    const bool messages = std::string_view(path) == "/v1/messages";
    const Json body = messages ? Json{{"max_tokens", 9}, {"stop", nullptr}, {"stop_sequences", {"END"}}}
                               : Json{{"messages", nullptr}, {"stop", nullptr}, {"input", "hi"}};
    chat(body, {"x"}, path);
    EXPECT_TRUE(marks()) << path;
    Json restored = body;
    restored["stop_in_reasoning"] = true;
    chat(restored, {"x"}, path);
    EXPECT_FALSE(marks()) << path;
  }
  EXPECT_EQ(chat({{"stop_in_reasoning", 1}}).status, 400);
  serve(false);
  chat(Json::object());
  EXPECT_FALSE(marks()) << "--reasoning-format none";
}

TEST_F(ScriptedStops, ReasoningTokensAreCounted) {
  serve();
  const std::vector<std::string> thought = {"<think>", "\nh", "m", "\n</think>", "\n\n", "Hello"};
  const auto count = [](const Json& usage) { return usage["completion_tokens_details"]["reasoning_tokens"]; };
  EXPECT_EQ(count(chat(Json::object(), thought).json()["usage"]), 4);
  EXPECT_EQ(count(chat(Json::object(), {"Hello"}).json()["usage"]), 0);
  EXPECT_EQ(count(chat({{"reasoning_effort", "high"}}, {"h", "m", "</think>", "Hello"}).json()["usage"]), 3);
  EXPECT_EQ(count(chat({{"reasoning_effort", "high"}}, {"never", " done"}).json()["usage"]), 2);
  const Reply streamed = chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}}, thought);
  const std::vector<std::string> events = streamed.events();
  EXPECT_EQ(count(Json::parse(events.at(events.size() - 2))["usage"]), 4);
  const Json response =
      chat({{"messages", nullptr}, {"stop", nullptr}, {"input", "hi"}}, thought, "/v1/responses").json();
  EXPECT_EQ(response["usage"]["output_tokens_details"]["reasoning_tokens"], 4);
  const Json text = chat({{"messages", nullptr}, {"prompt", "a"}}, thought, "/v1/completions").json();
  EXPECT_FALSE(text["usage"].contains("completion_tokens_details")) << "of a text nobody knows what is reasoning";
}

// With the engine behind it: a model that thinks before it answers.
TEST(Stops, LeaveReasoningAlone) {
  const Json think = {{"messages", kSum}, {"reasoning_effort", "high"}, {"max_tokens", 200}};
  const Json whole = ask_demo("/v1/chat/completions", think)["choices"][0]["message"];
  const std::string reasoning = whole.value("reasoning_content", "");
  ASSERT_GE(reasoning.size(), 2u) << whole;
  Json stopped = think;
  stopped["stop"] = reasoning.substr(reasoning.size() / 2, 1);
  const Json kept = ask_demo("/v1/chat/completions", stopped)["choices"][0]["message"];
  EXPECT_EQ(kept.value("reasoning_content", ""), reasoning);
  stopped["stop_in_reasoning"] = true;
  const Json cut = ask_demo("/v1/chat/completions", stopped)["choices"][0];
  EXPECT_EQ(cut["stop_reason"], stopped["stop"]);
  EXPECT_LT(cut["message"].value("reasoning_content", "").size(), reasoning.size());
}

}  // namespace
}  // namespace quire::test
