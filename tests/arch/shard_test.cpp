// How the ranks of a tensor-parallel model share its tensors: what of each dimension is whose, for shapes of published
// models of every architecture.
#include "arch/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "arch/architecture.h"

namespace quire {
namespace {

using enum TensorRole;
using testing::ElementsAre;
using testing::HasSubstr;

struct Shape {
  std::string_view architecture;
  ModelSizes sizes;
  std::vector<int32_t> possible;  // numbers of ranks of 2, 4 and 8
};

// Numbers from the models' published configurations.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"llama",
       {.vocab = 128256,
        .d_model = 8192,
        .layers = 80,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 28672},
       {2, 4, 8}},
      {"llama",
       {.vocab = 32000,
        .d_model = 4096,
        .layers = 32,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .n_rot = 128,
        .experts = 8,
        .d_ff_expert = 14336},
       {2, 4, 8}},
      {"qwen2",
       {.vocab = 152064,
        .d_model = 3584,
        .layers = 28,
        .heads = 28,
        .kv_heads = 4,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 18944},
       {2, 4, 8}},
      {"qwen2",
       {.vocab = 151936,
        .d_model = 896,
        .layers = 24,
        .heads = 14,
        .kv_heads = 2,
        .head_dim = 64,
        .n_rot = 64,
        .d_ff = 4864},
       {2, 4, 8}},
      {"qwen3",
       {.vocab = 151936,
        .d_model = 5120,
        .layers = 64,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 25600},
       {2, 4, 8}},
      {"qwen3moe",
       {.vocab = 151936,
        .d_model = 2048,
        .layers = 48,
        .heads = 32,
        .kv_heads = 4,
        .head_dim = 128,
        .n_rot = 128,
        .experts = 128,
        .d_ff_expert = 768},
       {2, 4, 8}},
      {"qwen3vl",
       {.vocab = 151936,
        .d_model = 4096,
        .layers = 36,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 12288},
       {2, 4, 8}},
      {"qwen3vlmoe",
       {.vocab = 151936,
        .d_model = 2048,
        .layers = 48,
        .heads = 32,
        .kv_heads = 4,
        .head_dim = 128,
        .n_rot = 128,
        .experts = 128,
        .d_ff_expert = 768},
       {2, 4, 8}},
      {"qwen35",
       {.vocab = 248320,
        .d_model = 5120,
        .layers = 64,
        .heads = 24,
        .kv_heads = 4,
        .head_dim = 256,
        .n_rot = 64,
        .gated_query = true,
        .conv_kernel = 4,
        .key_heads = 16,
        .value_heads = 48,
        .key_dim = 128,
        .value_dim = 128,
        .d_ff = 17408},
       {2, 4, 8}},
      {"qwen35moe",
       {.vocab = 248320,
        .d_model = 2048,
        .layers = 40,
        .heads = 16,
        .kv_heads = 2,
        .head_dim = 256,
        .n_rot = 64,
        .gated_query = true,
        .conv_kernel = 4,
        .key_heads = 16,
        .value_heads = 32,
        .key_dim = 128,
        .value_dim = 128,
        .experts = 256,
        .d_ff_expert = 512,
        .d_ff_shared = 512},
       {2, 4, 8}},
      {"qwen3next",
       {.vocab = 151936,
        .d_model = 2048,
        .layers = 48,
        .heads = 16,
        .kv_heads = 2,
        .head_dim = 256,
        .n_rot = 64,
        .gated_query = true,
        .conv_kernel = 4,
        .key_heads = 16,
        .value_heads = 32,
        .key_dim = 128,
        .value_dim = 128,
        .grouped_value_heads = true,
        .experts = 512,
        .d_ff_expert = 512,
        .d_ff_shared = 512},
       {2, 4, 8}},
      {"phi3",
       {.vocab = 32064,
        .d_model = 3072,
        .layers = 32,
        .heads = 32,
        .kv_heads = 32,
        .head_dim = 96,
        .n_rot = 96,
        .d_ff = 8192},
       {2, 4, 8}},
      {"phi3",
       {.vocab = 100352,
        .d_model = 5120,
        .layers = 40,
        .heads = 40,
        .kv_heads = 10,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 17920},
       {2}},
      {"glm4",
       {.vocab = 151552,
        .d_model = 4096,
        .layers = 40,
        .heads = 32,
        .kv_heads = 2,
        .head_dim = 128,
        .n_rot = 64,
        .d_ff = 13696},
       {2, 4, 8}},
      {"glm4moe",
       {.vocab = 151552,
        .d_model = 4096,
        .layers = 46,
        .heads = 96,
        .kv_heads = 8,
        .head_dim = 128,
        .n_rot = 64,
        .d_ff = 10944,
        .experts = 128,
        .d_ff_expert = 1408,
        .d_ff_shared = 1408},
       {2, 4, 8}},
      {"gpt-oss",
       {.vocab = 201088,
        .d_model = 2880,
        .layers = 36,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 64,
        .n_rot = 64,
        .experts = 128,
        .d_ff_expert = 2880},
       {2, 4, 8}},
      {"gemma3",
       {.vocab = 262208,
        .d_model = 5376,
        .layers = 62,
        .heads = 32,
        .kv_heads = 16,
        .head_dim = 128,
        .n_rot = 128,
        .d_ff = 21504},
       {2, 4, 8}},
      {"gemma4",
       {.vocab = 262144,
        .d_model = 2816,
        .layers = 30,
        .heads = 16,
        .kv_heads = 8,
        .head_dim = 256,
        .n_rot = 256,
        .d_ff = 2112,
        .experts = 128,
        .d_ff_expert = 704},
       {2, 4, 8}},
      {"gemma4",
       {.vocab = 262144,
        .d_model = 2816,
        .layers = 30,
        .heads = 16,
        .kv_heads = 2,
        .head_dim = 512,
        .n_rot = 512,
        .d_ff = 2112,
        .experts = 128,
        .d_ff_expert = 704},
       {2, 4, 8}},
  };
  return all;
}

// The extents that a tensor of this role has, by what divides it.
Extent divided(const TensorSpec& spec, Division d) {
  return d == Division::kRows ? spec.rows : spec.cols;
}

TEST(Shares, EveryArchitectureHasAShape) {
  for (const Architecture& a : architectures())
    EXPECT_TRUE(std::ranges::any_of(shapes(), [&](const Shape& s) { return s.architecture == a.name; })) << a.name;
}

TEST(Shares, WhichNumbersOfRanksArePossible) {
  for (const Shape& shape : shapes())
    for (const int32_t of : {2, 4, 8}) {
      const Status s = check_shares(shape.sizes, {.rank = 0, .of = of});
      EXPECT_EQ(s.ok(), std::ranges::find(shape.possible, of) != shape.possible.end())
          << shape.architecture << " by " << of << (s.ok() ? "" : ": " + s.error().message);
    }
}

// Every element of a dimension is somebody's, each rank has what its sizes say, and nobody's is another's, but for keys
// and values (and delta nets' keys) that are fewer than the ranks.
TEST(Shares, AddUpToTheWhole) {
  for (const Shape& shape : shapes())
    for (const int32_t of : shape.possible)
      for (const TensorSpec& spec : all_tensor_specs()) {
        const TensorShare& t = tensor_share(spec.role);
        if (t.division != Division::kRows && t.division != Division::kColumns) continue;
        const Extent e = divided(spec, t.division);
        SCOPED_TRACE(testing::Message() << shape.architecture << " " << spec.name << " by " << of);
        std::vector<int> owners(static_cast<size_t>(size_of(e, shape.sizes)));
        for (int32_t rank = 0; rank < of; ++rank) {
          const Shard shard{.rank = rank, .of = of};
          int64_t mine = 0, end = 0;
          for (const ShareRange& r : share_of(e, shape.sizes, shard)) {
            EXPECT_GE(r.begin, end) << "in ascending order";
            ASSERT_LE(r.begin + r.count, std::ssize(owners));
            end = r.begin + r.count, mine += r.count;
            for (int64_t i = r.begin; i < end; ++i) ++owners[static_cast<size_t>(i)];
          }
          EXPECT_EQ(mine, size_of(e, share_sizes(shape.sizes, shard))) << "of rank " << rank;
          EXPECT_EQ(mine > 0, !owners.empty());
        }
        const bool may_be_several =
            shape.sizes.kv_heads < of || (shape.sizes.key_heads > 0 && shape.sizes.key_heads < of);
        for (const int n : owners) ASSERT_TRUE(n == 1 || (may_be_several && n > 1)) << n;
      }
}

// A rank's query heads are of its KV heads, in both orders of value heads likewise.
TEST(Shares, HeadsStayTogether) {
  for (const Shape& shape : shapes())
    for (const int32_t of : shape.possible)
      for (int32_t rank = 0; rank < of; ++rank) {
        const ModelSizes& m = shape.sizes;
        const Shard shard{.rank = rank, .of = of};
        SCOPED_TRACE(testing::Message() << shape.architecture << " " << rank << " of " << of);
        const ModelSizes mine = share_sizes(m, shard);
        const ShareRange q = share_of(Extent::kHeadCount, m, shard)[0], kv = share_of(Extent::kKvHeads, m, shard)[0];
        EXPECT_EQ(mine.heads % mine.kv_heads, 0);
        for (int64_t i = 0; i < q.count; ++i)
          EXPECT_EQ((q.begin + i) / (m.heads / m.kv_heads) - kv.begin / m.head_dim, i / (mine.heads / mine.kv_heads));
        if (m.key_heads == 0) continue;
        const int64_t first_key = share_of(Extent::kConvChannels, m, shard)[0].begin / m.key_dim;
        int64_t i = 0;
        for (const ShareRange& r : share_of(Extent::kDeltaHeads, m, shard))
          for (int64_t v = r.begin; v < r.begin + r.count; ++v, ++i) {
            const int64_t key = m.grouped_value_heads ? v / (m.value_heads / m.key_heads) : v % m.key_heads;
            const int64_t own = m.grouped_value_heads ? i / (mine.value_heads / mine.key_heads) : i % mine.key_heads;
            EXPECT_EQ(key - first_key, own) << "value head " << v;
          }
      }
}

TEST(Shares, ByHand) {
  const ModelSizes m{.vocab = 100,
                     .d_model = 64,
                     .heads = 8,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .gated_query = true,
                     .key_heads = 4,
                     .value_heads = 8,
                     .key_dim = 10,
                     .value_dim = 20,
                     .d_ff = 1024};
  const Shard second{.rank = 1, .of = 2};
  EXPECT_THAT(share_of(Extent::kQueryRows, m, second), ElementsAre(ShareRange{128, 128}));
  EXPECT_THAT(share_of(Extent::kQkvRows, m, second),
              ElementsAre(ShareRange{128, 128}, ShareRange{256 + 16, 16}, ShareRange{288 + 16, 16}));
  EXPECT_THAT(share_of(Extent::kVocab, m, second), ElementsAre(ShareRange{64, 36}));
  EXPECT_THAT(share_of(Extent::kDeltaHeads, m, second), ElementsAre(ShareRange{2, 2}, ShareRange{6, 2}));
  EXPECT_THAT(share_of(Extent::kConvChannels, m, second),
              ElementsAre(ShareRange{20, 20}, ShareRange{60, 20}, ShareRange{120, 40}, ShareRange{200, 40}));
  EXPECT_THAT(share_of(Extent::kTwiceFfn, m, second), ElementsAre(ShareRange{512, 512}, ShareRange{1536, 512}));
  EXPECT_THAT(share_of(Extent::kHidden, m, second), ElementsAre(ShareRange{0, 64}));
  // Blocks of 256 columns: three ranks have two, one and one of the four.
  Shard third{.rank = 1, .of = 3, .grains = {.ffn = 256}};
  EXPECT_THAT(share_of(Extent::kFfn, m, third), ElementsAre(ShareRange{512, 256}));
  // Four ranks: two have the same KV head, each with two of its four query heads.
  const Shard last{.rank = 3, .of = 4};
  EXPECT_THAT(share_of(Extent::kKvHeads, m, last), ElementsAre(ShareRange{16, 16}));
  EXPECT_THAT(share_of(Extent::kHeadCount, m, last), ElementsAre(ShareRange{6, 2}));
}

TEST(Shares, WholeExpertsAreNotDivided) {
  const ModelSizes m{.vocab = 100,
                     .d_model = 64,
                     .heads = 2,
                     .kv_heads = 2,
                     .head_dim = 16,
                     .experts = 10,
                     .d_ff_expert = 96,
                     .d_ff_shared = 96};
  const Shard parts{.rank = 1, .of = 2}, whole{.rank = 1, .of = 2, .whole_experts = true};
  EXPECT_EQ(expert_share(10, parts), (ShareRange{0, 10}));
  EXPECT_EQ(expert_share(10, whole), (ShareRange{5, 5}));
  EXPECT_EQ(share_sizes(m, parts).d_ff_expert, 48);
  EXPECT_EQ(share_sizes(m, whole).d_ff_expert, 96);
  EXPECT_EQ(share_sizes(m, whole).d_ff_shared, 48) << "a shared expert is divided in any case";
  EXPECT_EQ(expert_share(10, {.rank = 3, .of = 4, .whole_experts = true}), (ShareRange{8, 2}));
}

// What is cut along its inputs leaves a partial result, and what is added to that is added once.
TEST(Shares, BiasesOfPartialResultsAreTheFirstRanks) {
  for (const auto& [matrix, bias] :
       {std::pair{kAttnOutput, kAttnOutputBias}, {kFfnDown, kFfnDownBias}, {kExpertsDown, kExpertsDownBias}}) {
    EXPECT_EQ(tensor_share(matrix).division, Division::kColumns);
    EXPECT_EQ(tensor_share(bias).division, Division::kFirst);
  }
}

TEST(Shares, WhatCannotBeSharedIsSaid) {
  ModelSizes m{.vocab = 1000, .d_model = 64, .heads = 12, .kv_heads = 3, .head_dim = 16, .d_ff = 512};
  const auto error = [&](const Shard& s) {
    const Status checked = check_shares(m, s);
    return checked.ok() ? std::string() : checked.error().message;
  };
  EXPECT_EQ(error({.rank = 2, .of = 3}), "");
  EXPECT_EQ(error({.rank = 0, .of = 2}),
            "2 devices cannot share this model: 3 heads of keys and values do not divide (possible: 1, 3, 6)");
  m.kv_heads = 4;
  EXPECT_THAT(
      error({.rank = 0, .of = 4, .grains = {.ffn = 256}}),
      HasSubstr("the 512 inner columns of feed-forwards, cut in blocks of 256, do not suffice (possible: 1, 2)"));
  EXPECT_THAT(error({.rank = 0, .of = 9}), HasSubstr("1 to 8 devices"));
  EXPECT_THAT(error({.rank = 2, .of = 2}), HasSubstr("rank 2 of 2"));
  m.vocab = 30;
  EXPECT_THAT(error({.rank = 0, .of = 4}), HasSubstr("30 tokens do not suffice"));
  m.vocab = 1000, m.experts = 3, m.d_ff_expert = 48;
  EXPECT_THAT(error({.rank = 0, .of = 4}), HasSubstr("the 48 inner columns of experts"));
  EXPECT_THAT(error({.rank = 0, .of = 4, .whole_experts = true}), HasSubstr("3 experts do not suffice"));
  m = {.vocab = 1000, .d_model = 64, .heads = 8, .kv_heads = 8, .head_dim = 16, .key_heads = 4, .value_heads = 12};
  EXPECT_THAT(error({.rank = 0, .of = 8}), HasSubstr("12 value heads of delta nets do not divide"));
  m.value_heads = 16;
  EXPECT_EQ(error({.rank = 0, .of = 8}), "");
  m.grouped_value_heads = true;
  EXPECT_THAT(error({.rank = 0, .of = 8}), HasSubstr("4 key heads of delta nets, each with its value heads"));
}

}  // namespace
}  // namespace quire
