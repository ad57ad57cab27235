// Ollama's API: chats and texts as a JSON object a line, and what its clients ask about models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::Contains;
using testing::HasSubstr;

class Ollama : public testing::Test {
 protected:
  Ollama() {
    DemoServer::Options o;
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply send(const char* path, const Json& body, const std::vector<std::string>& texts = {"Hello"},
             FinishReason finish = FinishReason::kStop) {
    service_->will_answer({.texts = texts, .finish = finish});
    return ask(server_->port(), post(path, body));
  }
  static std::vector<Json> lines(const Reply& r) {
    EXPECT_EQ(r.header("Content-Type"), "application/x-ndjson");
    std::vector<Json> all;
    for (size_t at = 0; at < r.body.size();) {
      const size_t end = r.body.find('\n', at);
      all.push_back(Json::parse(r.body.substr(at, end - at), nullptr, false));
      EXPECT_FALSE(all.back().is_discarded());
      at = end + 1;
    }
    return all;
  }

  const Json hi_ = {{{"role", "user"}, {"content", "hi"}}};
  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(Ollama, ChatsStreamUnlessTheClientSaysOtherwise) {
  const std::vector<Json> all =
      lines(send("/api/chat", {{"model", "demo:latest"}, {"messages", hi_}}, {"<think>\nhm\n</think>\n\nHel", "lo"}));
  std::string text, thinking;
  for (const Json& j : all) {
    text += j["message"]["content"].get<std::string>();
    thinking += j["message"].value("thinking", "");
  }
  EXPECT_EQ(text, "Hello");
  EXPECT_EQ(thinking, "hm");
  EXPECT_EQ(all.back()["done"], true);
  EXPECT_EQ(all.back()["done_reason"], "stop");
  EXPECT_GT(all.back()["prompt_eval_count"], 0);
  EXPECT_GE(all.back()["total_duration"], all.back()["eval_duration"]);
  const Json whole =
      send("/api/chat", {{"model", "demo"}, {"messages", hi_}, {"stream", false}}, {"a"}, FinishReason::kLength).json();
  EXPECT_EQ(whole["message"]["content"], "a");
  EXPECT_EQ(whole["done_reason"], "length");
}

TEST_F(Ollama, CallsAreToldWhole) {
  const Json tools =
      Json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}])");
  const std::vector<std::string> texts = {"<tool_call>{\"name\": \"f\", \"argum", "ents\": {\"a\": [1]}}",
                                          "</tool_call>"};
  Json call;
  for (const Json& j : lines(send("/api/chat", {{"model", "demo"}, {"messages", hi_}, {"tools", tools}}, texts)))
    if (j["message"].contains("tool_calls")) call = j["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(call, (Json{{"name", "f"}, {"arguments", {{"a", {1}}}}}));
  const Json history = Json::parse(R"([{"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "thinking": "hm",
     "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "tool_name": "f", "content": "5"}])");
  EXPECT_EQ(send("/api/chat", {{"model", "demo"}, {"messages", history}, {"stream", false}}).status, 200);
}

TEST_F(Ollama, TextsAreGenerated) {
  EXPECT_EQ(send("/api/generate", {{"model", "demo"}, {"prompt", "hi"}, {"system", "s"}, {"stream", false}})
                .json()["response"],
            "Hello");
  const size_t with_template = service_->requests().back().prompt.size();
  const Json raw =
      send("/api/generate", {{"model", "demo"}, {"prompt", "hi"}, {"raw", true}, {"stream", false}}).json();
  EXPECT_EQ(raw["response"], "Hello");
  EXPECT_LT(service_->requests().back().prompt.size(), with_template);
  EXPECT_GT(service_->requests().back().max_tokens, 1000) << "as many as there is room for";
  EXPECT_EQ(send("/api/generate", {{"model", "demo"}}).json()["done_reason"], "load");
  EXPECT_EQ(send("/api/chat", {{"model", "demo"}, {"messages", Json::array()}}).json()["done_reason"], "load");
}

TEST_F(Ollama, OptionsSayHowToSample) {
  const Reply r = send("/api/chat", Json::parse(R"({"model": "demo", "messages": [{"role": "user", "content": "hi"}],
    "stream": false, "keep_alive": "5m", "think": false, "options": {"temperature": 0.5, "top_k": 0, "top_p": 0.9,
    "seed": 7, "num_predict": 12, "stop": ["x"], "repeat_penalty": 1.1, "num_ctx": 4096, "num_gpu": 1}})"));
  ASSERT_EQ(r.status, 200) << r.body;
  const Request request = service_->requests().back();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request.sampling.seed, 7u);
  EXPECT_EQ(request.max_tokens, 12);
  EXPECT_EQ(request.stop, std::vector<std::string>{"x"});
  EXPECT_THAT(r.header("X-Ignored-Parameters"), HasSubstr("options.num_ctx"));
}

TEST_F(Ollama, MoreTokensThanThereIsRoomForAreAsManyAsThereIs) {
  const Json many = {{"num_predict", 100000}};
  for (const auto& [path, body] : {std::pair{"/api/chat", Json{{"model", "demo"}, {"messages", hi_}}},
                                   {"/api/generate", {{"model", "demo"}, {"prompt", "hi"}}},
                                   {"/api/generate", {{"model", "demo"}, {"prompt", "hi"}, {"raw", true}}}}) {
    Json asked = body;
    asked["options"] = many;
    EXPECT_EQ(send(path, asked).status, 200) << asked;
    const Request request = service_->requests().back();
    EXPECT_EQ(request.max_tokens + static_cast<int64_t>(request.prompt.size()), 2048) << asked;
  }
}

TEST_F(Ollama, ClientsLearnAboutTheModel) {
  const uint16_t port = server_->port();
  EXPECT_EQ(ask(port, get("/")).body, "Ollama is running");
  EXPECT_THAT(ask(port, get("/api/version")).json()["version"].get<std::string>(),
              testing::MatchesRegex("[0-9]+.[0-9]+.[0-9]+"));
  const Json model = ask(port, get("/api/tags")).json()["models"][0];
  EXPECT_EQ(model["name"], "demo");
  EXPECT_EQ(model["digest"].get<std::string>().size(), 64u);
  EXPECT_GT(model["size"], 0);
  EXPECT_EQ(ask(port, get("/api/ps")).json()["models"][0]["name"], "demo");
  const Json shown = ask(port, post("/api/show", Json{{"model", "demo:latest"}})).json();
  const std::string architecture = shown["model_info"]["general.architecture"];
  EXPECT_EQ(shown["model_info"][architecture + ".context_length"], 2048);
  EXPECT_THAT(shown["capabilities"], Contains("tools"));
}

TEST_F(Ollama, ErrorsHaveItsShape) {
  const Reply r = send("/api/chat", {{"model", "other"}, {"messages", hi_}});
  EXPECT_EQ(r.status, 404);
  EXPECT_THAT(r.json()["error"].get<std::string>(), HasSubstr("the model 'other' does not exist"));
  EXPECT_EQ(send("/api/chat", {{"model", "demo"}, {"messages", hi_}, {"format", "xml"}}).status, 400);
  const Json image = {{{"role", "user"}, {"content", "hi"}, {"images", {"aaaa"}}}};
  EXPECT_THAT(send("/api/chat", {{"model", "demo"}, {"messages", image}}).json()["error"].get<std::string>(),
              HasSubstr("'messages[0].images' is not supported"));
  service_->will_answer({});
  const std::vector<Json> all = lines(send("/api/chat", {{"model", "demo"}, {"messages", hi_}}));
  EXPECT_EQ(all.back()["done"], true);
}

TEST(OllamaEmbeddings, AreThoseOfTheOtherApi) {
  DemoServer& s = demo_server();
  const Json ours = ask(s.port(), post("/v1/embeddings", Json{{"input", {"a", "b c"}}})).json();
  const Json theirs = ask(s.port(), post("/api/embed", Json{{"model", "demo"}, {"input", {"a", "b c"}}})).json();
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(theirs["embeddings"][i], ours["data"][i]["embedding"]);
  EXPECT_EQ(theirs["prompt_eval_count"], ours["usage"]["prompt_tokens"]);
}

}  // namespace
}  // namespace quire::test
