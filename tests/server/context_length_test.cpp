// Prompts that the context does not hold: the words by which agents know that they are to compact a conversation, on
// every route, and Ollama's way of leaving out the oldest turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int kShortContext = 256;

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += fmt::format("{} cats. ", i);
  return text;
}

class ContextLength : public testing::Test {
 protected:
  ContextLength() {
    DemoServer::Options o;
    o.service = service_;
    o.context = kShortContext;
    server_.emplace(std::move(o));
  }
  Reply send(std::string_view path, const Json& body) {
    service_->will_answer({.texts = {"x"}});
    return ask(server_->port(), post(path, body));
  }
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }
  int count(const Json& messages) {
    return ask(server_->port(), post("/v1/messages/count_tokens", Json{{"messages", messages}}))
        .json()["input_tokens"]
        .get<int>();
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

Json question(const std::string& text) {
  return {{"role", "user"}, {"content", text}};
}

// A little too long to be refused by its bytes, and so long that it is.
TEST_F(ContextLength, EveryRouteOfOpenAiSaysItInItsWords) {
  for (const std::string& text : {words(200), words(100'000)}) {
    const Json messages = Json::array({question(text)});
    for (const auto& [path, body, what] : {std::tuple{"/v1/chat/completions", Json{{"messages", messages}}, "messages"},
                                           {"/v1/chat/completions/render", {{"messages", messages}}, "messages"},
                                           {"/v1/completions", {{"prompt", text}}, "prompt"},
                                           {"/v1/completions/render", {{"prompt", text}}, "prompt"},
                                           {"/v1/responses", {{"input", text}}, "messages"}}) {
      const Reply r = send(path, body);
      EXPECT_EQ(r.status, 400) << path;
      EXPECT_THAT(r.error(),
                  StartsWith(fmt::format("This model's maximum context length is {} tokens. However, your {} "
                                         "resulted in ",
                                         kShortContext, what)))
          << path;
      EXPECT_THAT(r.error(), HasSubstr(fmt::format(" tokens. Please reduce the length of the {}.", what))) << path;
      EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded") << path;
      EXPECT_EQ(r.json()["error"]["type"], "invalid_request_error") << path;
    }
    for (const auto& [path, body] : {std::pair{"/v1/embeddings", Json{{"input", text}}},
                                     {"/v1/score", {{"text_1", text}, {"text_2", "a"}}},
                                     {"/v1/rerank", {{"query", text}, {"documents", {"a"}}}}}) {
      const Reply r = send(path, body);
      EXPECT_EQ(r.status, 400) << path;
      EXPECT_THAT(r.error(), HasSubstr(fmt::format("maximum context length is {} tokens", kShortContext))) << path;
      EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded") << path;
    }
  }
  for (const size_t n : {size_t{257}, size_t{258}, size_t{100'000}}) {
    const Reply r = send("/v1/completions", {{"prompt", std::vector<TokenId>(n, 65)}});
    EXPECT_EQ(r.error(),
              fmt::format("This model's maximum context length is 256 tokens. However, your prompt resulted in "
                          "{} tokens. Please reduce the length of the prompt.",
                          n));
    EXPECT_EQ(send("/v1/embeddings", {{"input", std::vector<TokenId>(n, 65)}}).json()["error"]["code"],
              "context_length_exceeded");
  }
}

// The number is the prompt's own where it was counted.
TEST_F(ContextLength, TheNumbersAreTrue) {
  const Json messages = Json::array({question(words(100))});
  const int tokens = count(messages);
  ASSERT_GT(tokens, kShortContext);
  EXPECT_THAT(send("/v1/chat/completions", {{"messages", messages}}).error(),
              HasSubstr(fmt::format("your messages resulted in {} tokens.", tokens)));
  EXPECT_EQ(send("/v1/messages", {{"messages", messages}, {"max_tokens", 1000}}).error(),
            fmt::format("prompt is too long: {} tokens > 256 maximum", tokens));
  // The last place belongs to the answer.
  const Reply full = send("/v1/completions", {{"prompt", std::vector<TokenId>(256, 65)}});
  EXPECT_THAT(full.error(), HasSubstr("you requested 257 tokens (256 in the prompt, 1 in the completion)"));
}

TEST_F(ContextLength, MaxTokensCount) {
  const int tokens = count(Json::array({question("hi")}));
  const Reply r = send("/v1/chat/completions", {{"messages", {question("hi")}}, {"max_tokens", 4000}});
  EXPECT_EQ(r.error(),
            fmt::format("This model's maximum context length is 256 tokens. However, you requested {} tokens "
                        "({} in the messages, 4000 in the completion). Please reduce the length of the "
                        "messages or completion.",
                        4000 + tokens, tokens));
  EXPECT_EQ(r.json()["error"]["param"], "max_tokens");
  EXPECT_EQ(send("/v1/responses", {{"input", "hi"}, {"max_output_tokens", 4000}}).json()["error"]["code"],
            "context_length_exceeded");
}

TEST_F(ContextLength, AnthropicSaysItInItsWords) {
  for (const std::string& text : {words(200), words(100'000)})
    for (const bool stream : {false, true}) {
      const Reply r = send("/v1/messages",
                           {{"messages", {question(text)}}, {"system", "s"}, {"max_tokens", 9}, {"stream", stream}});
      EXPECT_EQ(r.status, 400);
      EXPECT_EQ(r.json()["error"]["type"], "invalid_request_error");
      EXPECT_THAT(r.error(), ContainsRegex("^prompt is too long: [0-9]+ tokens > 256 maximum$"));
    }
}

// A client that streams is told within the stream.
TEST_F(ContextLength, AStreamOfResponsesFailsWithTheCode) {
  for (const Json& body :
       {Json{{"input", words(200)}}, {{"input", words(100'000)}}, {{"input", "hi"}, {"max_output_tokens", 4000}}}) {
    Json streamed = body;
    streamed["stream"] = true;
    const Reply r = send("/v1/responses", streamed);
    EXPECT_EQ(r.status, 200);
    EXPECT_THAT(r.header("Content-Type"), StartsWith("text/event-stream"));
    EXPECT_THAT(r.body, HasSubstr("event: response.created\n"));
    const size_t at = r.body.find("event: response.failed\ndata: ");
    ASSERT_NE(at, std::string::npos) << r.body;
    const Json failed = Json::parse(r.body.substr(at + 29, r.body.find('\n', at + 29) - at - 29))["response"];
    EXPECT_EQ(failed["status"], "failed");
    EXPECT_EQ(failed["error"]["code"], "context_length_exceeded");
    EXPECT_THAT(failed["error"]["message"].get<std::string>(), HasSubstr("maximum context length is 256 tokens"));
    EXPECT_TRUE(r.body.ends_with("}\n\n"));
  }
  EXPECT_EQ(send("/v1/responses", {{"input", 7}, {"stream", true}}).status, 400) << "other mistakes have their status";
}

// What Ollama's clients send: everything that was ever said.
TEST_F(ContextLength, OllamaLeavesOutTheOldestTurns) {
  Json messages = Json::array({{{"role", "system"}, {"content", "Be brief."}}});
  for (int i = 0; i < 40; ++i) {
    messages.push_back(question(fmt::format("question {}?", i)));
    messages.push_back({{"role", "assistant"}, {"content", fmt::format("answer {}.", i)}});
  }
  messages.push_back(question("the last one"));
  const Reply r = send("/api/chat", {{"model", "demo"}, {"messages", messages}, {"stream", false}});
  ASSERT_EQ(r.status, 200) << r.body;
  const size_t dropped = std::stoul(r.header("X-Dropped-Messages"));
  EXPECT_EQ(dropped % 2, 0u) << "a question goes with its answer";
  EXPECT_EQ(server_->metric("quire:dropped_messages_total"), static_cast<double>(dropped));
  const std::string left = prompt();
  EXPECT_THAT(left, HasSubstr("Be brief."));
  EXPECT_THAT(left, HasSubstr("the last one"));
  EXPECT_THAT(left, HasSubstr(fmt::format("question {}?", dropped / 2)));
  EXPECT_THAT(left, HasSubstr("answer 39."));
  EXPECT_THAT(left, Not(HasSubstr(fmt::format("question {}?", dropped / 2 - 1))));
  EXPECT_THAT(left, Not(HasSubstr(fmt::format("answer {}.", dropped / 2 - 1))));
  const Request request = service_->requests().back();
  EXPECT_GE(request.max_tokens, kShortContext / 4);
  // One turn more would have been too much.
  Json longer = Json::array({messages[0]});
  for (size_t i = dropped - 1; i < messages.size(); ++i) longer.push_back(messages[i]);
  EXPECT_GT(count(longer), kShortContext - kShortContext / 4);

  const Reply refused =
      send("/api/chat", {{"model", "demo"}, {"messages", messages}, {"stream", false}, {"truncate", false}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.json()["error"].get<std::string>(), HasSubstr("maximum context length is 256 tokens"));
  const Reply shorter = send("/api/chat", {{"model", "demo"}, {"messages", {question("hi")}}, {"stream", false}});
  EXPECT_EQ(shorter.header("X-Dropped-Messages"), "");
}

TEST_F(ContextLength, OllamaKeepsALastMessageThatIsTooLong) {
  const Json messages = {question("first"), question(words(200))};
  const Reply r = send("/api/chat", {{"model", "demo"}, {"messages", messages}, {"stream", false}});
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.json()["error"].get<std::string>(), HasSubstr("maximum context length"));
  for (const bool raw : {false, true})
    EXPECT_EQ(send("/api/generate", {{"model", "demo"}, {"prompt", words(200)}, {"raw", raw}}).status, 400);
}

// The last turn may be a long one of calls: results stay behind their calls.
TEST_F(ContextLength, OllamaLeavesOutCallsWithTheirResults) {
  Json messages = Json::array({question("go")});
  for (int i = 0; i < 12; ++i) {
    messages.push_back(
        {{"role", "assistant"},
         {"content", ""},
         {"tool_calls", {{{"function", {{"name", fmt::format("look{}", i)}, {"arguments", Json::object()}}}}}}});
    messages.push_back({{"role", "tool"}, {"tool_name", "look"}, {"content", fmt::format("result {}", i) + words(3)}});
  }
  const Reply r = send("/api/chat", {{"model", "demo"}, {"messages", messages}, {"stream", false}});
  ASSERT_EQ(r.status, 200) << r.body;
  const size_t dropped = std::stoul(r.header("X-Dropped-Messages"));
  EXPECT_EQ(dropped % 2, 1u) << "the question, and pairs";
  EXPECT_THAT(prompt(), HasSubstr("look11"));
  EXPECT_THAT(prompt(), HasSubstr("result 11"));
  for (int i = 0; i < 12; ++i) {
    const std::string left = prompt();
    EXPECT_EQ(left.find(fmt::format("\"look{}\"", i)) == left.npos,
              left.find(fmt::format("result {}0 cats", i)) == left.npos)
        << i;
  }
}

}  // namespace
}  // namespace quire::test
