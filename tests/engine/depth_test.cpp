// Planning ahead: with two steps under way texts are the same, books balance and every request ends once, whatever is
// cancelled when.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine_rig.h"
#include "ops/attention/parts.h"
#include "support/protected_backend.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

// A request of every kind: greedy and drawn, penalised, with biases and stop texts.
Request random_plain_request(std::mt19937_64& rng) {
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

std::vector<Arrival> depth_script(uint64_t seed, int count) {
  std::mt19937_64 rng(seed);
  std::vector<Arrival> s;
  int64_t step = 0;
  for (int i = 0; i < count; ++i) {
    Request r = random_plain_request(rng);
    step += std::uniform_int_distribution<int64_t>(0, 6)(rng);
    const int64_t cancelled = rng() % 5 == 0 ? step + static_cast<int64_t>(rng() % 20) : -1;
    s.push_back({std::move(r), step, cancelled});
  }
  return s;
}

void expect_same_texts(const std::vector<Arrival>& script, const std::vector<Heard>& one,
                       const std::vector<Heard>& two) {
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
    EXPECT_GE(script[i].cancelled, 0);
    const size_t both = std::min(one[i].tokens.size(), two[i].tokens.size());
    EXPECT_TRUE(
        std::equal(one[i].tokens.begin(), one[i].tokens.begin() + static_cast<int64_t>(both), two[i].tokens.begin()));
  }
}

EngineOptions five_sequences(int depth) {
  return {.threads = 2, .context = 400, .max_sequences = 5, .max_batch_tokens = 128, .kv_tokens = 640, .depth = depth};
}

TEST(Depth, TwoStepsUnderWayGiveTheSameTexts) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    const ModelPtr model = tiny(name);
    int64_t steps = 0;
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<Arrival> script = depth_script(seed, kSlow ? 40 : 570);
      const auto one = make_engine(model, five_sequences(1));
      const auto two = make_engine(model, five_sequences(2));
      expect_same_texts(script, play(*one, script, &steps), play(*two, script, &steps));
    }
    EXPECT_GT(steps, kSlow ? 500 : 10000);
  }
}

// Where a step has no room for the parts of all keys, sequences take turns, and have fewer drafts.
TEST(Depth, SequencesThatTakeTurnsGiveTheSameTexts) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    const ModelPtr model = tiny(name);
    const std::vector<Arrival> script = depth_script(11, kSlow ? 30 : 200);
    const auto plain = make_engine(model, five_sequences(1));
    const std::vector<Heard> wanted = play(*plain, script);
    for (const bool drafts : {false, true}) {
      EngineOptions o = five_sequences(2);
      o.decode_parts = 2 * attention_parts(o.context);
      if (drafts) o.speculative.mode = Speculative::kLookup;
      const auto turns = make_engine(model, o);
      int64_t skipped = 0;
      turns->observe_steps([&](const StepRecord& r) { skipped += r.skipped; });
      expect_same_texts(script, wanted, play(*turns, script));
      EXPECT_GT(skipped, 0) << "nobody had to wait";
    }
  }
}

// The proof that nothing but a backend touches a backend's memory: between its steps there is none.
TEST(Depth, NobodyElseTouchesTheBackendsMemory) {
  const ModelPtr model = tiny("tiny-qwen35moe");
  for (const int depth : {1, 2}) {
    const std::vector<Arrival> script = depth_script(7, 60);
    const auto plain = make_engine(model, five_sequences(1));
    const auto guarded = make_engine(model, five_sequences(depth), make_protected_backend);
    expect_same_texts(script, play(*plain, script), play(*guarded, script));
  }
}

TEST(DepthDeathTest, TheGuardedMemoryCannotBeRead) {
  if (kSlow) GTEST_SKIP() << "the sanitizer answers the fault itself";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const ModelPtr model = tiny("tiny-qwen35moe");
        const EnginePlan resolved = std::move(resolve(five_sequences(1), model->model->config())).value();
        const auto backend = std::move(make_protected_backend(model, resolved)).value();
        read_protected(*backend);
        std::exit(0);
      },
      testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace quire::test
