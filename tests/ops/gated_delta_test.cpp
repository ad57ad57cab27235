// Hand-worked numbers for the delta rule: the conformance suite compares kernels with an oracle, these say
// that the oracle and the contract mean the same thing.
#include "ops/gated_delta/gated_delta.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

struct Stepped {
  std::vector<float> out, state;
};

// One head of Dk = 2, Dv = 1; the state's slot 1 of 2 belongs to the sequence.
Stepped recurrent(int32_t position, std::vector<float> q, std::vector<float> k, std::vector<float> v,
                  std::vector<float> g, std::vector<float> beta, std::vector<float> state,
                  std::vector<int32_t> token_slots = {}) {
  const auto T = static_cast<int64_t>(v.size());
  ThreadPool pool(1);
  Workspace workspace;
  Stepped r{std::vector<float>(v.size(), NAN), std::move(state)};
  const Segment s{0, static_cast<int32_t>(T), position, 1, nullptr, true};
  const auto slots = static_cast<int64_t>(r.state.size()) / 2;
  gdn_recurrent({pool, workspace, Device::kReference}, {make_tensor(q.data(), {T, 1, 2}),
                                                        make_tensor(k.data(), {T, 1, 2}),
                                                        make_tensor(v.data(), {T, 1, 1}),
                                                        make_tensor(g.data(), {T, 1}),
                                                        make_tensor(beta.data(), {T, 1}),
                                                        HeadMap::kTiled,
                                                        make_tensor(r.state.data(), {slots, 1, 1, 2}),
                                                        {&s, 1},
                                                        token_slots,
                                                        make_tensor(r.out.data(), {T, 1, 1})});
  return r;
}

TEST(GatedDelta, OneStepByHand) {
  // S = (2, 4) halves to (1, 2); k = (1, 0) predicts 1; beta (v - 1) = 0.5 * (5 - 1) = 2; S = (3, 2).
  // q = (1, 1): 5 / sqrt(2).
  const Stepped r = recurrent(7, {1, 1}, {1, 0}, {5}, {std::log(0.5f)}, {0.5f}, {9, 9, 2, 4});
  EXPECT_FLOAT_EQ(r.out[0], 5.0f / std::sqrt(2.0f));
  EXPECT_FLOAT_EQ(r.state[2], 3.0f);
  EXPECT_FLOAT_EQ(r.state[3], 2.0f);
  EXPECT_EQ(r.state[0], 9.0f);
}

TEST(GatedDelta, PositionZeroIgnoresTheSlot) {
  const Stepped r = recurrent(0, {1, 0}, {1, 0}, {5}, {0}, {1}, {9, 9, NAN, NAN});
  EXPECT_FLOAT_EQ(r.state[2], 5.0f);
  EXPECT_FLOAT_EQ(r.state[3], 0.0f);
}

TEST(GatedDelta, TokenSlotsReceiveTheStates) {
  // Two rows with beta 1 overwrite what their key holds; the sequence's own slot stays.
  const Stepped r =
      recurrent(3, {1, 0, 1, 0}, {1, 0, 0, 1}, {5, 7}, {0, 0}, {1, 1}, {0, 0, 2, 4, 0, 0}, {0, 2});
  EXPECT_EQ(r.state, (std::vector<float>{5, 4, 2, 4, 5, 7}));
}

TEST(GatedDeltaDeathTest, ChunksBeginOnTheGrid) {
  std::vector<float> x(4), state(2);
  ThreadPool pool(1);
  Workspace workspace;
  const Segment s{0, 1, 65, 0, nullptr, false};
  const GatedDeltaArgs a{make_tensor(x.data(), {1, 1, 2}),
                         make_tensor(x.data(), {1, 1, 2}),
                         make_tensor(x.data(), {1, 1, 1}),
                         make_tensor(x.data(), {1, 1}),
                         make_tensor(x.data(), {1, 1}),
                         HeadMap::kTiled,
                         make_tensor(state.data(), {1, 1, 1, 2}),
                         {&s, 1},
                         {},
                         make_tensor(x.data(), {1, 1, 1})};
  EXPECT_DEATH(gdn_chunked({pool, workspace, Device::kReference}, a), "position 65, not on the grid of 64");
}

}  // namespace
}  // namespace quire
