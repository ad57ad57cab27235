// Request::min_tokens: nothing ends a generation before so many tokens, and then everything does as usual.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine_rig.h"

namespace quire::test {
namespace {

class MinTokens : public testing::TestWithParam<int> {  // steps under way
 protected:
  struct HeardOrRefused : Heard {
    std::string refusal;
  };
  static const ModelPtr& model() { return tiny("tiny-qwen35moe"); }
  static TokenId eos() { return model()->tokenizer->eog_tokens().front(); }
  // Greedy, and of nothing but the end wherever that may be sampled.
  static Request eager_to_end(int64_t min_tokens) {
    Request r;
    r.prompt = {40, 41, 42};
    r.max_tokens = 24;
    r.min_tokens = min_tokens;
    r.sampling.logit_bias[eos()] = 100;
    return r;
  }
  static HeardOrRefused run(Request r, int32_t max_logit_bias = 1024) {
    EngineOptions o;
    o.context = 512;
    o.threads = 2;
    o.depth = GetParam();
    o.max_logit_bias = max_logit_bias;
    const auto engine = make_engine(model(), o);
    HeardOrRefused h;
    const auto id = engine->submit(std::move(r), h.listener());
    if (!id.ok()) h.refusal = id.error().message;
    finish(*engine);
    EXPECT_TRUE(engine->check().ok()) << "also of an engine that refused";
    return h;
  }
};
INSTANTIATE_TEST_SUITE_P(Depths, MinTokens, testing::Values(1, 2));

TEST_P(MinTokens, EndOfGenerationWaits) {
  EXPECT_EQ(run(eager_to_end(0)).tokens, std::vector<TokenId>{eos()});
  for (const int64_t least : {1, 2, 7}) {
    const Heard h = run(eager_to_end(least));
    ASSERT_EQ(h.tokens.size(), static_cast<size_t>(least) + 1);
    EXPECT_EQ(std::count(h.tokens.begin(), h.tokens.end(), eos()), 1);
    EXPECT_EQ(h.tokens.back(), eos());
    EXPECT_EQ(h.finish, FinishReason::kStop);
  }
  const Heard all = run(eager_to_end(24));
  EXPECT_EQ(all.finish, FinishReason::kLength);
  EXPECT_EQ(std::count(all.tokens.begin(), all.tokens.end(), eos()), 0);
}

TEST_P(MinTokens, AnOrdinaryTokenIsNotHeldBack) {
  Request r = eager_to_end(5);
  r.ignore_eos = true;
  EXPECT_EQ(run(r).tokens, std::vector<TokenId>(24, eos()));
}

TEST_P(MinTokens, StopTokensWait) {
  Request r = request_of({40, 41, 42}, 24);
  const Heard whole = run(r);
  const TokenId stop = whole.tokens[2];
  r.stop_tokens = {stop, stop};
  r.min_tokens = 10;
  r.sampling.logit_bias[stop] = 100;  // has no effect where the token is forbidden
  const Heard h = run(r);
  ASSERT_EQ(h.tokens.size(), 11u);
  EXPECT_EQ(std::find(h.tokens.begin(), h.tokens.end(), stop), h.tokens.end() - 1);
}

TEST_P(MinTokens, StopTextsAreLookedForInWhatFollows) {
  Request r = request_of({40, 41, 42}, 24);
  const Heard whole = run(r);
  r.stop.clear();
  for (char c = 1; c < 127; ++c) r.stop.emplace_back(1, c);  // any character
  ASSERT_LT(run(r).tokens.size(), 10u);
  r.min_tokens = 12;
  const Heard h = run(r);
  const std::string before = model()->tokenizer->decode(std::span(whole.tokens).first(11));
  EXPECT_TRUE(h.text.starts_with(before)) << h.text;
  EXPECT_GE(h.tokens.size(), 13u);
  EXPECT_EQ(h.finish, FinishReason::kStop);
}

TEST_P(MinTokens, RefusesWhatCannotBe) {
  Request r = eager_to_end(25);
  EXPECT_EQ(run(r).refusal, "min_tokens is 25: must be between 0 and max_tokens, which is 24");
  r.min_tokens = -1;
  EXPECT_EQ(run(r).refusal, "min_tokens is -1: must be between 0 and max_tokens, which is 24");
  r.min_tokens = 1;
  EXPECT_TRUE(run(r, 1).refusal.starts_with("min_tokens forbids ")) << run(r, 1).refusal;
}

}  // namespace
}  // namespace quire::test
