// Bytes and operations of a few calls, counted by hand.
#include <gtest/gtest.h>

#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

// Nothing may be read from it: counts follow from shapes.
void* const kSomewhere = reinterpret_cast<void*>(uintptr_t{64});

Tensor tensor(DType type, std::initializer_list<int64_t> dims) {
  return make_tensor(kSomewhere, type, dims);
}
Weight weight(DType type, int64_t rows, int64_t cols, int64_t experts = 1) {
  return {type, static_cast<const std::byte*>(kSomewhere), rows, cols, experts};
}
void expect(const Traffic& got, int64_t bytes, int64_t flops) {
  EXPECT_EQ(got.bytes, bytes);
  EXPECT_EQ(got.flops, flops);
}

TEST(Traffic, LinearReadsEachMatrixOnce) {
  // 3 tokens of 64 in bf16. 10 rows of Q8_0: two blocks of 34 bytes each, with a bias; 6 rows of bf16, added.
  const Tensor x = tensor(DType::kBF16, {3, 64});
  const LinearPart biased{weight(DType::kQ8_0, 10, 64), tensor(DType::kF32, {10}), tensor(DType::kBF16, {3, 10}),
                          false};
  const LinearPart added{weight(DType::kBF16, 6, 64), {}, tensor(DType::kF32, {3, 6}), true};
  expect(kLinearOp.traffic({x, {biased, added}}),
         3 * 64 * 2 + (10 * 68 + 10 * 4 + 3 * 10 * 2) + (6 * 128 + 2 * 3 * 6 * 4), 2 * 3 * 64 * 10 + 2 * 3 * 64 * 6);
}

TEST(Traffic, MlpCountsThreeMatricesAndTheResidual) {
  MlpArgs a;
  a.h = tensor(DType::kBF16, {2, 32});
  a.gate = a.up = weight(DType::kBF16, 48, 32);
  a.down = weight(DType::kBF16, 32, 48);
  a.x = tensor(DType::kF32, {2, 32});
  const int64_t flops = 2 * (2 * 3 * 48 * 32 + 48 * 16);  // SiLU is 15, its product with up one
  expect(kMlpOp.traffic(a), 3 * 48 * 32 * 2 + 2 * 32 * (2 + 8), flops);
  a.add_to_x = false;
  expect(kMlpOp.traffic(a), 3 * 48 * 32 * 2 + 2 * 32 * (2 + 4), flops);
}

TEST(Traffic, MoeTakesTheExpertsThatTokensChooseOnAverage) {
  MoeArgs a;
  a.h = tensor(DType::kBF16, {2, 16});
  a.router = weight(DType::kF32, 8, 16);
  a.gate = a.up = weight(DType::kBF16, 32, 16, 8);
  a.down = weight(DType::kBF16, 16, 32, 8);
  a.top_k = 2;
  a.x = tensor(DType::kF32, {2, 16});
  // Two tokens with two of eight: 8 (1 - 0.75^2) = 3.5 experts of 3 KiB.
  expect(kMoeOp.traffic(a), 8 * 16 * 4 + 7 * 3072 / 2 + 2 * 16 * (2 + 8),
         2 * (2 * 8 * 16 + 2 * (2 * 3 * 32 * 16 + 32 * 16 + 2 * 16)));
}

TEST(Traffic, RowsAndNorms) {
  EmbedArgs embed{.tokens = tensor(DType::kI32, {5}), .table = weight(DType::kBF16, 100, 64)};
  embed.x = tensor(DType::kF32, {5, 64});
  expect(kEmbedOp.traffic(embed), 5 * 4 + 5 * 128 + 5 * 256, 0);  // five rows of the table, not all
  expect(kReducePartialsOp.traffic({tensor(DType::kF32, {3, 5, 8}), tensor(DType::kF32, {5, 8})}), (3 + 2) * 5 * 8 * 4,
         3 * 5 * 8);
  expect(kAddRmsNormOp.traffic({.x = tensor(DType::kF32, {5, 8}),
                                .add = tensor(DType::kBF16, {5, 8}),
                                .weight = tensor(DType::kF32, {8}),
                                .h = tensor(DType::kBF16, {5, 8})}),
         5 * 8 * (8 + 2 + 2) + 32, 5 * 5 * 8);
}

TEST(Traffic, AttentionGoesByTheBoundsOfSegments) {
  // Two sequences decode a token each, after 100 positions together; a prompt of 4.
  PagedAttentionArgs a;
  a.q = tensor(DType::kBF16, {6, 4, 32});
  a.kv = {tensor(DType::kBF16, {20, 2, 16 * 32}), tensor(DType::kBF16, {20, 2, 16 * 32})};
  a.out = tensor(DType::kBF16, {6, 128});
  a.segments = {.count = 3, .decodes = 2, .decode_rows = 2, .prompt_rows = 4, .decode_keys = 100};
  expect(kPagedAttentionOp.traffic(a), 2 * 6 * 128 * 2 + 2 * 104 * 2 * 32 * 2, (100 + 10) * 4 * (4 * 32 + 12));
}

TEST(Traffic, DeltaRuleReadsStatesAndHalfThePendingTokens) {
  GatedDeltaArgs a;
  a.q = a.k = tensor(DType::kBF16, {9, 2, 16});
  a.v = a.out = tensor(DType::kBF16, {9, 4, 8});
  a.g = a.beta = tensor(DType::kF32, {9, 4});
  a.segments = {.count = 4, .decodes = 3, .decode_rows = 3, .prompt_rows = 6};
  const int64_t state = 4 * 8 * 16 * 4, row = 2 * (32 + 32 + 32 + 32) + 2 * 4 * 4;
  const int64_t token = 32 * 2 + (4 * 8 + 4) * 4;  // key, u and g
  expect(kGdnRecurrentOp.traffic(a), 3 * (row + token + state / 16) + 3 * (state + 15 * token / 2),
         3 * 4 * (6 * 8 * 16 + 30 * (8 + 16)));
  expect(kGdnChunkedOp.traffic(a), 6 * row + 2 * state, 6 * 4 * (128 * (3 * 16 + 2 * 8) + 6 * 8 * 16));
}

TEST(Traffic, NothingForNoRows) {
  expect(kLinearOp.traffic({tensor(DType::kBF16, {0, 64}), {}}), 0, 0);
  PagedAttentionArgs a;
  a.q = tensor(DType::kBF16, {0, 4, 32});
  a.kv = {tensor(DType::kBF16, {20, 2, 16 * 32}), tensor(DType::kBF16, {20, 2, 16 * 32})};
  a.out = tensor(DType::kBF16, {0, 128});
  expect(kPagedAttentionOp.traffic(a), 0, 0);
}

}  // namespace
}  // namespace quire
