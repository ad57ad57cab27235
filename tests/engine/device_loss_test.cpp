// A device that is lost in the middle of a run: every request ends once, with an error, and nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "engine/engine_rig.h"
#include "support/failing_backend.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class DeviceLoss : public testing::TestWithParam<int> {  // steps under way
 protected:
  static const ModelPtr& model() { return tiny("tiny-qwen35moe"); }
  static EngineOptions options(int32_t max_sequences = 2) {
    return {.threads = 2,
            .context = 256,
            .max_sequences = max_sequences,
            .max_batch_tokens = 64,
            .depth = GetParam(),
            .prefix_cache = true};
  }
  static std::unique_ptr<Engine> make(int step, int32_t max_sequences = 2) {
    return make_engine(model(), options(max_sequences), failing_backend({.step = step}));
  }
  static Request request(int64_t prompt, int64_t max_tokens = 40) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < prompt; ++i) tokens.push_back(static_cast<TokenId>(40 + i % 90));
    return request_of(std::move(tokens), max_tokens);
  }
  static void expect_ended(const Heard& h) {
    EXPECT_EQ(h.ends, 1);
    EXPECT_EQ(h.finish, FinishReason::kError);
    ASSERT_TRUE(h.error);
    EXPECT_EQ(h.error->fault, Fault::kBug);
    EXPECT_THAT(h.message(), HasSubstr("the device is lost: the GPU computing a step: an illegal"));
    EXPECT_EQ(h.message().find('\n'), std::string::npos);
  }
};

// In the first step, within prompts, among generated tokens: those that run, that wait for a place, and all later ones.
TEST_P(DeviceLoss, EndsEveryRequestOnce) {
  for (const int step : {0, 1, 2, 3, 7, 20}) {
    SCOPED_TRACE(step);
    const auto engine = make(step);
    std::deque<Heard> heard(6);
    for (size_t i = 0; i < heard.size(); ++i)
      ASSERT_TRUE(engine->submit(request(i % 2 == 0 ? 5 : 150), heard[i].listener()).ok());
    EXPECT_FALSE(engine->lost());
    int steps = 0;
    while (engine->busy() && ++steps < 1000) engine->step();
    EXPECT_LT(steps, 1000) << "the engine never ends";
    engine->drain_events();
    for (const Heard& h : heard) expect_ended(h);
    ASSERT_TRUE(engine->lost());
    const Status books = engine->check();
    EXPECT_TRUE(books.ok()) << books.error().message;

    Heard late;
    const auto refused = engine->submit(request(5), late.listener());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message, engine->lost()->message);
    EXPECT_FALSE(engine->step());
    EXPECT_EQ(late.ends, 0);
    EXPECT_FALSE(engine->busy());
  }
}

// A launch that the driver refuses is a mistake of ours: who runs hears of it, and the engine goes on, for those that
// wait and for those that come later.
TEST_P(DeviceLoss, AMistakeOfOursEndsTheStepAndNotTheEngine) {
  const Heard whole = hear_one(*make_engine(model(), options()), request(150));
  for (const int step : {0, 1, 2, 3, 7}) {
    SCOPED_TRACE(step);
    Loss ours{.step = step, .lasting = false};
    ours.error = [] { return Error{Fault::kBug, "moe: few rows: invalid configuration argument"}; };
    const auto engine = make_engine(model(), options(), failing_backend(ours));
    std::deque<Heard> heard(6);
    for (Heard& h : heard) ASSERT_TRUE(engine->submit(request(150), h.listener()).ok());
    int steps = 0;
    while (engine->busy() && ++steps < 1000) engine->step();
    EXPECT_LT(steps, 1000) << "the engine never ends";
    engine->drain_events();
    EXPECT_FALSE(engine->lost());
    int failed = 0;
    for (const Heard& h : heard) {
      EXPECT_EQ(h.ends, 1);
      if (h.finish != FinishReason::kError) {
        EXPECT_EQ(h.tokens, whole.tokens);  // also by those that began with what the cache kept
        continue;
      }
      ++failed;
      EXPECT_EQ(h.message(), "internal error: moe: few rows: invalid configuration argument");
    }
    EXPECT_GE(failed, 1);
    EXPECT_LE(failed, 2);  // as many as run at once
    const Status books = engine->check();
    EXPECT_TRUE(books.ok()) << books.error().message;
  }
}

// What had ended before has its answer, and what was heard before the loss is what is heard without one.
TEST_P(DeviceLoss, TakesNothingBack) {
  const Heard whole = hear_one(*make(1 << 20), request(5));
  Heard first, second;
  const auto lost = make(12);
  ASSERT_TRUE(lost->submit(request(5, 4), first.listener()).ok());
  ASSERT_TRUE(lost->submit(request(5), second.listener()).ok());
  while (lost->busy()) lost->step();
  EXPECT_EQ(first.finish, FinishReason::kLength);
  EXPECT_EQ(first.ends, 1);
  expect_ended(second);
  ASSERT_GE(second.tokens.size(), 4u);
  ASSERT_LT(second.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(second.tokens.begin(), second.tokens.end(), whole.tokens.begin()));
}

// From another thread, until it is refused: whatever was taken ends.
TEST_P(DeviceLoss, WhoSubmitsMeanwhileIsToldToo) {
  const auto engine = make(9, 4);
  std::deque<Heard> heard;
  std::atomic<bool> refused{false};
  std::thread submitting([&] {
    while (!refused) {
      Heard& h = heard.emplace_back();
      if (engine->submit(request(3, 30), h.listener()).ok()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      } else if (engine->lost()) {
        heard.pop_back();
        refused = true;
      } else {
        heard.pop_back();  // the queue is full
      }
    }
  });
  while (!refused || engine->busy()) engine->step();
  submitting.join();
  engine->drain_events();
  ASSERT_FALSE(heard.empty());
  for (const Heard& h : heard) EXPECT_EQ(h.ends, 1);
  expect_ended(heard.back());
}

// An engine that goes away while its device is lost, with steps under way.
TEST_P(DeviceLoss, TheEngineCanBeDestroyed) {
  for (const int step : {0, 3}) {
    Heard h;
    {
      const auto engine = make(step);
      ASSERT_TRUE(engine->submit(request(150), h.listener()).ok());
      for (int i = 0; i < step + 1; ++i) engine->step();
    }
    EXPECT_EQ(h.ends, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Depth, DeviceLoss, testing::Values(1, 2));

}  // namespace
}  // namespace quire::test
