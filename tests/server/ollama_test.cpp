// Ollama's API: chats and texts as a JSON object a line, and what its clients ask about models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <tuple>

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
  // Codex wants 0.13.4 or newer.
  int major = 0, minor = 0, patch = 0;
  const std::string version = ask(port, get("/api/version")).json()["version"];
  ASSERT_EQ(std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch), 3) << version;
  EXPECT_GE(std::tuple(major, minor, patch), std::tuple(0, 13, 4)) << version;
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
  EXPECT_THAT(send("/api/chat", {{"model", "demo"}, {"messages", {7}}}).json()["error"].get<std::string>(),
              HasSubstr("'messages[0]' must be an object"));
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

TEST(OllamaEmbeddings, OfTheOlderRouteAreTheSame) {
  const uint16_t port = demo_server().port();
  const Json ours = ask(port, post("/v1/embeddings", Json{{"input", "a cat"}})).json();
  const Json theirs = ask(port, post("/api/embeddings", Json{{"model", "demo"}, {"prompt", "a cat"}})).json();
  EXPECT_EQ(theirs["embedding"], ours["data"][0]["embedding"]);
  const Json cut = ask(port, post("/api/embed", Json{{"model", "demo"}, {"input", "a cat"}, {"dimensions", 8}})).json();
  EXPECT_EQ(cut["embeddings"][0].size(), 8u);
  EXPECT_EQ(ask(port, post("/api/embeddings", Json{{"model", "demo"}, {"prompt", {"a"}}})).status, 400);
  EXPECT_EQ(ask(port, post("/api/embeddings", Json{{"model", "other"}, {"prompt", "a"}})).status, 404);
}

// Clients ask with nothing to embed whether the model is there.
TEST(OllamaEmbeddings, OfNothingAreNone) {
  const uint16_t port = demo_server().port();
  for (const Json& body : {Json{{"model", "demo"}},
                           {{"model", "demo"}, {"input", ""}},
                           {{"model", "demo:latest"}, {"input", Json::array()}},
                           {{"model", "demo"}, {"input", nullptr}}}) {
    const Reply r = ask(port, post("/api/embed", body));
    EXPECT_EQ(r.status, 200) << body;
    EXPECT_EQ(r.json()["embeddings"], Json::array()) << body;
  }
  for (const Json& body : {Json{{"model", "demo"}}, {{"model", "demo"}, {"prompt", ""}}})
    EXPECT_EQ(ask(port, post("/api/embeddings", body)).json()["embedding"], Json::array()) << body;
  EXPECT_EQ(ask(port, post("/api/embed", Json{{"model", "other"}})).status, 404);
}

TEST(OllamaEmbeddings, AreOfAsMuchAsFits) {
  DemoServer s({.context = 128});
  std::string text;
  for (int i = 0; i < 300; ++i) text += fmt::format("{} cats. ", i);
  const Json tokens = ask(s.port(), post("/tokenize", Json{{"prompt", text}})).json()["tokens"];
  ASSERT_GT(tokens.size(), 128u);
  const Json first(Json::array_t(tokens.begin(), tokens.begin() + 128));
  const Json wanted = ask(s.port(), post("/v1/embeddings", Json{{"input", first}})).json()["data"][0]["embedding"];
  for (const char* path : {"/api/embed", "/ollama/api/embed"}) {
    const Json got = ask(s.port(), post(path, Json{{"model", "demo"}, {"input", text}})).json();
    EXPECT_EQ(got["embeddings"][0], wanted) << path;
    EXPECT_EQ(got["prompt_eval_count"], 128) << path;
  }
  // Longer than any 128 tokens are, and ending within a character where it is cut.
  std::string longest = "x";
  while (longest.size() < (size_t{2} << 20)) longest += "é";
  EXPECT_EQ(ask(s.port(), post("/api/embed", Json{{"model", "demo"}, {"input", longest}})).status, 200);
  const Reply refused =
      ask(s.port(), post("/api/embed", Json{{"model", "demo"}, {"input", text}, {"truncate", false}}));
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.json()["error"].get<std::string>(), HasSubstr("128 tokens"));
  EXPECT_EQ(ask(s.port(), post("/v1/embeddings", Json{{"input", text}})).status, 400)
      << "of the other API they are not";
}

TEST_F(Ollama, PullingWhatIsThereIsDone) {
  const uint16_t port = server_->port();
  for (const char* key : {"model", "name"}) {
    const std::vector<Json> all = lines(ask(port, post("/api/pull", Json{{key, "demo:latest"}})));
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all.back(), (Json{{"status", "success"}}));
  }
  EXPECT_EQ(ask(port, post("/api/pull", Json{{"model", "demo"}, {"stream", false}, {"insecure", true}})).json(),
            (Json{{"status", "success"}}));
  const Reply other = ask(port, post("/api/pull", Json{{"model", "llama3"}}));
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.json()["error"].get<std::string>(), HasSubstr("quire pull"));
  EXPECT_EQ(ask(port, post("/api/pull", Json::object())).status, 400);
}

TEST_F(Ollama, OtherRoutesAreBelowItsNameToo) {
  const uint16_t port = server_->port();
  EXPECT_EQ(ask(port, get("/ollama/v1/models")).json()["data"][0]["id"], "demo");
  EXPECT_EQ(ask(port, get("/ollama/api/tags")).json()["models"][0]["name"], "demo");
  EXPECT_EQ(send("/ollama/v1/chat/completions", {{"messages", hi_}}).json()["object"], "chat.completion");
  EXPECT_EQ(send("/ollama/api/chat", {{"model", "x"}, {"messages", hi_}}).json()["error"].type(), Json::value_t::string)
      << "errors have the shape of the API";
  EXPECT_EQ(ask(port, get("/ollamas/v1/models")).status, 404);
}

TEST(OllamaLogprobs, AreToldOfEveryToken) {
  const uint16_t port = demo_server().port();
  const Json chat = {{"model", "demo"},
                     {"messages", {{{"role", "user"}, {"content", "77+94"}}}},
                     {"options", {{"temperature", 0}}},
                     {"logprobs", true},
                     {"top_logprobs", 2}};
  Json whole_chat = chat;
  whole_chat["stream"] = false;
  const Json whole = ask(port, post("/api/chat", whole_chat)).json();
  ASSERT_FALSE(whole["logprobs"].empty()) << whole;
  std::string text;
  for (const Json& t : whole["logprobs"]) {
    text += t["token"].get<std::string>();
    EXPECT_LE(t["logprob"], 0);
    EXPECT_EQ(t["top_logprobs"].size(), 2u);
  }
  EXPECT_THAT(text, HasSubstr(whole["message"]["content"].get<std::string>()));
  Json streamed = Json::array();
  const Reply r = ask(port, post("/api/chat", chat));
  for (size_t at = 0; at < r.body.size(); at = r.body.find('\n', at) + 1)
    for (const Json& t : Json::parse(r.body.substr(at, r.body.find('\n', at) - at)).value("logprobs", Json::array()))
      streamed.push_back(t);
  EXPECT_EQ(streamed, whole["logprobs"]);
  for (const bool raw : {false, true}) {
    const Json body = {{"model", "demo"}, {"prompt", "77+94"}, {"raw", raw},
                       {"stream", false}, {"logprobs", true},  {"options", {{"num_predict", 4}}}};
    const Json told = ask(port, post("/api/generate", body)).json()["logprobs"];
    ASSERT_FALSE(told.empty()) << raw;
    EXPECT_EQ(told[0]["top_logprobs"], Json::array());
  }
  Json none = whole_chat;
  none.erase("logprobs");  // the number alone asks for none
  EXPECT_FALSE(ask(port, post("/api/chat", none)).json().contains("logprobs"));
  Json many = whole_chat;
  many["top_logprobs"] = 21;
  EXPECT_EQ(ask(port, post("/api/chat", many)).status, 400);
}

}  // namespace
}  // namespace quire::test
