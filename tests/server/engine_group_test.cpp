// Several engines behind one server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <future>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/failing_backend.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

Json completion(const std::string& prompt, int tokens = 24) {
  return {{"prompt", prompt}, {"max_tokens", tokens}, {"temperature", 1}, {"seed", 5}, {"ignore_eos", true}};
}
std::string text_of(const Reply& r) {
  return r.status == 200 ? r.json()["choices"][0]["text"].get<std::string>() : r.body;
}
std::vector<Reply> all_at_once(DemoServer& s, const std::vector<Json>& bodies) {
  std::vector<std::future<Reply>> asked;
  for (const Json& body : bodies)
    asked.push_back(
        std::async(std::launch::async, [&s, body] { return ask(s.port(), post("/v1/completions", body)); }));
  std::vector<Reply> replies;
  for (auto& a : asked) replies.push_back(a.get());
  return replies;
}
// Answers that an engine has finished.
double answers_of(DemoServer& s, int engine) {
  return std::max(0.0, s.metric("vllm:request_success_total{model_name=\"demo\",engine=\"" + std::to_string(engine) +
                                "\",finished_reason=\"length\"}"));
}

TEST(EngineGroup, GivesTheTextsOfOneEngineFromAllOfThem) {
  std::vector<Json> bodies;
  for (int i = 0; i < 12; ++i) bodies.push_back(completion("Story " + std::to_string(i) + ": once upon a time"));
  DemoServer one({});
  DemoServer::Options o;
  o.engines = 3;
  o.max_sequences = 4;
  DemoServer three(o);
  const std::vector<Reply> many = all_at_once(three, bodies);
  for (size_t i = 0; i < bodies.size(); ++i)
    EXPECT_EQ(text_of(many[i]), text_of(ask(one.port(), post("/v1/completions", bodies[i])))) << i;
  for (int engine = 0; engine < 3; ++engine) EXPECT_GT(answers_of(three, engine), 0) << engine;
  EXPECT_EQ(answers_of(three, 0) + answers_of(three, 1) + answers_of(three, 2), 12);
  const Json info = ask(three.port(), get("/server_info")).json();
  EXPECT_EQ(info["dp_size"], 3);
  EXPECT_EQ(info["max_running_requests"], 12);
  EXPECT_EQ(ask(three.port(), get("/get_load")).json().size(), 3u);
  EXPECT_EQ(ask(three.port(), get("/load")).json()["server_load"], 0);
}

// A conversation stays where its beginning was computed.
TEST(EngineGroup, PromptsGoWhereTheirBeginningIs) {
  DemoServer::Options o;
  o.engines = 2;
  DemoServer s(o);
  std::string longer;
  for (int i = 0; i < 60; ++i) longer += "The cat sat on mat number " + std::to_string(i) + ". ";
  for (int turn = 0; turn < 6; ++turn) {
    longer += "And then it slept. ";
    ASSERT_EQ(ask(s.port(), post("/v1/completions", completion(longer, 4))).status, 200);
  }
  EXPECT_EQ(std::max(answers_of(s, 0), answers_of(s, 1)), 6);
  const auto hits = [&](int engine) {
    return s.metric("vllm:prefix_cache_hits_total{model_name=\"demo\",engine=\"" + std::to_string(engine) + "\"}");
  };
  EXPECT_GT(hits(0) + hits(1), 5 * 300);
}

TEST(EngineGroup, IdleEnginesTakeTurns) {
  DemoServer::Options o;
  o.engines = 2;
  DemoServer s(o);
  for (const char* prompt : {"One", "Two", "Three", "Four"})
    ASSERT_EQ(ask(s.port(), post("/v1/completions", completion(prompt, 2))).status, 200);
  EXPECT_EQ(answers_of(s, 0), 2);
  EXPECT_EQ(answers_of(s, 1), 2);
}

// What all have in common does not keep them in one place.
TEST(EngineGroup, APrefixDoesNotFillOneEngineWhileTheOtherIsIdle) {
  DemoServer::Options o;
  o.engines = 2;
  o.max_sequences = 4;
  DemoServer s(o);
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "The cat sat on mat number " + std::to_string(i) + ". ";
  Json body = completion(prompt, 1000);
  body["stream"] = true;
  std::deque<Client> clients;
  for (int i = 0; i < 6; ++i) {
    Client& c = clients.emplace_back(s.port());
    c.send(post("/v1/completions", body));
    c.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  }
  const Json loads = ask(s.port(), get("/get_load")).json();
  EXPECT_GE(loads[0]["num_reqs"], 2) << loads;
  EXPECT_GE(loads[1]["num_reqs"], 2) << loads;
}

TEST(EngineGroup, AnswersThatAreCancelledLeaveTheirEngine) {
  DemoServer::Options o;
  o.engines = 2;
  DemoServer s(o);
  for (int i = 0; i < 4; ++i) {
    Client c(s.port());
    Json body = completion("Once upon a time", 1500);
    body["stream"] = true;
    c.send(post("/v1/completions", body));
    c.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  }
  const auto running = [&] { return ask(s.port(), get("/load")).json()["server_load"].get<int>(); };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (running() > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(running(), 0);
}

TEST(EngineGroup, OneLostEngineTakesNobodyElseAlong) {
  DemoServer::Options o;
  o.engines = 2;
  o.max_sequences = 4;
  o.backend = failing_backend({.step = 20});  // of engine 0
  DemoServer s(o);
  DemoServer sound({});
  std::vector<Json> bodies;
  for (int i = 0; i < 8; ++i) bodies.push_back(completion("Story " + std::to_string(i) + ":", 60));
  int failed = 0;
  for (const Reply& r : all_at_once(s, bodies)) {
    if (r.status == 200) continue;
    EXPECT_THAT(r.error(), HasSubstr("the device is lost"));
    ++failed;
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 8);
  const Reply health = ask(s.port(), get("/health"));
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.json(), (Json{{"status", "degraded"}, {"lost_engines", {0}}}));
  // Whoever comes now is answered by the other one.
  const std::vector<Reply> late = all_at_once(s, bodies);
  for (size_t i = 0; i < bodies.size(); ++i)
    EXPECT_EQ(text_of(late[i]), text_of(ask(sound.port(), post("/v1/completions", bodies[i])))) << i;
}

}  // namespace
}  // namespace quire::test
