// Log-probabilities of a prompt's tokens: what they are, that no bit of them depends on steps, company or caches, and
// that their requests end as all others do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>

#include "engine/engine_rig.h"
#include "eval/divergence.h"
#include "eval/scorer.h"
#include "support/protected_backend.h"

namespace quire::test {
namespace {

constexpr int kTops = 3;

Request scored(std::vector<TokenId> prompt, int64_t max_tokens = 4) {
  Request r = request_of(std::move(prompt), max_tokens);
  r.prompt_logprobs = kTops;
  r.sampling.logprobs = 0;
  return r;
}

EngineOptions scoring_options(int32_t chunk = 512, int depth = 1) {
  return {.threads = 2, .context = 1200, .max_sequences = 4, .max_batch_tokens = chunk, .depth = depth};
}

void expect_same_bits(const PromptLogprobs& got, const PromptLogprobs& want, const std::string& what) {
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size()) << what;
  ASSERT_EQ(got.top.size(), want.top.size()) << what;
  EXPECT_EQ(std::memcmp(got.logprobs.data(), want.logprobs.data(), want.logprobs.size() * sizeof(float)), 0) << what;
  EXPECT_EQ(got.ranks, want.ranks) << what;
  EXPECT_EQ(std::memcmp(got.top.data(), want.top.data(), want.top.size() * sizeof(TokenLogprob)), 0) << what;
}

const int64_t kScored[] = {1, 2, 64, 65, 200, 1100};

std::vector<Heard> scored_one_by_one(Engine& engine, int tops = kTops) {
  std::vector<Heard> all;
  for (const int64_t n : kScored) {
    Request r = scored(tokens(n, 1));
    r.prompt_logprobs = tops;
    all.push_back(hear_one(engine, std::move(r)));
  }
  return all;
}

// All at once, among requests that generate and others that begin as they do.
std::vector<Heard> scored_together(Engine& engine) {
  std::deque<Heard> heard, others;
  for (const int64_t n : kScored) {
    for (const std::vector<TokenId>& prompt : {tokens(20 + n / 8, 2), tokens(n, 1)})
      engine.submit(request_of(prompt, 12), others.emplace_back().listener()).value();
    engine.submit(scored(tokens(n, 1)), heard.emplace_back().listener()).value();
  }
  finish(engine);
  for (const Heard& h : others) {
    EXPECT_EQ(h.tokens.size(), 12u);
    EXPECT_EQ(h.prompts, 0) << "nobody asked";
  }
  return {heard.begin(), heard.end()};
}

void expect_same_scores(const std::vector<Heard>& got, const std::vector<Heard>& want, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    expect_same_bits(got[i].prompt, want[i].prompt, fmt::format("{}, {} tokens", what, kScored[i]));
    EXPECT_EQ(got[i].prompts, 1) << what;
    EXPECT_EQ(got[i].prompt_event, 0) << what << ": they come with the first token";
    EXPECT_EQ(got[i].cached, 0) << what << ": all of it is computed";
    EXPECT_EQ(got[i].tokens, want[i].tokens) << what;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << what;
  }
}

TEST(PromptLogprobs, NoBitDependsOnStepsCompanyOrCaches) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    const ModelPtr& model = tiny(name);
    const std::vector<Heard> want = scored_one_by_one(*make_engine(model, scoring_options()));
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(std::ssize(want[i].prompt.logprobs), kScored[i] - 1) << "nothing comes before the first token";
    struct Setting {
      int32_t chunk;
      int depth;
      bool cache;
    };
    for (const Setting& set : {Setting{64, 1, false}, {64, 2, true}, {128, 2, false}, {2048, 1, true}}) {
      EngineOptions o = scoring_options(set.chunk, set.depth);
      o.prefix_cache = set.cache;
      const std::string what =
          fmt::format("{}, chunks of {}, depth {}, cache {}", name, set.chunk, set.depth, set.cache);
      const auto engine = make_engine(model, o);
      expect_same_scores(scored_together(*engine), want, what);
      expect_same_scores(scored_one_by_one(*engine), want, what + ", again");
      EXPECT_EQ(engine->stats().prefix_hits > 0, set.cache) << "others go on from what was computed";
    }
    expect_same_scores(scored_together(*make_engine(model, scoring_options(128, 2), make_protected_backend)), want,
                       "nobody else touches the backend's memory");
  }
}

// Generated tokens of such an engine have other bits; prompts have not.
TEST(PromptLogprobs, AreTheSameInTheArithmeticForLatency) {
  const ModelPtr& model = tiny("tiny-qwen35moe");
  const std::vector<Heard> want = scored_one_by_one(*make_engine(model, scoring_options()));
  EngineOptions o = scoring_options(64, 2);
  o.arithmetic = Arithmetic::kLatency;
  const std::vector<Heard> got = scored_together(*make_engine(model, o));
  for (size_t i = 0; i < want.size(); ++i)
    expect_same_bits(got[i].prompt, want[i].prompt, fmt::format("{} tokens", kScored[i]));
}

// Older sequences grow while a long prompt is computed, and take blocks that it has filled already.
TEST(PromptLogprobs, SwappingChangesNothing) {
  const ModelPtr& model = tiny("tiny-qwen35moe");
  EngineOptions o = scoring_options(128, 2);
  o.context = o.kv_tokens = 2048;
  const Heard want = hear_one(*make_engine(model, o), scored(tokens(1940, 1)));
  o.swap_bytes = int64_t{1} << 24;
  const auto engine = make_engine(model, o);
  for (int i = 0; i < 3; ++i) engine->submit(request_of(tokens(14, i), 60), nullptr).value();
  engine->step();
  const Heard got = hear_one(*engine, scored(tokens(1940, 1)));
  expect_same_bits(got.prompt, want.prompt, "swapped");
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_GT(engine->stats().preemptions, 0);
}

// The scorer keeps whole logits of every position; what is wanted of them is found here, in float64.
TEST(PromptLogprobs, AreThoseOfTheLogits) {
  for (const TinyModel& m : tiny_models())
    for (const Device device : {Device::kCpu, Device::kReference}) {
      SCOPED_TRACE(testing::Message() << m.name << (device == Device::kCpu ? "" : ", reference"));
      const ModelPtr& model = tiny(m.name);
      const std::vector<TokenId> prompt = tokens(100, 3);
      EngineOptions o = scoring_options(64);
      o.device = device;
      Request r = scored(prompt);
      r.sampling.temperature = 1.5f;  // changes nothing, nor do these
      r.sampling.repetition_penalty = 2.0f;
      r.sampling.logit_bias = {{prompt[5], -100.0f}};
      const PromptLogprobs got = hear_one(*make_engine(model, o), std::move(r)).prompt;
      ASSERT_EQ(got.logprobs.size(), 99u);
      const auto scorer = std::move(Scorer::create(model, {.device = device, .threads = 1})).value();
      const auto check = [&](int64_t position, std::span<const float> logits) {
        const auto i = static_cast<size_t>(position);
        if (i + 1 == prompt.size()) return;
        const TokenId next = prompt[i + 1];
        EXPECT_NEAR(got.logprobs[i], log_probability(logits, next), 1e-5);
        const float own = logits[static_cast<size_t>(next)];
        EXPECT_EQ(got.ranks[i], 1 + std::count_if(logits.begin(), logits.end(), [&](float x) { return x > own; }));
        const std::vector<TokenProbability> best = likeliest(logits, kTops);
        for (size_t k = 0; k < kTops; ++k) {
          EXPECT_EQ(got.top[i * kTops + k].token, best[k].token);
          EXPECT_NEAR(got.top[i * kTops + k].logprob, std::log(best[k].probability), 1e-5);
        }
      };
      ASSERT_TRUE(scorer->run(prompt, check).ok());
    }
}

// What transformers computed of whole windows (docs/testing.md).
TEST(PromptLogprobs, AddUpToThePerplexityOfTransformers) {
  for (const TinyModel& m : tiny_models()) {
    const GoldenPerplexity golden = load_golden(m.golden_path()).perplexity;
    ASSERT_FALSE(golden.ids.empty());
    EngineOptions o = scoring_options(128);
    o.device = Device::kReference;
    const auto engine = make_engine(tiny(m.name), o);
    const auto window = static_cast<size_t>(golden.window);
    for (size_t w = 0; w < golden.window_nll.size(); ++w) {
      const auto begin = golden.ids.begin() + static_cast<std::ptrdiff_t>(w * window);
      const PromptLogprobs got = hear_one(*engine, scored({begin, begin + golden.window}, 0)).prompt;
      const double nll = -std::accumulate(got.logprobs.begin(), got.logprobs.end(), 0.0);
      EXPECT_NEAR(nll, golden.window_nll[w], 1e-4 * golden.window_nll[w]) << m.name << ", window " << w;
    }
  }
}

TEST(PromptLogprobs, NothingNeedBeGenerated) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"})
    for (const int depth : {1, 2}) {
      const auto engine = make_engine(tiny(name), scoring_options(128, depth));
      const std::vector<Heard> want = scored_one_by_one(*engine);
      for (size_t i = 0; i < std::size(kScored); ++i) {
        const Heard h = hear_one(*engine, scored(tokens(kScored[i], 1), 0));
        EXPECT_EQ(h.events, 2) << "it has begun and ended";
        EXPECT_TRUE(h.tokens.empty());
        EXPECT_EQ(h.finish, FinishReason::kLength);
        expect_same_bits(h.prompt, want[i].prompt, fmt::format("{} tokens", kScored[i]));
      }
      const Heard whole = hear_one(*engine, scored(tokens(1200, 1), 0));
      EXPECT_EQ(whole.prompt.logprobs.size(), 1199u) << "as long as the context";
      Request silent = scored(tokens(100, 1), 0);
      silent.prompt_logprobs = -1;
      const Heard h = hear_one(*engine, std::move(silent));
      EXPECT_EQ(h.events, 2) << "it has begun and ended";
      EXPECT_EQ(h.prompts, 0);
      EXPECT_EQ(h.finish, FinishReason::kLength);
    }
}

// A token's own log-probability needs no alternatives beside it.
TEST(PromptLogprobs, AlternativesAreAsManyAsWereAskedFor) {
  const auto engine = make_engine(tiny("tiny-llama"), scoring_options());
  const std::vector<Heard> three = scored_one_by_one(*engine), none = scored_one_by_one(*engine, 0);
  for (size_t i = 0; i < three.size(); ++i) {
    EXPECT_TRUE(none[i].prompt.top.empty());
    EXPECT_EQ(none[i].prompt.logprobs, three[i].prompt.logprobs);
    EXPECT_EQ(none[i].prompt.ranks, three[i].prompt.ranks);
    EXPECT_EQ(three[i].prompt.top.size(), kTops * three[i].prompt.logprobs.size());
  }
}

TEST(PromptLogprobs, AreCancelledLikeOthers) {
  for (const int depth : {1, 2}) {
    EngineOptions o = scoring_options(64, depth);
    o.max_sequences = 1;
    const auto engine = make_engine(tiny("tiny-qwen35moe"), o);
    Heard running, waiting, last;
    const RequestId a = engine->submit(scored(tokens(500, 1)), running.listener()).value();
    const RequestId b = engine->submit(scored(tokens(500, 2), 0), waiting.listener()).value();
    engine->submit(scored(tokens(5, 1), 0), last.listener()).value();
    for (int i = 0; i < 3; ++i) engine->step();
    engine->cancel(a);
    engine->cancel(b);
    finish(*engine);
    for (const Heard* h : {&running, &waiting}) {
      EXPECT_EQ(h->events, 1) << "the end alone";
      EXPECT_EQ(h->finish, FinishReason::kCancelled);
      EXPECT_EQ(h->prompts, 0);
    }
    EXPECT_EQ(last.finish, FinishReason::kLength);
    EXPECT_EQ(last.prompt.logprobs.size(), 4u);
  }
}

TEST(PromptLogprobs, WhatCannotBeIsRefused) {
  EngineOptions o = scoring_options();
  o.max_prompt_logprobs = 5;
  const auto refused = [&](Request r) {
    const Result<RequestId> id = make_engine(tiny("tiny-llama"), o)->submit(std::move(r), nullptr);
    return id.ok() ? "(accepted)" : id.error().message;
  };
  Request r = scored(tokens(10, 1));
  r.prompt_logprobs = 6;
  EXPECT_EQ(refused(r), "6 log-probabilities beside each token of the prompt: this engine reports at most 5");
  r.prompt_logprobs = 5;
  EXPECT_EQ(refused(r), "(accepted)");
  EXPECT_EQ(refused(scored(tokens(1201, 1), 0)),
            "the prompt has 1201 tokens, but the context holds 1200 including the answer");
  EXPECT_EQ(refused(scored(tokens(1200, 1), 1)),
            "the prompt has 1200 tokens, but the context holds 1200 including the answer");
  EXPECT_EQ(refused(scored(tokens(10, 1), -1)), "max_tokens is -1: must be at least 0");
  o.max_prompt_logprobs = -1;
  EXPECT_EQ(refused(scored(tokens(10, 1))), "this engine computes no log-probabilities of prompts");
  r.prompt_logprobs = -1;
  EXPECT_EQ(refused(r), "(accepted)");
}

TEST(PromptLogprobs, ADamagedModelSaysSo) {
  for (const TinyModel& m : tiny_models()) {
    if (m.name != "tiny-llama") continue;
    const auto bytes = std::make_shared<std::string>(read_whole_file(TinyModelFile(m).path()));
    gguf::File file = std::move(gguf::File::parse(std::as_bytes(std::span(*bytes)))).value();
    const auto at = reinterpret_cast<const char*>((*file.get_tensor("output_norm.weight"))->data) - bytes->data();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes->data() + at, &nan, sizeof nan);
    const auto model = std::move(load_model(std::move(file), "damaged", bytes)).value();
    const auto engine = make_engine(model, scoring_options());
    for (const int64_t max_tokens : {0, 3}) {
      const Heard h = hear_one(*engine, scored({40, 41}, max_tokens));
      EXPECT_EQ(h.finish, FinishReason::kError);
      EXPECT_EQ(h.message(), "the model's logits are not numbers: its file is damaged or not supported");
    }
  }
}

}  // namespace
}  // namespace quire::test
