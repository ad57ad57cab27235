// Anthropic's Messages API: what its clients send, and the blocks and events that they are answered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Json kTool = Json::parse(R"({"name": "get_weather", "description": "Weather", "input_schema":
    {"type": "object", "properties": {"city": {"type": "string"}}}, "cache_control": {"type": "ephemeral"}})");
const std::string kAnswer =
    "<think>\nwhere?\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
    "\"Paris\"}}\n</tool_call>";

class Anthropic : public testing::Test {
 protected:
  Anthropic() {
    DemoServer::Options o;
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply messages(const Json& more, const std::vector<std::string>& texts = {"Hello"},
                 FinishReason finish = FinishReason::kStop) {
    service_->will_answer({.texts = texts, .finish = finish});
    Json body = {{"model", "demo"}, {"max_tokens", 100}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return ask(server_->port(), post("/v1/messages", body));
  }
  // The prompt that the last request became.
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(Anthropic, AWholeMessage) {
  const Json j = messages(Json::object()).json();
  EXPECT_EQ(j["type"], "message");
  EXPECT_EQ(j["role"], "assistant");
  EXPECT_EQ(j["content"], (Json::array({{{"type", "text"}, {"text", "Hello"}}})));
  EXPECT_EQ(j["stop_reason"], "end_turn");
  EXPECT_TRUE(j["stop_sequence"].is_null());
  EXPECT_GT(j["usage"]["input_tokens"], 0);
  EXPECT_EQ(messages(Json::object(), {"a"}, FinishReason::kLength).json()["stop_reason"], "max_tokens");
}

// Agents name a number that no other field of theirs depends on, such as 32000.
TEST_F(Anthropic, MoreTokensThanThereIsRoomForAreAsManyAsThereIs) {
  EXPECT_EQ(messages({{"max_tokens", 32000}}).status, 200);
  const Request request = service_->requests().back();
  EXPECT_EQ(request.max_tokens + static_cast<int64_t>(request.prompt.size()), 2048);
  EXPECT_EQ(ask(server_->port(), post("/v1/chat/completions", Json::parse(R"({"max_tokens": 32000, "messages":
      [{"role": "user", "content": "hi"}]})")))
                .json()["error"]["code"],
            "context_length_exceeded");
}

TEST_F(Anthropic, IsCountedAsSuch) {
  EXPECT_EQ(server_->metric(R"(quire:requests_total{api="anthropic"})"), -1);
  messages(Json::object());
  messages(Json::object());
  ask(server_->port(), post("/v1/messages/count_tokens", Json::parse(R"({"messages": []})")));
  ask(server_->port(), post("/v1/responses", Json::parse(R"({"input": 7})")));
  ask(server_->port(), post("/api/chat", Json::parse(R"({"model": "demo"})")));
  ask(server_->port(), post("//completions", Json::parse(R"({"prompt": 7.5})")));
  ask(server_->port(), post("/tokenize", Json::parse(R"({"prompt": "a"})")));
  EXPECT_EQ(server_->metric(R"(quire:requests_total{api="anthropic"})"), 2);
  for (const char* api : {"responses", "ollama", "openai"})
    EXPECT_EQ(server_->metric(fmt::format(R"(quire:requests_total{{api="{}"}})", api)), 1) << api;
}

TEST_F(Anthropic, BlocksStandInTheirOrder) {
  const Json j = messages({{"tools", {kTool}}}, {kAnswer + "\nand then"}).json();
  ASSERT_EQ(j["content"].size(), 4u) << j;
  EXPECT_EQ(j["content"][0]["type"], "thinking");
  EXPECT_EQ(j["content"][0]["thinking"], "where?");
  EXPECT_EQ(j["content"][1]["text"], "Let me look.");
  EXPECT_EQ(j["content"][2]["type"], "tool_use");
  EXPECT_EQ(j["content"][2]["name"], "get_weather");
  EXPECT_EQ(j["content"][2]["input"], (Json{{"city", "Paris"}}));
  EXPECT_THAT(j["content"][2]["id"].get<std::string>(), testing::StartsWith("toolu_"));
  EXPECT_EQ(j["content"][3]["type"], "text");
  EXPECT_EQ(j["stop_reason"], "tool_use");
}

// What a client puts together of the events, which must come in order: a delta belongs to the block that is open.
Json accumulated(const Reply& r) {
  Json message;
  int open = -1;
  std::string rest = r.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    const std::string one = rest.substr(0, end);
    rest.erase(0, end == std::string::npos ? end : end + 2);
    const size_t line = one.find("\ndata: ");
    const Json e = Json::parse(one.substr(line + 7), nullptr, false);
    const std::string type = e["type"];
    EXPECT_EQ(one.substr(0, line), "event: " + type);
    if (type == "message_start") message = e["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = e["index"];
      EXPECT_EQ(static_cast<size_t>(open), message["content"].size());
      message["content"].push_back(e["content_block"]);
      if (e["content_block"]["type"] == "tool_use") message["content"].back()["input"] = "";
    }
    if (type == "content_block_delta") {
      EXPECT_EQ(e["index"], open);
      Json& block = message["content"][static_cast<size_t>(open)];
      for (const auto& [delta, member] : {std::pair{"text_delta", "text"}, {"thinking_delta", "thinking"}})
        if (e["delta"]["type"] == delta) {
          EXPECT_EQ(block["type"], member);
          block[member] = block[member].get<std::string>() + e["delta"][member].get<std::string>();
        }
      if (e["delta"]["type"] == "input_json_delta") {
        EXPECT_EQ(block["type"], "tool_use");
        block["input"] = block["input"].get<std::string>() + e["delta"]["partial_json"].get<std::string>();
      }
    }
    if (type == "content_block_stop") {
      EXPECT_EQ(e["index"], open);
      open = -1;
    }
    if (type == "message_delta") {
      EXPECT_EQ(open, -1);
      message["stop_reason"] = e["delta"]["stop_reason"];
    }
  }
  return message;
}

TEST_F(Anthropic, StreamsTellTheSameWhereverTheyAreCut) {
  for (size_t at = 0; at < kAnswer.size(); at += 7) {
    const Json m = accumulated(
        messages({{"tools", {kTool}}, {"stream", true}},
                 {kAnswer.substr(0, at), kAnswer.substr(at, 4), kAnswer.substr(std::min(kAnswer.size(), at + 4))}));
    ASSERT_EQ(m["content"].size(), 3u) << "cut at " << at << m;
    EXPECT_EQ(m["content"][0]["thinking"], "where?");
    EXPECT_EQ(m["content"][1]["text"], "Let me look.");
    EXPECT_EQ(m["content"][2]["input"], R"({"city": "Paris"})");
    EXPECT_EQ(m["stop_reason"], "tool_use");
  }
}

TEST_F(Anthropic, ConversationsBecomeWhatChatsBecome) {
  const Json history = Json::parse(R"([
    {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
      {"type": "text", "text": "Look:"}, {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"},
      {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "6"}], "is_error": true},
      {"type": "tool_result", "tool_use_id": "toolu_3"}, {"type": "text", "text": "go on"}]}])");
  const Reply r = messages({{"system", {{{"type", "text"}, {"text", "Be brief."}}}}, {"messages", history}});
  ASSERT_EQ(r.status, 200) << r.body;
  const std::string theirs = prompt();
  const Json same = Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
    {"role": "assistant", "reasoning_content": "hm", "content": "Look:",
     "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "5"}, {"role": "tool", "content": "6"}, {"role": "tool", "content": ""},
    {"role": "user", "content": "go on"}])");
  service_->will_answer({.texts = {"x"}});
  ASSERT_EQ(ask(server_->port(), post("/v1/chat/completions", Json{{"messages", same}})).status, 200);
  EXPECT_EQ(theirs, prompt());
}

TEST_F(Anthropic, CountsAreThoseOfTheMessage) {
  const Json more = {{"system", "Be brief."}, {"tools", {kTool}}};
  const Json usage = messages(more).json()["usage"];
  Json body = {{"model", "demo"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  const Json counted = ask(server_->port(), post("/v1/messages/count_tokens", body)).json();
  EXPECT_EQ(counted["input_tokens"], usage["input_tokens"]);
  EXPECT_EQ(counted["input_tokens"], service_->requests().back().prompt.size());
}

TEST_F(Anthropic, AnAnswerGoesOnWithALastMessageOfTheAssistant) {
  messages({{"messages", {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "Once upon"}}}}});
  EXPECT_TRUE(prompt().ends_with("Once upon")) << prompt();
}

TEST_F(Anthropic, ErrorsHaveItsShape) {
  const auto error_of = [&](const Json& more) {
    const Reply r = messages(more);
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(r.json()["type"], "error");
    EXPECT_EQ(r.json()["error"]["type"], "invalid_request_error");
    return r.error();
  };
  EXPECT_EQ(error_of({{"max_tokens", nullptr}}), "'max_tokens' is missing");
  const Json untold = {{"type", "text"}, {"text", 7}};
  EXPECT_THAT(error_of({{"messages", {{{"role", "user"}, {"content", Json::array({untold})}}}}}),
              HasSubstr("'messages[0].content[0].text' must be a string"));
  EXPECT_THAT(error_of({{"tool_choice", {{"type", "tool"}, {"name", "other"}}}, {"tools", {kTool}}}),
              HasSubstr("'tool_choice' names 'other', which is no tool of the request"));
  EXPECT_EQ(ask(server_->port(), post("/v1/messages", std::string_view("{"))).json()["type"], "error");
  EXPECT_EQ(ask(server_->port(), get("/v1/messages")).json()["error"]["type"], "invalid_request_error");
  EXPECT_EQ(messages({{"model", "other"}}).json()["error"]["type"], "not_found_error");
  const Json failing = {{"stream", true}};
  service_->will_refuse(server::ApiError{.status = 429, .message = "full", .retry_after = 1});
  EXPECT_EQ(messages(failing).json()["error"]["type"], "rate_limit_error");
}

TEST_F(Anthropic, AFailureInAStreamIsAnEvent) {
  service_->will_answer(
      {.texts = {"so"}, .finish = FinishReason::kError, .error = Error{Fault::kModelFile, "damaged"}});
  const Json body = {{"max_tokens", 9}, {"stream", true}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  const Reply r = ask(server_->port(), post("/v1/messages", body));
  EXPECT_THAT(
      r.body,
      HasSubstr("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"damaged\"}}"));
}

TEST_F(Anthropic, WhatClaudeCodeSendsIsAnswered) {
  const Reply r = messages(Json::parse(R"({"system": [{"type": "text", "text": "x-anthropic-billing-header: a=1; b"},
     {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}}],
     "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 1,
     "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "service_tier": "auto",
     "tool_choice": {"type": "auto", "disable_parallel_tool_use": false}, "stop_sequences": ["END"]})"));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), testing::Not(HasSubstr("billing")));
  EXPECT_THAT(service_->requests().back().stop, ElementsAre("END"));
}

}  // namespace
}  // namespace quire::test
