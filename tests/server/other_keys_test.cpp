// What one API key's prompts leave in the cache, no other key can tell: every byte that it is answered, and what it
// does to the metrics, is the same whatever the other one asked before.
#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <sstream>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using Tokens = std::vector<int>;

struct Ask {
  bool alice;  // or Bob
  std::string path;
  Json body;
};

// Bob's requests, and Alice's among them. What Alice asks has the same form in every world, and says the same or
// something else: `other` maps its tokens to others, one to one, so that it has as much in common with itself.
std::vector<Ask> conversation(uint64_t seed, int other) {
  std::mt19937_64 random(seed);
  const auto number = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(random); };
  const auto some = [&](int count) {
    Tokens t(static_cast<size_t>(count));
    for (int& x : t) x = number(100, 1099);
    return t;
  };
  const auto in_another_world = [&](Tokens t) {
    for (int& x : t) x = 100 + (x - 100 + 333 * other) % 1000;
    return t;
  };
  std::vector<Tokens> known;  // beginnings that both may use
  for (int i = 0; i < 3; ++i) known.push_back(some(number(150, 400)));
  std::vector<Ask> all;
  for (int i = 0; i < 40; ++i) {
    const bool alice = i < 4 || number(0, 1) == 0;
    const Tokens& beginning = known[static_cast<size_t>(number(0, 2))];
    Tokens prompt(beginning.begin(), beginning.begin() + number(1, static_cast<int>(beginning.size())));
    const Tokens own = some(number(1, 100));
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (number(0, 3) == 0) known[static_cast<size_t>(number(0, 2))] = prompt;
    if (alice) prompt = in_another_world(prompt);
    if (number(0, 4) == 0) {
      all.push_back({alice, "/v1/embeddings", {{"input", prompt}, {"encoding_format", "base64"}}});
      continue;
    }
    Json body = {{"prompt", prompt}, {"max_tokens", 3},           {"ignore_eos", true},
                 {"seed", i},        {"n", number(1, 2)},         {"logprobs", 2},
                 {"temperature", 1}, {"return_cache_info", true}, {"stream", number(0, 1) == 1}};
    if (body["stream"]) body["stream_options"] = {{"include_usage", true}};
    if (number(0, 4) == 0) body["cache_salt"] = "one more";
    if (number(0, 4) == 0) body["cache_positions"] = {number(1, 200)};
    all.push_back({alice, "/v1/completions", body});
  }
  return all;
}

struct Seen {
  std::vector<std::string> answers;  // heads and bodies
  std::vector<std::string> metrics;
};

// The lines that tell no times, and nothing that depends on when connections are closed.
std::vector<std::string> without_times(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.find("seconds") == std::string::npos && !line.starts_with("process_") &&
        !line.starts_with("quire:http_connections") && !line.starts_with("quire:client_disconnects"))
      lines.push_back(line);
  return lines;
}

Seen what_bob_sees(const std::vector<Ask>& asks, const std::string& model) {
  DemoServer::Options o;
  o.model = model;
  o.max_sequences = 4;
  o.api.keys = std::move(server::KeyRing::parse("key-of-alice\nkey-of-bob\n")).value();
  // Room for everything: what has to make room depends on how much there is, which is no secret
  // (docs/server-limits.md).
  o.engine = [](EngineOptions& e) {
    e.kv_tokens = 32768;
    e.state_checkpoints = 200;
  };
  DemoServer s(o);
  Seen seen;
  // Numbers that every answer has for itself.
  static const std::regex kOwn("\"(cmpl|chatcmpl|embd)-[0-9a-f]+\"|\"created\":[0-9]+|[xX]-[rR]equest-[iI]d: [^\r]*");
  for (const Ask& a : asks) {
    const std::string key = a.alice ? "key-of-alice" : "key-of-bob";
    const Reply r = ask(s.port(), post(a.path, a.body, "Authorization: Bearer " + key + "\r\n"));
    EXPECT_EQ(r.status, 200) << r.body;
    if (!a.alice) seen.answers.push_back(std::regex_replace(r.head + r.body, kOwn, ""));
  }
  // A request is counted when its answer is written, which may be a little after it was read here.
  EXPECT_TRUE(s.http().wait_until_idle(std::chrono::minutes(1)));
  s.api().forget();  // the last step is counted
  seen.metrics = without_times(s.registry().text());
  return seen;
}

class OtherKeys : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, OtherKeys, testing::Values("moe", "dense"),
                         [](const auto& of) { return std::string(of.param); });

TEST_P(OtherKeys, LearnNothingOfPrompts) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Seen same = what_bob_sees(conversation(seed, 0), GetParam());
    ASSERT_GT(same.answers.size(), 8u);
    for (const int other : {1, 2}) {
      const Seen another = what_bob_sees(conversation(seed, other), GetParam());
      EXPECT_EQ(same.answers, another.answers);
      EXPECT_EQ(same.metrics, another.metrics);
    }
  }
}

// A secret of ten digits behind a beginning that everybody knows: whoever guesses is told the same, right or wrong, and
// what he would be told if there were no secret.
TEST_P(OtherKeys, CannotGuessASecretDigitByDigit) {
  const Tokens known(90, 60);
  const auto with_digits = [&](int64_t digits, int count) {
    Tokens t = known;
    for (; count > 0; --count, digits /= 10) t.push_back(300 + static_cast<int>(digits % 10));
    t.insert(t.end(), 40, 61);
    return t;
  };
  constexpr int64_t kSecret = 7'193'508'246;
  const auto told = [&](bool there_is_one) {
    DemoServer::Options o;
    o.model = GetParam();
    o.api.keys = std::move(server::KeyRing::parse("key-of-alice\nkey-of-bob\n")).value();
    DemoServer s(o);
    const auto ask_as = [&](const std::string& key, const Tokens& prompt) {
      const Json body = {{"prompt", prompt}, {"max_tokens", 1}, {"return_cache_info", true}};
      const Reply r = ask(s.port(), post("/v1/completions", body, "Authorization: Bearer " + key + "\r\n"));
      EXPECT_EQ(r.status, 200) << r.body;
      return r.json()["usage"]["prompt_tokens_details"].dump();
    };
    if (there_is_one) ask_as("key-of-alice", with_digits(kSecret, 10));
    std::vector<std::string> all;
    for (int digits = 1; digits <= 10; ++digits)
      for (const int64_t guess : {kSecret, kSecret + 1})
        all.push_back(ask_as("key-of-bob", with_digits(guess, digits)));
    EXPECT_EQ(s.registry().text().find("reason=\"salt\""), std::string::npos);
    return all;
  };
  EXPECT_EQ(told(true), told(false));
}

}  // namespace
}  // namespace quire::test
