// Models with layers that attend to a window: a sequence holds the blocks of its window and of the rows in flight, and
// no more, however long it is; and its text is what it would be if all of them stayed.
#include <gtest/gtest.h>

#include "engine/engine_rig.h"
#include "eval/scorer.h"

namespace quire::test {
namespace {

class Windows : public testing::TestWithParam<const char*> {
 protected:
  static Request request(std::vector<TokenId> prompt, int64_t max_tokens) {
    Request r = request_of(std::move(prompt), max_tokens);
    r.sampling.logprobs = 0;
    return r;
  }
  // Of three at least: generated tokens in the arithmetic of prompts.
  std::unique_ptr<Engine> make(EngineOptions o) const {
    o.threads = 1;
    o.context = 1024;
    if (o.max_sequences == 0) o.max_sequences = 3;
    if (o.max_batch_tokens == 0) o.max_batch_tokens = 64;
    if (o.kv_tokens == 0) o.kv_tokens = 1024;
    return make_engine(model_, std::move(o));
  }
  // Until everything has ended. The most window blocks that were in use between two steps.
  static int64_t most_used(Engine& engine) {
    int64_t most = 0;
    while (engine.busy()) {
      engine.step();
      most = std::max<int64_t>(most, engine.stats().pools[1].used);
      const Status books = engine.check();
      EXPECT_TRUE(books.ok()) << books.error().message;
      if (!books.ok()) break;
    }
    return most;
  }
  static WindowNeeds needs(const Engine& engine) { return engine.plan().window_needs(engine.pools().at(1)); }

  ModelPtr model_ = tiny(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Models, Windows,
                         testing::Values("tiny-gemma3", "tiny-gptoss", "tiny-gemma4", "tiny-gemma4moe", "tiny-gemma4e"),
                         [](const auto& of) { return std::string(of.param).substr(5); });

// The pool of windows could not hold a quarter of the sequence: were its blocks not given back, it would run short,
// which is fatal.
TEST_P(Windows, ALongSequenceHoldsAWindowAndTheRowsInFlight) {
  for (const int depth : {1, 2}) {
    const auto engine = make({.max_sequences = 1, .depth = depth});
    const WindowNeeds n = needs(*engine);
    EXPECT_EQ(n.sequence, (40 + 29) / 16 + 1);
    EXPECT_EQ(n.steps, depth * 64 / 16);
    int32_t in_prompt = 0, in_answer = 0;  // in use while a step is computed
    engine->observe_steps([&](const StepRecord& r) {
      int32_t& most = r.prompt_rows > 0 ? in_prompt : in_answer;
      most = std::max(most, r.pools[1].used);
    });
    Heard heard;
    engine->submit(request(tokens(800, 1), 200), heard.listener()).value();
    const int64_t between = most_used(*engine);
    EXPECT_EQ(heard.tokens.size(), 200u);
    EXPECT_EQ(engine->stats().pools[1].total(), n.least());
    EXPECT_LT(n.least(), (800 + 200) / 16 / 2);
    EXPECT_GE(in_prompt, 64 / 16 + 2) << "a chunk and a window";
    EXPECT_LE(in_prompt, n.least());
    EXPECT_LE(between, depth == 1 ? n.sequence - 1 : n.least()) << "the positions that the next row looks at";
    EXPECT_GE(in_answer, 3);
    EXPECT_LE(in_answer, n.sequence + depth * 64 / 16) << "the first one comes behind a chunk";
  }
}

// What was computed with all keys in one cache that nothing leaves.
TEST_P(Windows, ProbabilitiesAreThoseOfACacheThatKeepsEverything) {
  const auto engine = make({});
  Heard heard;
  const std::vector<TokenId> prompt = tokens(333, 2);
  engine->submit(request(prompt, 150), heard.listener()).value();
  most_used(*engine);
  ASSERT_EQ(heard.tokens.size(), 150u);
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), heard.tokens.begin(), heard.tokens.end());
  const auto scorer = std::move(Scorer::create(model_, {.threads = 1, .window = 512})).value();
  const Status ran = scorer->run(all, [&](int64_t position, std::span<const float> logits) {
    const int64_t i = position + 1 - std::ssize(prompt);
    if (i < 0 || i >= std::ssize(heard.tokens)) return;
    const auto at = static_cast<size_t>(i);
    EXPECT_NEAR(heard.logprobs[at], log_probability(logits, heard.tokens[at]), 1e-5) << "token " << i;
  });
  EXPECT_TRUE(ran.ok());
}

// Alone, in company, in other chunks, with prefixes that are found, and with blocks for fewer than run: the pool of
// windows is smaller than what the prompts would take.
TEST_P(Windows, TextsDoNotDependOnLoadOrChunks) {
  std::vector<Request> requests;
  for (int32_t i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt = tokens(300, i % 2);
    const std::vector<TokenId> own = tokens(10 + 23 * i, 10 + i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    requests.push_back(request(std::move(prompt), 60 + 10 * i));
  }
  std::vector<Heard> alone(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto engine = make({.max_batch_tokens = 1024});
    engine->submit(requests[i], alone[i].listener()).value();
    most_used(*engine);
  }
  int64_t hits = 0, preemptions = 0;
  for (const bool cache : {false, true})
    for (const int32_t batch : {64, 192})
      for (const int depth : {1, 2}) {
        SCOPED_TRACE(fmt::format("cache {}, {} a step, depth {}", cache, batch, depth));
        EngineOptions o{.max_sequences = 6, .max_batch_tokens = batch, .kv_tokens = 1024, .depth = depth};
        o.swap_bytes = int64_t{1} << 22;
        o.prefix_cache = cache;
        o.state_checkpoints = 3;
        o.shuffle_blocks = 5;
        const auto engine = make(o);
        for (int round = 0; round < 2; ++round) {
          std::vector<Heard> heard(requests.size());
          for (size_t i = 0; i < requests.size(); ++i) engine->submit(requests[i], heard[i].listener()).value();
          const WindowNeeds n = needs(*engine);
          EXPECT_LE(most_used(*engine), n.sequence * 6 + n.steps);
          for (size_t i = 0; i < requests.size(); ++i) {
            EXPECT_EQ(heard[i].tokens, alone[i].tokens) << "request " << i;
            EXPECT_EQ(heard[i].logprobs, alone[i].logprobs) << "request " << i;
          }
        }
        hits += engine->stats().prefix_hits;
        preemptions += engine->stats().preemptions;
      }
  EXPECT_GT(hits, 0);
  EXPECT_GT(preemptions, 0);
}

// Fewer window blocks than all that wait would need: they run one after the other.
TEST_P(Windows, WhoHasNoWindowSetAsideWaits) {
  // Steps so large that their rows alone would be another sequence's window.
  const auto engine = make({.max_sequences = 64, .max_batch_tokens = 128, .kv_tokens = 1024});
  const WindowNeeds n = needs(*engine);
  ASSERT_GT(n.steps, n.sequence);
  int32_t running = 0, waited_for_blocks = 0;
  engine->observe_steps([&](const StepRecord& r) {
    running = std::max(running, r.running);
    waited_for_blocks += r.deferred[static_cast<size_t>(Deferral::kBlocks)] > 0;
  });
  std::vector<Heard> heard(40);
  for (size_t i = 0; i < heard.size(); ++i)
    engine->submit(request(tokens(10, static_cast<int32_t>(i)), 100), heard[i].listener()).value();
  const int64_t used = most_used(*engine), total = engine->stats().pools[1].total();
  EXPECT_LE(used, total);
  EXPECT_EQ(running, (total - n.steps) / n.sequence) << "as many as there are windows for";
  EXPECT_LT(running, 40);
  EXPECT_GT(waited_for_blocks, 0);
  for (const Heard& h : heard) EXPECT_EQ(h.tokens.size(), 100u);
  EXPECT_EQ(engine->stats().pools[1].used, 0);
}

TEST_P(Windows, StayInTheSameBlocksWhereNoSequenceIsLonger) {
  EngineOptions o;
  o.threads = 1, o.context = 40;
  const auto engine = make_engine(model_, o);
  Heard heard;
  engine->submit(request(tokens(20, 1), 20), heard.listener()).value();
  EXPECT_EQ(engine->pools().size(), 1u);
  EXPECT_EQ(most_used(*engine), 0);
  EXPECT_EQ(heard.ends, 1);
}

}  // namespace
}  // namespace quire::test
