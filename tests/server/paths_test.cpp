// Paths with too many slashes, with and without /v1, and what is said of those that there are not.
#include "server/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using server::canonical_path;

TEST(Paths, AreTakenAsTheyAreMeant) {
  for (const auto& [sent, meant] : {std::pair{"/v1/models/", "/v1/models"},
                                    {"//v1//models", "/v1/models"},
                                    {"/models", "/v1/models"},
                                    {"/models/a", "/v1/models/a"},
                                    {"/chat/completions/", "/v1/chat/completions"},
                                    {"/completions", "/v1/completions"},
                                    {"/embeddings", "/v1/embeddings"},
                                    {"/health", "/health"},
                                    {"/", "/"},
                                    {"//", "/"},
                                    {"", ""},
                                    {"*", "*"},
                                    {"/modelsx", "/modelsx"},
                                    {"/ollama/v1/models/a", "/v1/models/a"},
                                    {"/ollama/v1/chat/completions", "/v1/chat/completions"},
                                    {"//ollama/api/tags/", "/api/tags"},
                                    {"/ollama", "/ollama"},
                                    {"/ollama/v11", "/ollama/v11"},
                                    {"/v2/rerank", "/v1/rerank"},
                                    {"/score", "/v1/score"},
                                    {"/chat", "/chat"}})
    EXPECT_EQ(canonical_path(sent), meant) << sent;
}

TEST(Paths, AreServedAndCountedUnderOneName) {
  DemoServer& s = demo_server();
  for (const char* path : {"/v1/models", "/v1/models/", "//v1///models//", "/models", "/models/?x=1"})
    EXPECT_EQ(ask(s.port(), get(path)).json()["object"], "list") << path;
  for (const char* path : {"/v1/models/demo", "/v1/models/demo/", "/models/demo", "/v1//models//demo"})
    EXPECT_EQ(ask(s.port(), get(path)).json()["id"], "demo") << path;
  const Json body = {{"prompt", "a"}, {"max_tokens", 1}};
  const std::string series = "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"200\"}";
  const double before = std::max(0.0, s.metric(series));
  for (const char* path : {"/completions", "/v1/completions/", "//completions"})
    EXPECT_EQ(ask(s.port(), post(path, body)).status, 200) << path;
  EXPECT_TRUE(eventually([&] { return s.metric(series) == before + 3; }));
}

TEST(Paths, ThatAreNotThereNameTheNearest) {
  DemoServer& s = demo_server();
  for (const auto& [sent, meant] : {std::pair{"/v1/v1/chat/completions", "/v1/chat/completions"},
                                    {"/api/v1/chat/completions", "/v1/chat/completions"},
                                    {"/openai/models", "/v1/models"},
                                    {"/v1/health", "/health"},
                                    {"/v1/chat/completion", "/v1/chat/completions"},
                                    {"/completion", "/v1/completions"},
                                    {"/v1/chat", "/v1/chat/completions"},
                                    {"/generate", "/v1/completions"},
                                    {"/v1/message", "/v1/messages"},
                                    {"/metric", "/metrics"}}) {
    const Reply r = ask(s.port(), get(sent));
    EXPECT_EQ(r.status, 404) << sent;
    EXPECT_EQ(r.error(), fmt::format("there is no '{}'; did you mean '{}'?", sent, meant));
    EXPECT_EQ(r.json()["error"]["code"], "unknown_url");
  }
  for (const char* path : {"/nothing", "/index.html"})
    EXPECT_EQ(ask(s.port(), get(path)).error(), fmt::format("there is no '{}'", path));
  EXPECT_EQ(ask(s.port(), get("/" + std::string(5000, 'a'))).status, 404);
  std::string deep;
  for (int i = 0; i < 3000; ++i) deep += "/aa";
  EXPECT_EQ(ask(s.port(), get(deep)).status, 404);
}

}  // namespace
}  // namespace quire::test
