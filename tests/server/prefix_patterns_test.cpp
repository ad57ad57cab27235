// How prompts of the world begin alike, and how much of them is found: the numbers of the table in
// docs/server-limits.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

std::vector<int> random_tokens(std::mt19937_64& random, int count) {
  std::vector<int> t(static_cast<size_t>(count));
  for (int& x : t) x = std::uniform_int_distribution<int>(30, 3000)(random);
  return t;
}

std::vector<int> joined(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A server as `quire serve` starts it.
class PrefixPatterns : public testing::Test {
 protected:
  explicit PrefixPatterns() : server_(options()) {}
  static DemoServer::Options options() {
    DemoServer::Options o;
    o.max_sequences = 32;
    o.engine = [](EngineOptions& e) { e.volatile_tail = 8; };
    return o;
  }
  std::vector<int> tokens(int count) { return random_tokens(random_, count); }
  std::vector<int> beginning(const std::vector<int>& of, int count) { return {of.begin(), of.begin() + count}; }

  Json ask(const std::vector<int>& prompt, int max_tokens = 1) const {
    const Json body = {{"prompt", prompt},
                       {"max_tokens", max_tokens},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"return_cache_info", true}};
    const Reply r = test::ask(server_.port(), post("/v1/completions", body));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  // Tokens of the prompt that were found; adds to the test's sums.
  int found(const std::vector<int>& prompt) {
    const Json usage = ask(prompt)["usage"];
    const int cached = usage["prompt_tokens_details"]["cached_tokens"];
    asked_ += std::ssize(prompt);
    hits_ += cached;
    last_ = usage["prompt_tokens_details"]["cache"][0];
    return cached;
  }
  // The table's numbers.
  void expect_found(int64_t hits, int64_t asked) const {
    EXPECT_EQ(hits_, hits);
    EXPECT_EQ(asked_, asked);
  }

  std::mt19937_64 random_{42};
  DemoServer server_;
  int64_t asked_ = 0, hits_ = 0;
  Json last_;  // what the last answer's usage says of the cache
};

// A document of which every request takes 100 tokens more, or fewer, before its own question.
TEST_F(PrefixPatterns, PromptsThatMoveBy100Tokens) {
  const std::vector<int> document = tokens(1500);
  for (int shared = 300; shared <= 1500; shared += 100) {
    const int cached = found(joined(beginning(document, shared), tokens(20)));
    if (shared > 300) {
      EXPECT_GE(cached, shared - 100 - 127) << shared;
    }
  }
  expect_found(9600, 11960);
  asked_ = hits_ = 0;
  const std::vector<int> other = tokens(1500);
  for (int shared = 1500; shared >= 300; shared -= 100) found(joined(beginning(other, shared), tokens(20)));
  expect_found(4096, 11960);
}

TEST_F(PrefixPatterns, TurnsOf64Tokens) {
  std::vector<int> prompt = tokens(100);
  for (int turn = 0; turn < 20; ++turn, prompt = joined(prompt, tokens(64))) {
    const int cached = found(prompt);
    if (turn > 0) {
      EXPECT_GE(cached, std::ssize(prompt) - 64 - 72) << turn;
    }
  }
  expect_found(12160, 14160);
}

// Shorter than other engines' smallest unit: a few tokens, all the same.
TEST_F(PrefixPatterns, PromptsUnder528Tokens) {
  for (const int shared : {70, 100, 200, 300, 400, 500}) {
    const std::vector<int> system = tokens(shared);
    for (int i = 0; i < 8; ++i) {
      const int cached = found(joined(system, tokens(27)));
      if (i > 1) {
        EXPECT_EQ(cached, shared / 64 * 64) << shared;
      }
    }
  }
  expect_found(9408, 13856);
}

TEST_F(PrefixPatterns, OneOtherTokenIsNeverPassedOver) {
  const std::vector<int> prompt = tokens(600);
  found(prompt);
  EXPECT_EQ(found(prompt), 576);
  EXPECT_EQ(last_["miss"], nullptr);
  DemoServer::Options without = options();
  without.engine = [](EngineOptions& e) { e.prefix_cache = false; };
  const DemoServer fresh(std::move(without));
  for (const int at : {0, 63, 64, 300, 575, 576, 598}) {
    std::vector<int> other = prompt;
    other[static_cast<size_t>(at)] ^= 1;
    const Json body = {{"prompt", other}, {"max_tokens", 8}, {"temperature", 0}, {"ignore_eos", true}};
    const Reply alone = test::ask(fresh.port(), post("/v1/completions", body));
    const Json with = ask(other, 8);
    EXPECT_EQ(with["choices"][0]["text"], alone.json()["choices"][0]["text"]) << at;
    EXPECT_LE(with["usage"]["prompt_tokens_details"]["cached_tokens"], at / 64 * 64) << at;
  }
}

// Each of them asks for the same 1500 tokens and eight of its own, all at once, twice.
TEST_F(PrefixPatterns, ThirtyTwoClientsShare1500Tokens) {
  const std::vector<int> shared = tokens(1500);
  std::vector<std::vector<int>> prompts;
  for (int i = 0; i < 64; ++i) prompts.push_back(joined(shared, tokens(8)));
  for (size_t round = 0; round < 2; ++round) {
    std::vector<std::thread> clients;
    std::vector<int> cached(32);
    for (size_t i = 0; i < 32; ++i)
      clients.emplace_back(
          [&, i] { cached[i] = ask(prompts[32 * round + i])["usage"]["prompt_tokens_details"]["cached_tokens"]; });
    for (std::thread& c : clients) c.join();
    for (const int c : cached) hits_ += c;
    asked_ += 32 * 1508;
  }
  EXPECT_EQ(hits_, 63 * 1472);
  EXPECT_GT(asked_, 25 * (asked_ - hits_));
}

// A checkpoint where a request asks for one, by position or by a mark in its messages.
TEST_F(PrefixPatterns, RequestsSayWhereOthersGoOn) {
  const std::vector<int> shared = tokens(400);
  const auto complete = [&](const Json& more) {
    Json body = {{"prompt", joined(shared, tokens(200))}, {"max_tokens", 1}, {"return_cache_info", true}};
    body.update(more);
    const Reply r = test::ask(server_.port(), post("/v1/completions", body));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["usage"]["prompt_tokens_details"]["cache"][0];
  };
  EXPECT_EQ(complete({{"cache_positions", {400}}})["positions"], Json::array({400}));
  const Json second = complete(Json::object());
  EXPECT_EQ(second["cached_tokens"], 384);
  EXPECT_EQ(second["miss"], "diverged");
  EXPECT_EQ(second["diverged_at"], 400);

  std::string rules;
  for (int i = 0; i < 60; ++i) rules += fmt::format("Rule {}: be kind to number {}. ", i, i * i);
  const auto chat = [&](bool marked, const std::string& question) {
    Json part = {{"type", "text"}, {"text", rules}};
    if (marked) part["cache_control"] = {{"type", "ephemeral"}};
    const Json body = {
        {"messages",
         {{{"role", "system"}, {"content", Json::array({part})}}, {{"role", "user"}, {"content", question}}}},
        {"max_tokens", 1},
        {"return_cache_info", true}};
    const Reply r = test::ask(server_.port(), post("/v1/chat/completions", body));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["usage"]["prompt_tokens_details"]["cache"][0];
  };
  const Json first = chat(true, "What of " + rules.substr(0, 900) + "?");
  ASSERT_EQ(first["positions"].size(), 1u);
  const int position = first["positions"][0];
  EXPECT_GT(position, 256);
  EXPECT_EQ(chat(false, "And of nothing?")["cached_tokens"], position / 64 * 64);
}

// What a client counts with in the first line of a system prompt is no part of the prompt.
TEST_F(PrefixPatterns, LinesThatChangeWithEveryRequestAreLeftOut) {
  std::string rules;
  for (int i = 0; i < 40; ++i) rules += fmt::format("Rule {}: be kind to number {}. ", i, i * i);
  const auto chat = [&](const Json& system) {
    const Json body = {
        {"messages", {{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", "Hello"}}}},
        {"max_tokens", 8},
        {"temperature", 0}};
    const Reply r = test::ask(server_.port(), post("/v1/chat/completions", body));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  };
  const auto text_of = [](const std::string& t) { return Json{{"type", "text"}, {"text", t}}; };
  const Json plain = chat(rules);
  for (const Json& system : {Json("x-anthropic-billing-header: cc_version=1; cch=123;\n" + rules),
                             Json("X-Anthropic-Billing-Header: cch=456;\n" + rules),
                             Json::array({text_of("x-anthropic-billing-header: cch=789;"), text_of(rules)})}) {
    const Json with = chat(system);
    EXPECT_EQ(with["choices"], plain["choices"]);
    EXPECT_EQ(with["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
    EXPECT_GT(with["usage"]["prompt_tokens_details"]["cached_tokens"], 256);
  }
  EXPECT_NE(chat("x-other-header: 1\n" + rules)["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
}

}  // namespace
}  // namespace quire::test
