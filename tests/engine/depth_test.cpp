// Planning ahead: with two steps under way texts are the same, books balance and every request ends once, whatever is
// cancelled when.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "engine/engine.h"
#include "ops/attention/parts.h"
#include "support/golden.h"
#include "support/protected_backend.h"
#include "support/sanitizers.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

struct Heard {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  int ends = 0;
};

ModelPtr tiny(const std::string& name) {
  for (const TinyModel& m : tiny_models())
    if (m.name == name) return load_or_die(TinyModelFile(m).path());
  fatal(__FILE__, __LINE__, name);
}

// A request of every kind: greedy and drawn, penalised, with biases and stop texts.
Request random_request(std::mt19937_64& rng) {
  const auto number = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  Request r;
  r.prompt.edit().resize(static_cast<size_t>(number(1, number(0, 5) == 0 ? 300 : 30)));
  for (TokenId& t : r.prompt.edit()) t = static_cast<TokenId>(number(30, 300));
  r.max_tokens = number(1, 24);
  r.ignore_eos = number(0, 1) == 0;
  r.sampling.seed = static_cast<uint64_t>(number(0, 1000));
  if (number(0, 2) > 0) r.sampling.temperature = 1.0f;
  if (number(0, 3) == 0) r.sampling.top_p = 0.9f;
  if (number(0, 3) == 0) r.sampling.repetition_penalty = 1.3f;
  if (number(0, 3) == 0) r.sampling.frequency_penalty = 0.5f;
  if (number(0, 3) == 0) r.sampling.logit_bias[static_cast<int32_t>(number(0, 319))] = 5.0f;
  if (number(0, 3) == 0) r.stop = {std::string(1, static_cast<char>(number('a', 'z')))};
  return r;
}

struct Script {
  std::vector<Request> requests;
  std::vector<int64_t> arrives, cancelled;  // before this step; -1: never
};

Script make_script(uint64_t seed, int count) {
  std::mt19937_64 rng(seed);
  Script s;
  int64_t step = 0;
  for (int i = 0; i < count; ++i) {
    s.requests.push_back(random_request(rng));
    s.arrives.push_back(step += std::uniform_int_distribution<int64_t>(0, 6)(rng));
    s.cancelled.push_back(rng() % 5 == 0 ? step + static_cast<int64_t>(rng() % 20) : -1);
  }
  return s;
}

std::vector<Heard> play(Engine& engine, const Script& script, int64_t& steps) {
  std::deque<Heard> heard(script.requests.size());
  std::vector<RequestId> ids(script.requests.size());
  size_t arrived = 0;
  for (int64_t step = 0; arrived < ids.size() || engine.busy(); ++step, ++steps) {
    for (; arrived < ids.size() && script.arrives[arrived] <= step; ++arrived) {
      Heard& h = heard[arrived];
      ids[arrived] = engine
                         .submit(script.requests[arrived],
                                 [&h](const TokenEvent& e) {
                                   if (e.token() >= 0) h.tokens.push_back(e.token());
                                   h.text += e.text();
                                   h.finish = e.finish();
                                   h.ends += e.finish() != FinishReason::kNone;
                                 })
                         .value();
    }
    for (size_t i = 0; i < arrived; ++i)
      if (script.cancelled[i] == step) engine.cancel(ids[i]);
    engine.step();
    const Status books = engine.check();
    EXPECT_TRUE(books.ok()) << books.error().message;
  }
  return {heard.begin(), heard.end()};
}

void compare(const Script& script, const std::vector<Heard>& one, const std::vector<Heard>& two) {
  for (size_t i = 0; i < one.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(one[i].ends, 1);
    EXPECT_EQ(two[i].ends, 1);
    const bool cut = one[i].finish == FinishReason::kCancelled || two[i].finish == FinishReason::kCancelled;
    if (!cut) {
      EXPECT_EQ(one[i].text, two[i].text);
      EXPECT_EQ(one[i].tokens, two[i].tokens);
      EXPECT_EQ(one[i].finish, two[i].finish);
      continue;
    }
    // When a cancel arrives depends on how far planning is; what was heard until then does not.
    EXPECT_GE(script.cancelled[i], 0);
    const size_t both = std::min(one[i].tokens.size(), two[i].tokens.size());
    EXPECT_TRUE(
        std::equal(one[i].tokens.begin(), one[i].tokens.begin() + static_cast<int64_t>(both), two[i].tokens.begin()));
  }
}

EngineOptions options(int depth) {
  return {.threads = 2, .context = 400, .max_sequences = 5, .max_batch_tokens = 128, .kv_tokens = 640, .depth = depth};
}

TEST(Depth, TwoStepsUnderWayGiveTheSameTexts) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    const ModelPtr model = tiny(name);
    int64_t steps = 0;
    for (const uint64_t seed : {1, 2, 3}) {
      const Script script = make_script(seed, kSlow ? 40 : 570);
      const auto one = std::move(Engine::create(model, options(1))).value();
      const auto two = std::move(Engine::create(model, options(2))).value();
      compare(script, play(*one, script, steps), play(*two, script, steps));
    }
    EXPECT_GT(steps, kSlow ? 500 : 10000);
  }
}

// Where a step has no room for the parts of all keys, sequences take turns, and have fewer drafts.
TEST(Depth, SequencesThatTakeTurnsGiveTheSameTexts) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    const ModelPtr model = tiny(name);
    const Script script = make_script(11, kSlow ? 30 : 200);
    int64_t steps = 0, most = 0;
    const auto plain = std::move(Engine::create(model, options(1))).value();
    const std::vector<Heard> wanted = play(*plain, script, steps);
    for (const bool drafts : {false, true}) {
      EngineOptions o = options(2);
      o.decode_parts = 2 * attention_parts(o.context);
      if (drafts) o.speculative.mode = Speculative::kLookup;
      const auto turns = std::move(Engine::create(model, o)).value();
      int64_t skipped = 0;
      turns->observe_steps([&](const StepRecord& r) { skipped += r.skipped; });
      compare(script, wanted, play(*turns, script, most));
      EXPECT_GT(skipped, 0) << "nobody had to wait";
    }
  }
}

// The proof that nothing but a backend touches a backend's memory: between its steps there is none.
TEST(Depth, NobodyElseTouchesTheBackendsMemory) {
  const ModelPtr model = tiny("tiny-qwen35moe");
  for (const int depth : {1, 2}) {
    const Script script = make_script(7, 60);
    int64_t steps = 0;
    const auto plain = std::move(Engine::create(model, options(1))).value();
    const auto guarded = std::move(Engine::create(model, options(depth), make_protected_backend)).value();
    compare(script, play(*plain, script, steps), play(*guarded, script, steps));
  }
}

TEST(DepthDeathTest, TheGuardedMemoryCannotBeRead) {
  if (kSlow) GTEST_SKIP() << "the sanitizer answers the fault itself";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ModelPtr model = tiny("tiny-qwen35moe");
        const EnginePlan resolved = std::move(resolve(options(1), model->model->config())).value();
        const auto backend = std::move(make_protected_backend(model, resolved)).value();
        read_protected(*backend);
        std::exit(0);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace quire::test
