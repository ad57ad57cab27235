// The engine's interface: what it refuses and in which words, how requests end, cancelling, threads, and the
// books of the caches under load.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <thread>

#include "engine/engine_rig.h"

namespace quire::test {
namespace {

class EngineTest : public testing::Test {
 protected:
  static const ModelPtr& model() { return tiny("tiny-qwen35moe"); }
  static std::unique_ptr<Engine> make(EngineOptions options = {}) {
    if (options.context == 0) options.context = 512;
    if (options.threads == 0) options.threads = 2;
    return make_engine(model(), std::move(options));
  }
  static Request request(std::vector<TokenId> prompt = {40, 41, 42}, int64_t max_tokens = 24) {
    return request_of(std::move(prompt), max_tokens);
  }
  static Heard run(Request r) { return hear_one(*make(), std::move(r)); }
  static std::string refused(const Request& r) {
    const auto engine = make();
    const Result<RequestId> id = engine->submit(r, nullptr);
    if (id.ok()) return "(accepted)";
    EXPECT_EQ(id.error().fault, Fault::kRequest);
    EXPECT_FALSE(engine->busy()) << "nothing of it was kept";
    return id.error().message;
  }
};

TEST_F(EngineTest, RefusesWithExactMessages) {
  const struct {
    void (*change)(Request&);
    const char* message;
  } cases[] = {
      {[](Request& r) { r.prompt.edit().clear(); }, "the prompt is empty: there is nothing to continue"},
      {[](Request& r) { r.prompt.edit()[1] = 320; }, "prompt token 1 is 320: the vocabulary has 320 tokens"},
      {[](Request& r) { r.prompt.edit()[2] = -1; }, "prompt token 2 is -1: the vocabulary has 320 tokens"},
      {[](Request& r) { r.max_tokens = -1; }, "max_tokens is -1: must be at least 0"},
      {[](Request& r) { r.prompt.edit().assign(512, 5); },
       "the prompt has 512 tokens, but the context holds 512 including the answer"},
      {[](Request& r) {
         r.stop_tokens = {7, 320};
       },
       "stop token 320: the vocabulary has 320 tokens"},
      {[](Request& r) {
         r.stop = {"a", ""};
       },
       "stop string 2 is empty: nothing could be generated before it"},
      {[](Request& r) { r.stop = {"\xff"}; }, "stop string 1 is not valid UTF-8"},
      {[](Request& r) { r.sampling.temperature = -1; }, "temperature is -1: must be between 0 and 100"},
      {[](Request& r) { r.sampling.temperature = NAN; }, "temperature is nan: must be between 0 and 100"},
      {[](Request& r) { r.sampling.top_k = -1; }, "top_k is -1: must be at least 0"},
      {[](Request& r) { r.sampling.top_p = 1.5f; }, "top_p is 1.5: must be between 0 and 1"},
      {[](Request& r) { r.sampling.min_p = -0.5f; }, "min_p is -0.5: must be between 0 and 1"},
      {[](Request& r) { r.sampling.typical_p = 2; }, "typical_p is 2: must be between 0 and 1"},
      {[](Request& r) { r.sampling.repetition_penalty = 0; }, "repetition_penalty is 0: must be between 0.01 and 100"},
      {[](Request& r) { r.sampling.presence_penalty = 3; }, "presence_penalty is 3: must be between -2 and 2"},
      {[](Request& r) { r.sampling.frequency_penalty = -3; }, "frequency_penalty is -3: must be between -2 and 2"},
      {[](Request& r) { r.sampling.logit_bias[320] = 1; },
       "logit_bias names token 320, but the vocabulary has ids 0 to 319"},
      {[](Request& r) { r.sampling.logit_bias[3] = 101; },
       "logit_bias of token 3 is 101: must be between -100 and 100"},
      {[](Request& r) { r.sampling.logprobs = 321; },
       "logprobs is 321: must be between 0 and the vocabulary's size of 320 (or -1 for none)"},
  };
  for (const auto& c : cases) {
    Request r = request();
    c.change(r);
    EXPECT_EQ(refused(r), c.message);
  }
}

TEST_F(EngineTest, RefusesImpossibleOptions) {
  const auto message = [](const EngineOptions& o) {
    const auto e = Engine::create(model(), o);
    return e.ok() ? "(accepted)" : e.error().message;
  };
  EXPECT_EQ(message({.threads = -1}), "-1 threads: must be between 1 and 1024");
  EXPECT_EQ(message({.context = 4096}), "a context of 4096 tokens: the model was trained for 1 to 2048");
  EXPECT_EQ(message({.max_sequences = -1}), "-1 sequences: must be between 1 and 4096");
  EXPECT_EQ(message({.max_batch_tokens = 63}), "63 batch tokens: must be between 64 and 65536");
  EXPECT_EQ(message({.max_sequences = 100, .max_batch_tokens = 99}),
            "99 batch tokens: must be between 100 and 65536, a row for each sequence that may run");
  EXPECT_EQ(message({.max_waiting = 0}), "a queue of 0 requests: must be at least 1");
  EXPECT_EQ(message({.depth = 3}), "a depth of 3 steps: must be 1 or 2");
  EXPECT_EQ(message({.context = 512, .kv_tokens = 256}), "a KV pool of 256 tokens cannot hold one sequence of 512");
  EXPECT_EQ(message({.swap_bytes = -1}), "-1 bytes of swap space: must not be negative");
  EXPECT_EQ(message({.prefix_host_bytes = -1}), "-1 bytes of the host for the prefix cache: must not be negative");
  EXPECT_EQ(message({.state_checkpoints = 65537}), "65537 saved states: must be at most 65536");
  EXPECT_EQ(message({.volatile_tail = -1}), "a volatile tail of -1 tokens: must not be negative");
  EXPECT_EQ(message({.first_token_threshold = -1}), "a threshold of -1 waiting prompts: must not be negative");
  EXPECT_EQ(message({.patience_steps = -1}), "a patience of -1 steps: must not be negative");
}

TEST_F(EngineTest, RecordsSayWhoWaitsAndWhy) {
  const auto engine = make({.max_sequences = 1, .max_batch_tokens = 128, .prefix_cache = true});
  std::vector<StepRecord> records;
  engine->observe_steps([&](const StepRecord& r) { records.push_back(r); });
  std::deque<Heard> heard(3);
  for (Heard& h : heard) engine->submit(request(std::vector<TokenId>(200, 60), 3), h.listener()).value();
  while (engine->busy()) engine->step();
  const auto deferred = [](const StepRecord& r, Deferral why) { return r.deferred[static_cast<size_t>(why)]; };
  ASSERT_GE(records.size(), 2u);
  EXPECT_EQ(records[0].step, 1);
  EXPECT_EQ(records[0].prompt_rows, 128);
  EXPECT_EQ(records[0].running, 1);
  EXPECT_EQ(records[0].admitted, 1);
  EXPECT_EQ(records[0].waiting, 2);
  EXPECT_EQ(deferred(records[0], Deferral::kSharedPrefix), 2) << "they begin as the first one does";
  EXPECT_EQ(records[0].pools[kKvPool].used, 8);
  EXPECT_EQ(records[1].admitted, 0);
  EXPECT_EQ(deferred(records[1], Deferral::kPlaces), 2);
  EXPECT_EQ(records.back().waiting, 0);
  EXPECT_EQ(records.back().decode_rows, 1);
  for (const StepRecord& r : records) {
    EXPECT_GT(r.host_seconds, 0.0);
    EXPECT_GT(r.device_seconds, 0.0);
    EXPECT_GT(r.time, 1.7e9);
  }
}

TEST_F(EngineTest, EndsByLength) {
  EXPECT_EQ(run(request({40}, 1)).tokens.size(), 1u);
  const Heard heard = run(request({40, 41}, 24));
  EXPECT_EQ(heard.tokens.size(), 24u);
  EXPECT_EQ(heard.finish, FinishReason::kLength);
  EXPECT_EQ(heard.text, model()->tokenizer->decode(heard.tokens));
  // The context is the limit when it is nearer: 512 tokens with the prompt.
  EXPECT_EQ(run(request(std::vector<TokenId>(500, 60), 1000)).tokens.size(), 12u);
}

TEST_F(EngineTest, EndsAtAStopTokenWithoutItsText) {
  const Heard whole = run(request());
  Request r = request();
  r.stop_tokens = {whole.tokens[5]};
  const size_t at =
      static_cast<size_t>(std::find(whole.tokens.begin(), whole.tokens.end(), whole.tokens[5]) - whole.tokens.begin());
  const Heard heard = run(r);
  EXPECT_EQ(heard.finish, FinishReason::kStop);
  ASSERT_EQ(heard.tokens.size(), at + 1);
  EXPECT_EQ(heard.text, model()->tokenizer->decode(std::span(whole.tokens).first(at)));
}

TEST_F(EngineTest, EndOfGenerationTokensCanBeIgnored) {
  Request r = request();
  const TokenId eos = model()->tokenizer->eog_tokens().front();
  r.sampling.logit_bias[eos] = 100;
  EXPECT_EQ(run(r).tokens, std::vector<TokenId>(24, eos)) << "an ordinary token";
  r.ignore_eos = false;
  const Heard heard = run(r);
  EXPECT_EQ(heard.tokens, std::vector<TokenId>{eos});
  EXPECT_EQ(heard.text, "");
  EXPECT_EQ(heard.finish, FinishReason::kStop);
}

TEST_F(EngineTest, StopTextMayLieAcrossTokens) {
  // The tokens of this text are single bytes: each pair of characters lies across two of them.
  const Heard whole = run(request({40, 41, 42}, 24));
  int across = 0;
  for (size_t begin = 0; begin + 2 <= whole.text.size(); ++begin) {
    const std::string stop = whole.text.substr(begin, 2);
    if (std::any_of(stop.begin(), stop.end(), [](char c) { return (c & 0x80) != 0; })) continue;
    Request r = request({40, 41, 42}, 24);
    r.stop = {"never", stop};
    const Heard heard = run(r);
    EXPECT_EQ(heard.text, whole.text.substr(0, whole.text.find(stop))) << stop;
    EXPECT_EQ(heard.finish, FinishReason::kStop);
    EXPECT_LT(heard.tokens.size(), whole.tokens.size());
    ++across;
  }
  EXPECT_GE(across, 5) << whole.text;
}

TEST_F(EngineTest, TextHeldBackForAStopTextIsEmittedAtTheEnd) {
  const Heard whole = run(request());
  Request r = request();
  r.stop = {"\uFFFDnever"};
  ASSERT_TRUE(whole.text.ends_with("\uFFFD"));
  const Heard heard = run(r);
  EXPECT_EQ(heard.text, whole.text);
  EXPECT_EQ(heard.finish, FinishReason::kLength);
}

TEST_F(EngineTest, LogprobsAreThoseOfTheDistribution) {
  Request r = request();
  r.sampling.temperature = 1;
  r.sampling.seed = 3;
  r.sampling.logprobs = 320;
  const Heard heard = run(r);
  ASSERT_EQ(heard.tokens.size(), 24u);
  for (size_t at = 0; at < heard.tokens.size(); ++at) {
    double sum = 0;
    bool found = false;
    const auto& top = heard.tops[at];
    ASSERT_EQ(top.size(), 320u);
    for (size_t i = 0; i < top.size(); ++i) {
      const auto [token, logprob] = top[i];
      sum += std::exp(logprob);
      if (i > 0) {
        EXPECT_GE(top[i - 1].second, logprob);
      }
      if (token != heard.tokens[at]) continue;
      found = true;
      EXPECT_EQ(logprob, heard.logprobs[at]);
    }
    EXPECT_TRUE(found);
    EXPECT_NEAR(sum, 1, 1e-4);
  }
}

TEST_F(EngineTest, CancelsWaitingAndRunningRequests) {
  const auto engine = make({.max_sequences = 1});
  Heard first, second, third;
  const RequestId a = engine->submit(request({40}, 100), first.listener()).value();
  const RequestId b = engine->submit(request({41}, 100), second.listener()).value();
  engine->submit(request({42}, 5), third.listener()).value();
  for (int i = 0; i < 4; ++i) engine->step();
  engine->drain_events();
  EXPECT_EQ(first.tokens.size(), 4u);
  EXPECT_EQ(second.events, 0) << "waits for a place";
  engine->cancel(b);
  engine->cancel(b);
  engine->step();
  engine->drain_events();
  EXPECT_EQ(second.finish, FinishReason::kCancelled);
  EXPECT_EQ(first.ends, 0);
  engine->cancel(a);
  while (engine->busy()) engine->step();
  EXPECT_EQ(first.finish, FinishReason::kCancelled);
  EXPECT_EQ(first.tokens.size(), 5u);
  EXPECT_EQ(third.finish, FinishReason::kLength);
  engine->cancel(a);  // has ended: nothing happens
  engine->cancel(RequestId{12345});
  EXPECT_FALSE(engine->step());
  EXPECT_TRUE(engine->check().ok());
}

TEST_F(EngineTest, CancelsBeforeTheFirstStep) {
  const auto engine = make();
  Heard heard;
  engine->cancel(engine->submit(request(), heard.listener()).value());
  EXPECT_TRUE(engine->busy());
  while (engine->busy()) engine->step();
  EXPECT_EQ(heard.finish, FinishReason::kCancelled);
  EXPECT_TRUE(heard.tokens.empty());
}

TEST_F(EngineTest, KeepsItsBooksUnderRandomLoad) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 rng(seed);
    const auto number = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
    const auto engine = make({.max_sequences = 5,
                              .max_batch_tokens = seed == 1 ? 64 : 256,
                              .kv_tokens = 640,
                              .depth = seed == 3 ? 2 : 1,
                              .shuffle_blocks = seed});
    std::deque<Heard> heard;  // listeners hear on a thread of their own, and a deque's elements stay where they are
    std::vector<RequestId> ids;
    while (heard.size() < 60 || engine->busy()) {
      if (heard.size() < 60 && number(0, 2) == 0) {
        Request r = request(std::vector<TokenId>(static_cast<size_t>(number(1, number(0, 4) == 0 ? 400 : 40)), 50),
                            number(1, 30));
        ids.push_back(engine->submit(std::move(r), heard.emplace_back().listener()).value());
      }
      if (!ids.empty() && number(0, 9) == 0)
        engine->cancel(
            ids[static_cast<size_t>(number(std::max<int64_t>(0, std::ssize(ids) - 6), std::ssize(ids) - 1))]);
      engine->step();
      const Status books = engine->check();
      ASSERT_TRUE(books.ok()) << books.error().message;
    }
    int cancelled = 0;
    for (const Heard& h : heard) {
      EXPECT_EQ(h.ends, 1);
      cancelled += h.finish == FinishReason::kCancelled;
    }
    EXPECT_GT(cancelled, 2);
    EXPECT_LT(cancelled, 58);
  }
}

TEST_F(EngineTest, EndsWhatIsLeftWhenItIsDestroyed) {
  Heard running, waiting, fresh;
  {
    const auto engine = make({.max_sequences = 1});
    engine->submit(request({40}, 100), running.listener()).value();
    engine->submit(request({41}, 100), waiting.listener()).value();
    for (int i = 0; i < 3; ++i) engine->step();
    engine->submit(request({42}, 100), fresh.listener()).value();
  }
  for (const Heard* h : {&running, &waiting, &fresh}) {
    EXPECT_EQ(h->ends, 1);
    EXPECT_EQ(h->finish, FinishReason::kCancelled);
  }
  EXPECT_EQ(running.tokens.size(), 3u);
}

TEST_F(EngineTest, RefusesMoreRequestsThanMayWait) {
  const auto engine = make({.max_sequences = 1, .max_waiting = 2});
  std::deque<Heard> heard(4);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(engine->submit(request({40}, 4), heard[static_cast<size_t>(i)].listener()).ok());
  const Result<RequestId> refused = engine->submit(request({40}, 4), nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().fault, Fault::kCapacity);
  EXPECT_EQ(refused.error().message, "2 requests wait already, and at most 2 may; try again later");
  engine->step();  // the first one has a place now
  EXPECT_TRUE(engine->submit(request({40}, 4), heard[2].listener()).ok());
  engine->cancel(engine->submit(request({40}, 4), nullptr).ok() ? RequestId{99} : RequestId{1});
  while (engine->busy()) engine->step();
  EXPECT_EQ(heard[0].finish, FinishReason::kLength);
  EXPECT_EQ(heard[2].finish, FinishReason::kLength);
  EXPECT_TRUE(engine->submit(request({40}, 4), heard[3].listener()).ok()) << "ended and cancelled ones wait no more";
  while (engine->busy()) engine->step();
  EXPECT_EQ(heard[3].ends, 1);
}

TEST_F(EngineTest, SaysWhatItsBitsDependOn) {
  const auto two = make({.max_sequences = 2}), sixteen = make();
  EXPECT_NE(two->fingerprint(), sixteen->fingerprint()) << "another arithmetic";
  EXPECT_EQ(make({.max_sequences = 2, .arithmetic = Arithmetic::kThroughput})->fingerprint(), sixteen->fingerprint());
  EXPECT_EQ(make({.threads = 1, .max_sequences = 7, .max_batch_tokens = 64, .depth = 2})->fingerprint(),
            sixteen->fingerprint());
  EXPECT_NE(make({.device = Device::kReference})->fingerprint(), sixteen->fingerprint());
  EXPECT_EQ(make({.kv_cache = KvCacheType::kBf16})->fingerprint(), sixteen->fingerprint());
  EXPECT_EQ(make({.kv_cache = KvCacheType::kFp8})->fingerprint(), sixteen->fingerprint() + "/kv-fp8");
  EXPECT_TRUE(
      make({.device = Device::kReference, .kv_cache = KvCacheType::kBf16})->fingerprint().ends_with("/kv-bf16"));
  EXPECT_NE(make({.kernels = {.forced = {{"linear", "reference"}}}})->fingerprint(), sixteen->fingerprint());
  EXPECT_NE(make_engine(tiny("tiny-qwen35"), {.context = 512})->fingerprint(), sixteen->fingerprint());
}

TEST_F(EngineTest, TakesRequestsFromOtherThreads) {
  const auto engine = make({.max_sequences = 4});
  constexpr int kThreads = 3, kEach = 12;
  std::atomic<int> ended{0}, cancelled{0};
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t)
    clients.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const RequestId id = engine
                                 ->submit(request({40 + t, 60 + i}, 5 + i),
                                          [&](const TokenEvent& e) {
                                            if (e.finish() == FinishReason::kNone) return;
                                            cancelled += e.finish() == FinishReason::kCancelled;
                                            ++ended;
                                          })
                                 .value();
        if (i % 4 == 3) engine->cancel(id);
      }
    });
  while (ended < kThreads * kEach)
    if (!engine->step()) std::this_thread::yield();
  for (std::thread& c : clients) c.join();
  EXPECT_FALSE(engine->busy());
  EXPECT_LE(cancelled, kThreads * kEach / 4);
  EXPECT_TRUE(engine->check().ok());
}

TEST_F(EngineTest, AListenerMaySubmitAndCancel) {
  const auto engine = make();
  Heard next, other;
  const RequestId victim = engine->submit(request({77}, 400), other.listener()).value();
  int tokens = 0;
  engine
      ->submit(request({40}, 6),
               [&](const TokenEvent& e) {
                 tokens += e.token() >= 0;
                 if (e.finish() == FinishReason::kNone) return;
                 engine->cancel(victim);
                 EXPECT_TRUE(engine->submit(request({41}, 3), next.listener()).ok());
               })
      .value();
  while (engine->busy()) engine->step();
  EXPECT_EQ(tokens, 6);
  EXPECT_EQ(next.tokens.size(), 3u);
  EXPECT_EQ(other.finish, FinishReason::kCancelled);
}

}  // namespace
}  // namespace quire::test
