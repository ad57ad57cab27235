// Memory that runs out while events are delivered is the misfortune of one request: it ends with an error of its own,
// and everybody else hears what they would have heard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "engine/engine.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

std::unique_ptr<Engine> make() {
  EngineOptions o{.threads = 1, .context = 400, .max_sequences = 4, .max_batch_tokens = 128, .kv_tokens = 1600};
  for (const TinyModel& m : tiny_models())
    if (m.name == "tiny-llama") return std::move(Engine::create(load_or_die(TinyModelFile(m).path()), o)).value();
  fatal(__FILE__, __LINE__, "no tiny-llama");
}

struct Heard {
  std::vector<TokenId> tokens;
  FinishReason finish = FinishReason::kNone;
  int ends = 0;
  std::string error;

  void take(const TokenEvent& e) {
    if (e.token() >= 0) tokens.push_back(e.token());
    if (e.finish() == FinishReason::kNone) return;
    finish = e.finish();
    ++ends;
    if (e.error() != nullptr) error = e.error()->message;
  }
};

Request request(TokenId first, int64_t max_tokens) {
  Request r;
  r.prompt.edit() = {first, 40, 41, 42};
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  return r;
}

void run(Engine& engine) {
  while (engine.busy()) engine.step();
}

TEST(DeliveryMemory, FailsOneRequestAlone) {
  Heard alone;
  {
    const auto engine = make();
    engine->submit(request(31, 30), [&](const TokenEvent& e) { alone.take(e); }).value();
    run(*engine);
  }
  ASSERT_EQ(alone.tokens.size(), 30u);
  // Where it begins, at a token, at the last one and at the end that follows it; told at once, or after attempts that
  // find no memory either.
  for (const int at : {1, 10, 31, 32})
    for (const int attempts : {0, 1, 5}) {
      const auto engine = make();
      Heard poor, other;
      int events = 0, left = attempts;
      engine
          ->submit(request(32, 30),
                   [&](const TokenEvent& e) {
                     if (e.finish() == FinishReason::kError && left-- > 0) throw std::bad_alloc();
                     if (e.finish() != FinishReason::kError && ++events == at) throw std::length_error("a string");
                     poor.take(e);
                   })
          .value();
      engine->submit(request(31, 30), [&](const TokenEvent& e) { other.take(e); }).value();
      run(*engine);
      EXPECT_EQ(poor.finish, FinishReason::kError) << at;
      EXPECT_EQ(poor.ends, 1) << at;
      EXPECT_THAT(poor.error, testing::HasSubstr("out of memory")) << at;
      EXPECT_EQ(std::ssize(poor.tokens), std::max(at - 2, 0)) << "tokens stand behind the beginning";
      EXPECT_EQ(other.tokens, alone.tokens) << at;
      EXPECT_EQ(other.finish, FinishReason::kLength) << at;
      EXPECT_TRUE(engine->check().ok());
      // Places and blocks are free again.
      Heard after;
      for (int i = 0; i < 4; ++i) engine->submit(request(31, 30), [&](const TokenEvent& e) { after.take(e); }).value();
      run(*engine);
      EXPECT_EQ(after.ends, 4) << at;
    }
}

// Who can never be told does not keep the engine from its end.
TEST(DeliveryMemory, EndsWhereNobodyCanBeTold) {
  const auto held = std::make_shared<int>();
  {
    const auto engine = make();
    engine->submit(request(31, 30), [held](const TokenEvent&) { throw std::bad_alloc(); }).value();
    for (int i = 0; i < 60; ++i) engine->step();
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace quire::test
