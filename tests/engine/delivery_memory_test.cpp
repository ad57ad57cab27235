// Memory that runs out while events are delivered is the misfortune of one request: it ends with an error of its own,
// and everybody else hears what they would have heard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <new>
#include <stdexcept>

#include "engine/engine_rig.h"

namespace quire::test {
namespace {

class DeliveryMemory : public testing::Test {
 protected:
  static std::unique_ptr<Engine> make() {
    return make_engine(tiny("tiny-llama"),
                       {.threads = 1, .context = 400, .max_sequences = 4, .max_batch_tokens = 128, .kv_tokens = 1600});
  }
  static Request request(TokenId first, int64_t max_tokens) { return request_of({first, 40, 41, 42}, max_tokens); }
};

TEST_F(DeliveryMemory, FailsOneRequestAlone) {
  const Heard alone = hear_one(*make(), request(31, 30));
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
      engine->submit(request(31, 30), other.listener()).value();
      finish(*engine);
      EXPECT_EQ(poor.finish, FinishReason::kError) << at;
      EXPECT_EQ(poor.ends, 1) << at;
      EXPECT_THAT(poor.message(), testing::HasSubstr("out of memory")) << at;
      EXPECT_EQ(std::ssize(poor.tokens), std::max(at - 2, 0)) << "tokens stand behind the beginning";
      EXPECT_EQ(other.tokens, alone.tokens) << at;
      EXPECT_EQ(other.finish, FinishReason::kLength) << at;
      EXPECT_TRUE(engine->check().ok());
      // Places and blocks are free again.
      std::deque<Heard> after(4);
      for (Heard& h : after) engine->submit(request(31, 30), h.listener()).value();
      finish(*engine);
      for (const Heard& h : after) EXPECT_EQ(h.ends, 1) << at;
    }
}

// Who can never be told does not keep the engine from its end.
TEST_F(DeliveryMemory, EndsWhereNobodyCanBeTold) {
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
