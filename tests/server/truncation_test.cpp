// truncate_prompt_tokens: a prompt's last tokens are kept.
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

std::vector<TokenId> tokens_of(const Request& r) {
  return {r.prompt.begin(), r.prompt.end()};
}

TEST(Truncation, KeepsTheEndOfAPrompt) {
  const auto service = std::make_shared<ScriptedService>();
  DemoServer::Options o;
  o.service = service;
  DemoServer server(std::move(o));
  const auto prompt_for = [&](const Json& more) {
    service->will_answer({.texts = {"x"}});
    Json body = {{"prompt", {11, 12, 13, 14, 15}}};
    body.update(more);
    EXPECT_EQ(ask(server.port(), post("/v1/completions", body)).status, 200);
    return tokens_of(service->requests().back());
  };
  EXPECT_EQ(prompt_for({{"truncate_prompt_tokens", 2}}), (std::vector<TokenId>{14, 15}));
  EXPECT_EQ(prompt_for({{"truncate_prompt_tokens", 9}}).size(), 5u);
  EXPECT_EQ(prompt_for({{"truncate_prompt_tokens", nullptr}}).size(), 5u);
  // What does not fit is refused without it, and cut with it.
  const std::vector<TokenId> long_prompt(2040, 11);
  const Json body = {{"prompt", long_prompt}, {"max_tokens", 20}};
  EXPECT_EQ(ask(server.port(), post("/v1/completions", body)).status, 400);
  EXPECT_EQ(prompt_for({{"prompt", long_prompt}, {"max_tokens", 20}, {"truncate_prompt_tokens", -1}}).size(), 2028u);
  service->will_answer({.texts = {"x"}});
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"truncate_prompt_tokens", 3}};
  EXPECT_EQ(ask(server.port(), post("/v1/chat/completions", chat)).status, 200);
  EXPECT_EQ(tokens_of(service->requests().back()).size(), 3u);
  for (const Json& bad : {Json(0), Json(-2), Json("1")}) {
    Json wrong = chat;
    wrong["truncate_prompt_tokens"] = bad;
    EXPECT_EQ(ask(server.port(), post("/v1/chat/completions", wrong)).status, 400) << bad;
  }
}

}  // namespace
}  // namespace quire::test
