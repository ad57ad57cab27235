// Hand-worked numbers for the delta rule: the conformance suite compares kernels with an oracle, these say
// that the oracle and the contract mean the same thing.
#include "ops/gated_delta/gated_delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::Pointwise;

// One head of Dk = 2, Dv = 1, one slot with 17 pending tokens: one draft.
struct OneHead {
  static constexpr int64_t kPending = kPendingTokens + 1;
  std::vector<float> state{NAN, NAN}, k = std::vector<float>(2 * kPending, NAN), u = std::vector<float>(kPending, NAN),
                                      g = u;
  ThreadPool pool{1};
  Workspace workspace;

  DeltaState views() {
    return {.state = make_tensor(state.data(), {1, 1, 1, 2}),
            .pending_k = make_tensor(k.data(), {1, kPending, 1, 2}),
            .pending_u = make_tensor(u.data(), {1, kPending, 1, 1}),
            .pending_g = make_tensor(g.data(), {1, kPending, 1})};
  }
  struct Rows {
    std::vector<float> q, k, v, g, beta;
  };
  // The outputs of a segment's rows, times sqrt(2).
  std::vector<float> run(const Segment& s, const Rows& r, bool decode = true) {
    const auto T = static_cast<int64_t>(r.v.size());
    std::vector<float> out(r.v.size(), NAN);
    const GatedDeltaArgs a{make_tensor(r.q.data(), {T, 1, 2}),
                           make_tensor(r.k.data(), {T, 1, 2}),
                           make_tensor(r.v.data(), {T, 1, 1}),
                           make_tensor(r.g.data(), {T, 1}),
                           make_tensor(r.beta.data(), {T, 1}),
                           HeadMap::kTiled,
                           views(),
                           {&s, 1, decode ? 1 : 0, nullptr, 0},
                           make_tensor(out.data(), {T, 1, 1})};
    (decode ? gdn_recurrent : gdn_chunked)({pool, workspace, {Device::kReference}}, a);
    for (float& x : out) x *= std::sqrt(2.0f);
    return out;
  }
};

// S0 = (2, 4) halves to (1, 2); k = (1, 0) predicts 1; u = beta (v - 1) = 0.5 * (5 - 1) = 2; S = (3, 2);
// q = (1, 1) gives 5.
const OneHead::Rows kStep{{1, 1}, {1, 0}, {5}, {std::log(0.5f)}, {0.5f}};

TEST(GatedDelta, AStepReadsTheStateAndAppendsPendingTokens) {
  OneHead h;
  h.state = {2, 4};
  EXPECT_THAT(h.run({0, 1, 7, 0, 7}, kStep), Pointwise(testing::FloatEq(), {5.0f}));
  EXPECT_THAT(h.state, ElementsAre(2, 4));
  EXPECT_FLOAT_EQ(h.u[0], 2.0f);
  EXPECT_EQ(h.g[0], std::log(0.5f));
  EXPECT_EQ(h.k[0], 1.0f);
  EXPECT_EQ(h.k[1], 0.0f);
  // S = (3, 2) halves to (1.5, 1); k = (0, 1) predicts 1; u = 6; S = (1.5, 7).
  EXPECT_THAT(h.run({0, 1, 8, 0, 7}, {{1, 0}, {0, 1}, {7}, {std::log(0.5f)}, {1}}),
              Pointwise(testing::FloatEq(), {1.5f}));
  EXPECT_FLOAT_EQ(h.u[1], 6.0f);
  EXPECT_THAT(h.state, ElementsAre(2, 4));
}

TEST(GatedDelta, PendingTokensAreFoldedAtMultiplesOfSixteen) {
  OneHead h;
  h.state = {2, 4};
  h.run({0, 1, 15, 0, 15}, kStep);
  EXPECT_THAT(h.state, Pointwise(testing::FloatEq(), {3.0f, 2.0f}));
}

TEST(GatedDelta, ATentativeRowIsNotFolded) {
  OneHead h;
  h.state = {2, 4};
  const Segment s{.row = 0, .count = 1, .position = 15, .state_slot = 0, .anchor = 15, .tentative = 1};
  h.run(s, kStep);
  EXPECT_THAT(h.state, ElementsAre(2, 4));
  EXPECT_EQ(anchor_after_decode(s), 15);
  // Accepted: the next step folds it first. v is what the state predicts, so nothing else is added.
  h.run({0, 1, 16, 0, 15}, {{1, 1}, {1, 0}, {3}, {0}, {1}});
  EXPECT_THAT(h.state, Pointwise(testing::FloatEq(), {3.0f, 2.0f}));
  EXPECT_FLOAT_EQ(h.u[0], 0.0f);
}

TEST(GatedDelta, PositionZeroIgnoresTheSlot) {
  OneHead h;
  EXPECT_THAT(h.run({0, 1, 0, 0, 0}, {{1, 0}, {1, 0}, {5}, {0}, {1}}), Pointwise(testing::FloatEq(), {5.0f}));
  EXPECT_TRUE(std::isnan(h.state[0])) << "written only where pending tokens are folded";
}

TEST(GatedDelta, AfterAPromptOf70TheStateIsFirstWrittenAt80) {
  OneHead h;
  OneHead::Rows prompt;
  std::vector<double> S{0, 0};
  const auto token = [&](int t) {
    const float angle = 0.3f * static_cast<float>(t), v = std::sin(static_cast<float>(t));
    const OneHead::Rows row{{1, 0}, {std::cos(angle), std::sin(angle)}, {v}, {-0.1f}, {0.5f}};
    const double e = std::exp(-0.1), k0 = row.k[0], k1 = row.k[1];
    const double u = 0.5 * (v - e * (S[0] * k0 + S[1] * k1));
    S = {e * S[0] + u * k0, e * S[1] + u * k1};
    return row;
  };
  for (int t = 0; t < 70; ++t) {
    const OneHead::Rows row = token(t);
    for (const auto part :
         {&OneHead::Rows::q, &OneHead::Rows::k, &OneHead::Rows::v, &OneHead::Rows::g, &OneHead::Rows::beta})
      (prompt.*part).insert((prompt.*part).end(), (row.*part).begin(), (row.*part).end());
  }
  Segment s{0, 70, 0, 0, 0};
  h.run(s, prompt, false);
  EXPECT_NEAR(h.state[0], S[0], 1e-5);
  s.anchor = anchor_after_prompt(s);
  EXPECT_EQ(s.anchor, 70);
  const std::vector<float> after_prompt = h.state;
  s.count = 1;
  for (int t = 70; t < 90; ++t) {
    s.position = t;
    const OneHead::Rows row = token(t);
    EXPECT_NEAR(h.run(s, row)[0], S[0], 1e-5) << t;
    s.anchor = anchor_after_decode(s);
    EXPECT_EQ(s.anchor, t < 79 ? 70 : 80);
    if (t < 79) {
      EXPECT_EQ(h.state, after_prompt);
    }
    if (t == 79) {
      EXPECT_NEAR(h.state[1], S[1], 1e-5);
    }
  }
}

TEST(GatedDeltaDeathTest, SegmentsThatBreakTheContract) {
  OneHead h;
  h.state = {2, 4};
  EXPECT_DEATH(h.run({0, 1, 65, 0, 65}, kStep, false), "position 65, not on the grid of 64");
  EXPECT_DEATH(h.run({0, 1, 128, 0, 64}, kStep, false), "not at its anchor 64");
  EXPECT_DEATH(h.run({0, 1, 7, 0, 8}, kStep), "do not fit 17 pending tokens");
  EXPECT_DEATH(h.run({0, 1, 34, 0, 16}, kStep), "do not fit 17 pending tokens");
  EXPECT_DEATH(h.run({0, 1, 7, 0, 7, 2}, kStep), "2 tentative rows of 1");
}

}  // namespace
}  // namespace quire
