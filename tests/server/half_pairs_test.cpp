// Half a pair of surrogates, as JavaScript writes a text that it cut within a character: U+FFFD, wherever it stands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const std::string kGone = "\xEF\xBF\xBD";  // U+FFFD

std::string mended(std::string_view text) {
  return server::without_half_pairs(text).value_or("as it was");
}

TEST(HalfPairs, AreReplacedEscapeForEscape) {
  EXPECT_EQ(mended(R"("cut \ud83d")"), R"("cut \ufffd")");
  EXPECT_EQ(mended(R"("\uDE00 on")"), R"("\ufffd on")");
  EXPECT_EQ(mended(R"("\ud83d\u0041")"), R"("\ufffd\u0041")");
  EXPECT_EQ(mended(R"("\uD83D\uD83D\uDE00")"), R"("\ufffd\uD83D\uDE00")");
  EXPECT_EQ(mended(R"("\udbff\udc00\udc00")"), R"("\udbff\udc00\ufffd")");
  EXPECT_EQ(mended(R"("\\\ud800")"), R"("\\\ufffd")") << "an escaped backslash, then an escape";
  EXPECT_EQ(mended(R"({"\ud800": 1})"), R"({"\ufffd": 1})");
}

TEST(HalfPairs, WhatIsNoneStays) {
  for (const char* text : {R"("\ud83d\ude00")", R"("\\ud83d")", R"("\ud7ff\ue000")", R"("\u00e9")", R"("\ud83")",
                           R"("\ud8zz")", R"("\)", "", "\\", R"(\ud83)", "\"d83d\""})
    EXPECT_EQ(server::without_half_pairs(text), std::nullopt) << text;
}

// Of a body that is nothing else the time is linear, and the memory a copy.
TEST(HalfPairs, AreReplacedInLinearTime) {
  std::string many = "\"";
  while (many.size() < (size_t{12} << 20)) many += R"(\ud83d)";
  many += '"';
  const server::ApiResult<server::JsonDocument> parsed = server::parse_json(many);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)->get_ref<const std::string&>().size(), (many.size() - 2) / 2);
}

TEST(HalfPairs, MistakesAreToldWhereTheyAre) {
  const server::ApiResult<server::JsonDocument> parsed = server::parse_json(R"({"a": "\ud83d", b})");
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message, HasSubstr("at byte 17"));
}

class ServedHalfPairs : public testing::Test {
 protected:
  ServedHalfPairs() {
    DemoServer::Options o;
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply send(const char* path, std::string_view body, const std::string& answer = "x") {
    service_->will_answer({.texts = {answer}});
    return ask(server_->port(), post(path, body));
  }
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }
  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(ServedHalfPairs, InAllApis) {
  for (const auto& [path, body] :
       {std::pair{"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "cut \ud83d"}]})"},
        {"/v1/chat/completions",
         R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "cut \ud83d"}]}]})"},
        {"/v1/completions", R"({"prompt": "cut \ud83d"})"},
        {"/v1/responses", R"({"input": "cut \ud83d"})"},
        {"/v1/responses", R"({"input": [{"type": "function_call_output", "call_id": "c", "output": "cut \ud83d"}]})"},
        {"/v1/messages", R"({"max_tokens": 9, "messages": [{"role": "user", "content": "cut \ud83d"}]})"},
        {"/v1/messages", R"({"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "tool_result",
                            "tool_use_id": "t", "content": "cut \udc00"}]}]})"},
        {"/api/chat", R"({"model": "demo", "messages": [{"role": "user", "content": "cut \ud83d"}]})"},
        {"/api/generate", R"({"model": "demo", "prompt": "cut \ud83d"})"}}) {
    const Reply r = send(path, body);
    EXPECT_EQ(r.status, 200) << path << ": " << r.body;
    EXPECT_THAT(prompt(), HasSubstr("cut " + kGone)) << path;
  }
}

// JSON within a string: what a model wrote comes back so.
TEST_F(ServedHalfPairs, InArgumentsOfCalls) {
  const Reply r = send("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function":
        {"name": "f", "arguments": "{\"text\": \"cut \\ud83d\", \"whole\": \"\\ud83d\\ude00\"}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "ok"}]})");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("\"text\": \"cut " + kGone + "\""));
  EXPECT_THAT(prompt(), HasSubstr("\xF0\x9F\x98\x80"));
}

// A model that breaks off within a pair has called all the same.
TEST_F(ServedHalfPairs, InCallsThatAModelWrites) {
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}])");
  const Json body = {{"messages", {{{"role", "user"}, {"content", "a"}}}}, {"tools", tools}};
  const Reply r = send("/v1/chat/completions", body.dump(),
                       R"(<tool_call>{"name": "f", "arguments": {"text": "cut \ud83d"}}</tool_call>)");
  EXPECT_EQ(r.json()["choices"][0]["finish_reason"], "tool_calls") << r.body;
  const Json anthropic = {{"max_tokens", 9},
                          {"messages", {{{"role", "user"}, {"content", "a"}}}},
                          {"tools", {{{"name", "f"}, {"input_schema", Json::object()}}}}};
  const Reply message = send("/v1/messages", anthropic.dump(),
                             R"(<tool_call>{"name": "f", "arguments": {"text": "cut \ud83d"}}</tool_call>)");
  EXPECT_EQ(message.json()["content"][0]["input"]["text"], "cut " + kGone) << message.body;
}

}  // namespace
}  // namespace quire::test
