// The engine has everybody who waits: whom it lets pass whom, and that waiting costs little.
#include <gtest/gtest.h>

#include <deque>

#include "engine/engine_rig.h"

namespace quire::test {
namespace {

class Queue : public testing::Test {
 protected:
  static std::vector<TokenId> prompt_ending_in(TokenId last, int64_t before) {
    std::vector<TokenId> t(static_cast<size_t>(before));
    for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<TokenId>(30 + i * 7 % 250);
    t.push_back(last);
    return t;
  }
  static Request request(std::vector<TokenId> prompt, int64_t max_tokens = 4, uint64_t client = 0,
                         int32_t priority = 0) {
    Request r = request_of(std::move(prompt), max_tokens);
    r.client = client;
    r.priority = priority;
    return r;
  }
  static std::unique_ptr<Engine> make(EngineOptions o) {
    o.threads = 1;
    o.context = 2048;
    o.kv_tokens = 16384;
    o.prefix_cache = true;
    return make_engine(tiny("tiny-qwen35moe"), o);
  }
};

// One computes what fifteen and more can use: they wait without a place, and all others go on.
TEST_F(Queue, WhoWaitsForASharedPrefixHoldsNoPlace) {
  for (const int sharing : {15, 100}) {
    const auto engine = make({.max_sequences = 16, .max_batch_tokens = 2048});
    std::vector<StepRecord> records;
    engine->observe_steps([&](const StepRecord& r) { records.push_back(r); });
    for (int i = 0; i <= sharing; ++i) engine->submit(request(prompt_ending_in(40 + i, 900), 40), nullptr).value();
    for (int i = 0; i < 15; ++i) engine->submit(request({40, 41, 42 + i}, 40), nullptr).value();
    while (engine->busy()) engine->step();
    ASSERT_FALSE(records.empty());
    EXPECT_EQ(records[0].admitted, 16);
    EXPECT_EQ(records[0].waiting, sharing);
    EXPECT_EQ(records[0].queued, 0);
    EXPECT_EQ(records[0].deferred[static_cast<size_t>(Deferral::kSharedPrefix)], sharing);
    EXPECT_EQ(engine->stats().prefix_hits, sharing * 896);
    EXPECT_EQ(engine->stats().waiting, 0);
  }
}

TEST_F(Queue, AGroupIsTakenWholeOrNotAtAll) {
  std::deque<Heard> heard;  // longer than the engine, which ends what is left
  const auto engine = make({.max_sequences = 1, .max_waiting = 4});
  const auto group = [&](int count, TokenId bad = 40) {
    std::vector<Engine::Submission> all;
    for (int i = 0; i < count; ++i) all.push_back({request({40, i == 1 ? bad : 41}), heard.emplace_back().listener()});
    return engine->submit(std::move(all));
  };
  EXPECT_EQ(group(5).error().message, "0 requests wait already, and at most 4 may; try again later");
  EXPECT_FALSE(group(3, 100000).ok());
  EXPECT_FALSE(engine->busy());
  const auto ids = group(3).value();
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(group(2).error().fault, Fault::kCapacity);
  EXPECT_EQ(engine->stats().waiting, 3);
  while (engine->busy()) engine->step();
  int ends = 0;
  for (const Heard& h : heard) ends += h.ends;
  EXPECT_EQ(ends, 3);
}

TEST_F(Queue, ClientsTakeTurnsWhateverOneOfThemAsks) {
  std::deque<Heard> many(272), few(6);
  const auto engine = make({.max_sequences = 4});
  for (Heard& h : many) engine->submit(request({40, 41}, 20, 1), h.listener()).value();
  engine->step();
  for (Heard& h : few) engine->submit(request({40, 42}, 20, 2), h.listener()).value();
  const auto ended = [](const std::deque<Heard>& all) {
    return std::count_if(all.begin(), all.end(), [](const Heard& h) { return h.ends > 0; });
  };
  while (ended(few) < std::ssize(few)) {
    engine->step();
    engine->drain_events();
  }
  EXPECT_LE(ended(many), 14);
}

TEST_F(Queue, PrioritiesAge) {
  Heard patient;
  std::deque<Heard> others;
  const auto engine = make({.max_sequences = 1, .ageing_steps = 8});
  engine->submit(request({40, 41}, 2, 1, 1'000'000), patient.listener()).value();
  for (int i = 0; i < 400 && patient.ends == 0; ++i) {
    while (engine->stats().waiting < 5)
      engine->submit(request({40, 42}, 2, 1 + others.size() % 3), others.emplace_back().listener()).value();
    engine->step();
    engine->drain_events();
  }
  EXPECT_EQ(patient.finish, FinishReason::kLength);
  EXPECT_GT(others.size(), 50u);
}

// Thousands wait, most of them leave again, and each one hears one end.
TEST_F(Queue, ManyWaitAndLeave) {
  std::deque<Heard> heard(20000);
  const auto engine = make({.max_sequences = 2, .max_waiting = 20000});
  std::vector<RequestId> ids;
  for (size_t i = 0; i < heard.size(); ++i)
    ids.push_back(engine->submit(request({40, 41}, 30, i % 500), heard[i].listener()).value());
  for (int i = 0; i < 3; ++i) engine->step();
  EXPECT_EQ(engine->stats().waiting, 19998);
  for (size_t i = 2; i < ids.size(); ++i)
    if (i % 1000 != 0) engine->cancel(ids[i]);
  while (engine->busy()) engine->step();
  EXPECT_TRUE(engine->check().ok());
  int64_t finished = 0;
  for (size_t i = 0; i < heard.size(); ++i) {
    EXPECT_EQ(heard[i].ends, 1);
    const bool stayed = i < 2 || i % 1000 == 0;
    EXPECT_EQ(heard[i].admitted, stayed) << i;
    finished += heard[i].finish == FinishReason::kLength;
  }
  EXPECT_EQ(finished, 21);
}

TEST_F(Queue, AllCanBeCancelledAtOnce) {
  std::deque<Heard> heard(50);
  const auto engine = make({.max_sequences = 2});
  for (Heard& h : heard) engine->submit(request({40, 41}, 100), h.listener()).value();
  for (int i = 0; i < 3; ++i) engine->step();
  engine->cancel_all();
  while (engine->busy()) engine->step();
  for (const Heard& h : heard) {
    EXPECT_EQ(h.ends, 1);
    EXPECT_EQ(h.finish, FinishReason::kCancelled);
  }
  Heard next;
  engine->submit(request({40, 41}), next.listener()).value();
  while (engine->busy()) engine->step();
  EXPECT_EQ(next.finish, FinishReason::kLength);
}

// A step's work does not grow with how many wait and how many places are free.
TEST_F(Queue, OneStepAdmitsABoundedNumber) {
  constexpr int kRequests = 600, kMost = 256 + 32;
  const auto engine = make({.max_sequences = kRequests, .max_batch_tokens = 8192});
  int32_t most = 0, admitted = 0;
  engine->observe_steps([&](const StepRecord& r) {
    most = std::max(most, r.admitted);
    admitted += r.admitted;
  });
  std::deque<Heard> heard(kRequests);
  for (Heard& h : heard) ASSERT_TRUE(engine->submit(request({5, 6, 7}, 2), h.listener()).ok());
  while (engine->busy()) engine->step();
  EXPECT_EQ(most, kMost);
  EXPECT_EQ(admitted, kRequests);
  for (const Heard& h : heard) EXPECT_EQ(h.finish, FinishReason::kLength);
}

}  // namespace
}  // namespace quire::test
