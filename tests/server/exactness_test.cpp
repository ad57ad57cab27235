// Whoever else is served, whatever the prefix cache has, whatever is drafted, and however few blocks there are: what a
// client is told over HTTP is what a fresh server that has no other client tells it, byte for byte. With --seeds=20 by
// hand (docs/testing.md).
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "constraint/grammar.h"
#include "server/client.h"
#include "server/demo_server.h"
#include "support/failing_backend.h"
#include "support/seeds.h"

namespace quire::test {
namespace {

constexpr int kClients = 64;
constexpr int64_t kContext = 512;

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  int number(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool once_in(int n) { return number(1, n) == 1; }
  std::vector<int> tokens(int count) {
    std::vector<int> t(static_cast<size_t>(count));
    for (int& x : t) x = number(30, 3000);
    return t;
  }

 private:
  std::mt19937_64 rng_;
};

struct Ask {
  std::string path;
  Json body;
  int after_ms = 0, gone_after_ms = -1;  // when the client comes, and how long it stays; -1: to the end
};

// A form that an answer is held to, of each kind.
void add_form(Random& r, Json& body) {
  const Json schema = {{"type", "object"},
                       {"properties",
                        {{"name", {{"type", "string"}, {"maxLength", r.number(1, 30)}}},
                         {"parts", {{"type", "array"}, {"items", {{"type", "integer"}}}}}}},
                       {"required", {"name", "parts"}},
                       {"additionalProperties", false}};
  switch (r.number(0, 4)) {
    case 0:
      body["response_format"] = {{"type", "json_object"}};
      break;
    case 1:
      body["response_format"] = {{"type", "json_schema"},
                                 {"json_schema", {{"name", "thing"}, {"strict", true}, {"schema", schema}}}};
      break;
    case 2:
      body["guided_regex"] = "([a-z]+ ){3,9}[0-9]{2}";
      break;
    case 3:
      body["guided_choice"] = {"yes", "no", "perhaps, if the weather allows"};
      break;
    case 4:
      body["grammar"] = "root ::= item+\nitem ::= \"- \" [a-z ]+ \"\\n\"";
  }
}

// What a request may say besides its prompt.
void add_wishes(Random& r, Json& body) {
  body["max_tokens"] = r.number(1, r.once_in(3) ? 120 : 30);
  body["seed"] = r.number(0, 1000);
  body["temperature"] = r.once_in(2) ? 0.0 : 0.9;
  body["ignore_eos"] = !r.once_in(3);
  if (r.once_in(4)) body["speculative"] = false;
  if (r.once_in(4)) body["stream"] = true;
  if (r.once_in(4)) body["repetition_penalty"] = 1.3;
  if (r.once_in(5)) body["frequency_penalty"] = 0.5;
  if (r.once_in(6)) body["n"] = 2;
  if (r.once_in(6)) body["stop"] = {"e", " the"};
  if (r.once_in(6)) body["cache_salt"] = "another";
  if (r.once_in(3)) body["priority"] = r.number(0, 2);
  if (r.once_in(10)) body["bad_words"] = {" the", "a"};
  if (has_grammars() && r.once_in(3)) add_form(r, body);
}

// Prompts of tokens that share beginnings and part anywhere, and conversations with one system prompt.
std::vector<Ask> make_asks(uint64_t seed) {
  Random r(seed);
  std::vector<std::vector<int>> families;
  for (int i = 0; i < 3; ++i) families.push_back(r.tokens(320));
  std::string rules;
  for (int i = 0; i < 60; ++i) rules += fmt::format("Rule {} of {}: be kind. ", i, seed);
  std::vector<Ask> asks(kClients);
  for (Ask& a : asks) {
    if (r.once_in(4)) {
      a.path = "/v1/chat/completions";
      const Json part = {{"type", "text"}, {"text", rules.substr(0, 200)}, {"cache_control", {{"type", "ephemeral"}}}};
      a.body["messages"] = {{{"role", "system"}, {"content", Json::array({part})}},
                            {{"role", "user"}, {"content", fmt::format("Tell me of {}.", r.number(0, 9))}}};
      if (r.once_in(3)) a.body["logprobs"] = true;
    } else {
      a.path = "/v1/completions";
      std::vector<int>& family = families[static_cast<size_t>(r.number(0, 2))];
      std::vector<int> prompt(family.begin(), family.begin() + (r.once_in(6) ? 0 : r.number(1, 320)));
      for (const int t : r.tokens(r.number(1, r.once_in(3) ? 64 : 12))) prompt.push_back(t);
      if (r.once_in(6)) family = prompt, family.resize(320, 77);  // others go on from here
      a.body["prompt"] = prompt;
      if (r.once_in(6)) a.body["cache_positions"] = {r.number(1, 320)};
      if (r.once_in(4)) a.body["logprobs"] = 2;
    }
    add_wishes(r, a.body);
    a.after_ms = r.number(0, 400);
    if (r.once_in(7)) a.gone_after_ms = r.number(0, 1500);
  }
  return asks;
}

// Of each answer: text, reasoning, why it ended, and log-probabilities where they came whole.
std::string told(const Reply& r, bool streamed) {
  if (r.status != 200) return fmt::format("status {}: {}", r.status, r.body);
  struct Answer {
    std::string text, reasoning, finish, logprobs;
  };
  std::map<int, Answer> answers;
  const auto take = [&](const Json& choice) {
    Answer& a = answers[choice["index"]];
    const Json& from = choice.contains("delta")     ? choice["delta"]
                       : choice.contains("message") ? choice["message"]
                                                    : choice;
    for (const char* name : {"text", "content"})
      if (from.contains(name) && from[name].is_string()) a.text += from[name].get<std::string>();
    a.reasoning += from.value("reasoning_content", "");
    if (choice["finish_reason"].is_string()) a.finish = choice["finish_reason"];
    if (!streamed) a.logprobs = choice["logprobs"].dump();
  };
  if (!streamed) {
    const Json body = r.json();
    for (const Json& c : body["choices"]) take(c);
  } else {
    const std::vector<std::string> events = r.events();
    if (events.empty() || events.back() != "[DONE]") return "a stream without an end: " + r.body;
    for (const std::string& e : events)
      if (e != "[DONE]") {
        const Json chunk = Json::parse(e);
        if (chunk.contains("error")) return e;
        for (const Json& c : chunk["choices"]) take(c);
      }
  }
  std::string all;
  for (const auto& [index, a] : answers)
    all += fmt::format("{}: {} | {} | {} | {}\n", index, a.text, a.reasoning, a.finish, a.logprobs);
  return all;
}

DemoServer::Options options_of(const std::string& model) {
  DemoServer::Options o;
  o.model = model;
  o.context = kContext;
  o.max_queue = 4 * kClients;
  return o;
}

std::vector<std::string> alone(const std::string& model, const std::vector<Ask>& asks) {
  std::vector<std::string> all;
  for (const Ask& a : asks) {
    if (a.gone_after_ms >= 0) {
      all.emplace_back();
      continue;
    }
    DemoServer::Options o = options_of(model);
    o.engine = [](EngineOptions& e) {
      e.prefix_cache = false;
      e.swap_bytes = 0;
      e.depth = 1;
    };
    const DemoServer s(std::move(o));
    all.push_back(told(ask(s.port(), post(a.path, a.body)), a.body.value("stream", false)));
    EXPECT_NE(all.back().substr(0, 6), "status") << all.back();
  }
  return all;
}

// `all_sent` becomes ready when every client has sent its request.
std::vector<std::string> together(const DemoServer& s, const std::vector<Ask>& asks, std::promise<void> all_sent) {
  std::vector<std::string> all(asks.size());
  std::vector<std::thread> clients;
  std::atomic<size_t> unsent{asks.size()};
  for (size_t i = 0; i < asks.size(); ++i)
    clients.emplace_back([&, i] {
      const Ask& a = asks[i];
      std::this_thread::sleep_for(std::chrono::milliseconds(a.after_ms));
      Client c(s.port());
      c.send(post(a.path, a.body));
      if (--unsent == 0) all_sent.set_value();
      if (a.gone_after_ms < 0)
        all[i] = told(c.receive(600), a.body.value("stream", false));
      else
        c.receive_until([](const std::string&) { return false; }, a.gone_after_ms * 1e-3);
    });
  for (std::thread& t : clients) t.join();
  return all;
}

struct Setting {
  bool cache;
  int depth;
  int64_t kv_tokens;
  int swap_mib;
  int states;
  int batch;
  Speculative drafts;
  int32_t most_drafts;
  bool adaptive;
};
// Pools that hold one request or two, so that others make room: on the host, or by pausing. Drafts of all kinds, in all
// steps or where they seem to pay.
constexpr Setting kSettings[] = {{true, 1, 4096, 64, 24, 256, Speculative::kAuto, 7, true},
                                 {true, 2, 512, 64, 5, 128, Speculative::kMtp, 3, false},
                                 {true, 1, 512, 0, 24, 192, Speculative::kAuto, 7, false},
                                 {false, 2, 512, 64, 0, 256, Speculative::kLookup, 1, false}};

class Exactness : public testing::TestWithParam<const char*> {};

TEST_P(Exactness, ClientsAreToldWhatTheyAreToldAlone) {
  double hits = 0, swapped = 0, accepted = 0;
  const std::string labels = R"({model_name="demo",engine="0"})";
  const Seeds seeds = seeds_or(1);
  for (int seed = seeds.first; seed <= seeds.last; ++seed) {
    const std::vector<Ask> asks = make_asks(static_cast<uint64_t>(seed));
    const std::vector<std::string> want = alone(GetParam(), asks);
    for (const Setting& setting : kSettings) {
      SCOPED_TRACE(fmt::format("seed {}, cache {}, depth {}, {} tokens, {} MiB of the host", seed, setting.cache,
                               setting.depth, setting.kv_tokens, setting.swap_mib));
      DemoServer::Options o = options_of(GetParam());
      o.engine = [&](EngineOptions& e) {
        e.prefix_cache = setting.cache;
        e.depth = setting.depth;
        e.kv_tokens = setting.kv_tokens;
        e.swap_bytes = int64_t{setting.swap_mib} << 20;
        e.state_checkpoints = setting.states;
        e.max_batch_tokens = setting.batch;
        e.patience_steps = 2;
        e.shuffle_blocks = 7;
        e.speculative = {.mode = setting.drafts, .tokens = setting.most_drafts, .adaptive = setting.adaptive};
      };
      // The first step ends when all requests are there: however busy the machine, blocks are scarce from then on.
      std::promise<void> all_sent;
      o.backend = failing_backend({.lasting = false, .error = [sent = all_sent.get_future().share()] {
                                     sent.wait();
                                     return std::optional<Error>();
                                   }});
      const DemoServer s(std::move(o));
      const std::vector<std::string> got = together(s, asks, std::move(all_sent));
      for (size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(got[i], want[i]) << "request " << i << ": " << asks[i].body;
      const auto idle = [&] {
        return s.metric("vllm:num_requests_running" + labels) == 0 &&
               s.metric("vllm:num_requests_waiting" + labels) == 0;
      };
      for (int i = 0; i < 2000 && !idle(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_TRUE(idle());
      EXPECT_EQ(s.metric("vllm:prefix_cache_hits_total" + labels) > 0, setting.cache);
      hits += s.metric("vllm:prefix_cache_hits_total" + labels);
      accepted += s.metric("vllm:spec_decode_num_accepted_tokens_total" + labels);
      swapped += s.metric(R"(quire:swapped_blocks_total{model_name="demo",engine="0",direction="in"})");
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(hits, 1000 * seeds.count());
  EXPECT_GT(swapped, 0);
  EXPECT_GT(accepted, 100 * seeds.count());
}
INSTANTIATE_TEST_SUITE_P(Models, Exactness, testing::Values("moe", "dense"),
                         [](const auto& of) { return std::string(of.param); });

}  // namespace
}  // namespace quire::test
