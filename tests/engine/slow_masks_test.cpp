// Masks that take long: their sequences wait for them, and steps go on without these.
#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "constraint/constrained_output.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

// What keeps the masks of a SlowGrammar from being made.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_somebody() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

// What is slow from the third token on.
struct Slowness {
  Gate* gate = nullptr;  // not null: each mask has to be prepared behind it
  bool heavy = false;    // tokens and masks take long, whatever was prepared
  int ends = 1000;       // the text ends behind so many tokens
  int gives_up = 1000;   // and no token is accepted behind so many: that takes too long
};

// Even and odd tokens in turns.
class SlowMatcher final : public Matcher {
 public:
  explicit SlowMatcher(const Slowness& slow) : slow_(slow) {}
  bool accept(TokenId token) override {
    expect_own_thread();
    if (count_ >= slow_.gives_up || token % 2 != count_ % 2) return false;
    ++count_;
    prepared_ = slow_.gate == nullptr || count_ < 3;
    return true;
  }
  bool accept_bytes(std::string_view) override { return false; }
  bool fill(std::span<uint32_t> mask) override {
    EXPECT_TRUE(prepared_) << "a mask that takes long was asked for within a step";
    expect_own_thread();
    std::fill(mask.begin(), mask.end(), count_ % 2 == 0 ? 0x55555555u : 0xaaaaaaaau);
    return true;
  }
  void rollback(int count) override { count_ -= count; }
  bool completed() const override { return false; }
  bool ended() const override { return count_ >= slow_.ends; }
  std::string forced() override { return {}; }
  bool quick() const override { return prepared_ && !heavy(); }
  bool prepare_next() override {
    if (prepared_) return false;
    slow_.gate->pass();
    prepared_ = true;
    return true;
  }

 private:
  bool heavy() const { return slow_.heavy && count_ >= 3; }
  // The thread that made this is the test's, which steps the engine.
  void expect_own_thread() const {
    if (heavy()) {
      EXPECT_NE(std::this_thread::get_id(), made_by_) << "what takes long was done within a step";
    }
  }

  const Slowness slow_;
  const std::thread::id made_by_ = std::this_thread::get_id();
  int count_ = 0;
  bool prepared_ = true;
};

class SlowGrammar final : public Grammar {
 public:
  explicit SlowGrammar(const Slowness& slow) : slow_(slow) {}
  std::unique_ptr<Matcher> begin() const override { return std::make_unique<SlowMatcher>(slow_); }
  void prepare(const std::function<bool()>&) const override {}
  bool prepared() const override { return slow_.gate == nullptr && !slow_.heavy; }
  int64_t bytes() const override { return 0; }
  const std::vector<std::string>& unenforced() const override { return none_; }
  std::string to_bytes() const override { return {}; }

 private:
  const Slowness slow_;
  std::vector<std::string> none_;
};

class SlowMasks : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Engine> engine() const {
    EngineOptions o{.threads = 2, .context = 400, .max_sequences = 4, .max_batch_tokens = 128, .kv_tokens = 1600};
    o.depth = GetParam();
    return make_engine(model_, o);
  }
  static Request request(int32_t seed, int64_t max_tokens) {
    Request r = request_of(tokens(20, seed), max_tokens);
    r.sampling.seed = static_cast<uint64_t>(seed);
    r.sampling.temperature = 1.0f;
    return r;
  }
  Request held(const Slowness& slow, int32_t seed, int64_t max_tokens) const {
    Constraint c;
    const int64_t vocab = model_->model->config().vocab;
    c.vocabulary = std::make_shared<const Vocabulary>(vocabulary_of(*model_->tokenizer, vocab));
    c.grammar = std::make_shared<const SlowGrammar>(slow);
    Request r = request(seed, max_tokens);
    r.constraint = std::make_shared<const Constraint>(std::move(c));
    return r;
  }
  ModelPtr model_ = tiny("tiny-qwen35moe");
};

TEST_P(SlowMasks, HoldUpTheirOwnRequestOnly) {
  Heard alone, free_alone;
  {
    const auto quick = engine();
    quick->submit(held({}, 1, 30), alone.listener()).value();
    while (quick->busy()) quick->step();
    quick->submit(request(2, 60), free_alone.listener()).value();
    while (quick->busy()) quick->step();
  }
  Gate gate;
  Heard slow, free;
  const auto e = engine();
  e->submit(held({.gate = &gate}, 1, 30), slow.listener()).value();
  e->submit(request(2, 60), free.listener()).value();
  while (free.finish == FinishReason::kNone) e->step(), e->drain_events();
  EXPECT_EQ(free.tokens, free_alone.tokens);
  EXPECT_EQ(slow.tokens.size(), 3u);  // all that the gate leaves
  gate.open();
  while (e->busy()) e->step();
  EXPECT_EQ(slow.tokens, alone.tokens);
  EXPECT_EQ(slow.tokens.size(), 30u);
  EXPECT_EQ(e->stats().slow_masks, 27);
  EXPECT_TRUE(e->check().ok());
}

TEST_P(SlowMasks, AreLeftBehindByCancelledRequests) {
  Gate gate;
  Heard slow, next;
  const auto e = engine();
  const RequestId id = e->submit(held({.gate = &gate}, 1, 30), slow.listener()).value();
  std::thread stepping([&] {
    while (e->busy()) e->step();
  });
  gate.await_somebody();
  e->cancel(id);
  stepping.join();
  EXPECT_EQ(slow.finish, FinishReason::kCancelled);
  // The pool still waits at the gate, and what it works for is gone.
  e->submit(request(2, 20), next.listener()).value();
  while (e->busy()) e->step();
  EXPECT_EQ(next.tokens.size(), 20u);
  EXPECT_TRUE(e->check().ok());
  gate.open();
}

TEST_P(SlowMasks, OfAnEngineThatEndsAreDropped) {
  Gate gate;
  std::deque<Heard> heard(3);
  auto e = engine();
  for (int32_t i = 0; i < 3; ++i)
    e->submit(held({.gate = &gate}, i, 30), heard[static_cast<size_t>(i)].listener()).value();
  for (int i = 0; i < 20; ++i) e->step();
  gate.await_somebody();
  gate.open();
  e.reset();
  for (const Heard& h : heard) EXPECT_EQ(h.finish, FinishReason::kCancelled);
}

// Where tokens take long as well, the pool takes them, and tells how a text ends.
TEST_P(SlowMasks, AndSlowTokensGiveTheSameText) {
  for (const Slowness& slow : {Slowness{}, Slowness{.ends = 12}, Slowness{.gives_up = 12}}) {
    SCOPED_TRACE(fmt::format("ends {}, gives up {}", slow.ends, slow.gives_up));
    Slowness heavy = slow;
    heavy.heavy = true;
    std::deque<Heard> heard(4);
    for (size_t i = 0; i < 2; ++i) {
      const auto e = engine();
      e->submit(held(i == 0 ? slow : heavy, 1, 30), heard[2 * i].listener()).value();
      e->submit(request(2, 40), heard[2 * i + 1].listener()).value();
      while (e->busy()) e->step();
      EXPECT_TRUE(e->check().ok());
      if (i == 1) {
        EXPECT_GT(e->stats().slow_masks, 5);
      }
    }
    EXPECT_EQ(heard[0].tokens.size(), static_cast<size_t>(std::min({30, slow.ends, slow.gives_up})));
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(heard[i].tokens, heard[i + 2].tokens);
      EXPECT_EQ(heard[i].finish, heard[i + 2].finish);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Depth, SlowMasks, testing::Values(1, 2));

}  // namespace
}  // namespace quire::test
