// The accounting behind `quire bench` and `quire inspect`, against numbers worked out by hand.
#include "model/cost.h"

#include <gtest/gtest.h>

#include "gguf/writer.h"
#include "model/activations.h"
#include "model/memory.h"
#include "support/cache_bytes.h"
#include "support/tiny_models.h"

namespace quire {
namespace {

using test::TinyModel;

struct Loaded {
  test::TinyModelFile on_disk;
  gguf::File file;
  ModelConfig config;

  explicit Loaded(const TinyModel& m) : on_disk(m), file(gguf::File::open(on_disk.path()).value()) {
    config = read_config(file).value();
  }
};

const TinyModel& model(std::string_view architecture) {
  static const std::vector<TinyModel> all = test::tiny_models();
  for (const TinyModel& m : all)
    if (m.architecture == architecture) return m;
  QUIRE_CHECK(false, "no small model of {}", architecture);
}

TEST(Cost, DenseTransformer) {
  const TinyModel& m = model("qwen3");
  const Loaded l(m);
  const ModelCost cost = model_cost(l.file, l.config, cache_shape(l.config, DType::kBF16));
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  const int64_t layer = m.hidden * (2 * q + 2 * kv) + 3 * m.hidden * m.ffn;
  const int64_t head = m.hidden * m.vocab;
  EXPECT_EQ(cost.always_params, m.layers * layer);
  EXPECT_EQ(cost.head_params, head);
  EXPECT_EQ(cost.always_bytes, 2 * (m.layers * layer + head)) << "bf16; a head of its own or the embedding";
  EXPECT_EQ(cost.embedding_row_bytes, 2 * m.hidden);
  EXPECT_EQ(cost.expert_bytes, 0);
  EXPECT_EQ(cost.state_bytes, 0);
  EXPECT_EQ(cost.kv_token_bytes, m.layers * 2 * 2 * kv);
  EXPECT_EQ(cost.decode_bytes(3, 10), cost.always_bytes + 3 * (cost.embedding_row_bytes + 10 * cost.kv_token_bytes));
  // Two tokens: one sees one key, the other two.
  EXPECT_EQ(cost.prompt_flops(2), 2 * (2.0 * m.layers * layer + head) + 4.0 * m.layers * q * 3);
}

// What plans of memory know of a step's rows, against what a step takes for them before it runs.
TEST(Cost, RowsOfAStep) {
  for (const TinyModel& m : test::tiny_models()) {
    const ModelConfig c = Loaded(m).config;
    Workspace workspace;
    Workspace::Scope scope(workspace);
    ActivationMemory memory(scope, DType::kBF16, 2 * kChunkTokens);
    lay_out(c, memory);
    const int64_t within = activation_row_bytes(c) - workspace.high_water() / (2 * kChunkTokens);
    const bool dense = !c.experts.in_layer(0) || c.experts.beside_dense;
    const int64_t hidden = std::max(m.experts > 0 ? c.experts.token_width() : 0, dense ? c.dense.d_ff : 0);
    EXPECT_EQ(within, std::max(2 * 2 * hidden, 4 * m.layers * m.per_layer)) << m.name;
  }
  const TinyModel& m = model("qwen3");
  const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  EXPECT_EQ(activation_row_bytes(Loaded(m).config), 4 * m.hidden + 2 * (m.hidden + 3 * q + 2 * kv) + 2 * 2 * m.ffn);
}

// Of layers that attend to the same keys and values each reads them; and each has a row of a token.
TEST(Cost, LayersThatShareKeys) {
  for (const TinyModel& m : test::tiny_models()) {
    if (m.name != "tiny-gemma4e") continue;
    const Loaded l(m);
    const CacheShape cache = cache_shape(l.config, DType::kBF16);
    const ModelCost cost = model_cost(l.file, l.config, cache);
    int64_t held = 0, read = 0, pairs = 0, params = m.hidden * m.layers * m.per_layer;
    for (int64_t i = 0; i < m.layers; ++i) {
      const int64_t q = m.heads * m.head_dim_of(i), kv = m.kv_heads_of(i) * m.head_dim_of(i);
      held += m.own_kv(i) ? 2 * 2 * kv : 0;
      read += 2 * 2 * kv;
      pairs += 4 * q;
      params += m.hidden * (2 * q + (m.own_kv(i) ? 2 * kv : 0) + 3 * m.ffn_of(i) + 2 * m.per_layer);
    }
    EXPECT_EQ(test::unit_bytes(cache, "kv"), kBlockTokens * held);
    EXPECT_EQ(cost.kv_token_bytes, read);
    EXPECT_EQ(cost.attention_flops, pairs);
    EXPECT_EQ(cost.always_params, params);
    EXPECT_EQ(cost.embedding_row_bytes, 2 * (m.hidden + m.layers * m.per_layer));
  }
}

TEST(Cost, HybridOfExperts) {
  const TinyModel& m = model("qwen35moe");
  const Loaded l(m);
  const ModelCost cost = model_cost(l.file, l.config, cache_shape(l.config, DType::kBF16));
  EXPECT_EQ(cost.expert_params, m.layers * m.experts * 3 * m.hidden * m.expert_width());
  EXPECT_DOUBLE_EQ(cost.routed_share, static_cast<double>(m.experts_used) / static_cast<double>(m.experts));
  int64_t attention = 0;
  for (int64_t i = 0; i < m.layers; ++i) attention += m.full_attention(i);
  EXPECT_EQ(cost.kv_token_bytes, attention * 2 * 2 * m.kv_heads * m.head_dim);
  const int64_t values = m.v_heads * m.state, recurrent = m.layers - attention;
  EXPECT_EQ(cost.state_bytes, recurrent * 4 * values * m.state);
  EXPECT_EQ(cost.pending_bytes, recurrent * (4 * values + 4 * m.v_heads + 2 * m.k_heads * m.state));
  // S0 is read for every token and written for every 16th; on average half of the pending tokens are there.
  const double state = cost.state_bytes * 17 / 16 + cost.pending_bytes * 8;
  const double one = cost.decode_bytes(1, 0);
  EXPECT_DOUBLE_EQ(one, cost.always_bytes + cost.embedding_row_bytes + state + cost.routed_share * cost.expert_bytes);
  EXPECT_LT(cost.decode_bytes(1000, 0) - 1000 * (cost.embedding_row_bytes + state),
            cost.always_bytes + cost.expert_bytes + 1)
      << "no expert is read twice";
}

TEST(Memory, OfLayersWithAWindowIsBounded) {
  const TinyModel& m = model("gpt-oss");  // a window of 40, every other layer of four
  const Loaded l(m);
  const int64_t layer = 2 * m.kv_heads * m.head_dim * kBlockTokens * 2;
  const MemoryEstimate within = estimate_memory(l.file, l.config, 40, 1, 64).value();
  EXPECT_EQ(within.of("window"), 0) << "nothing is ever given back";
  EXPECT_EQ(within.of("kv"), 3 * 4 * layer);
  const MemoryEstimate long_one = estimate_memory(l.file, l.config, 131072, 1, 64).value();
  EXPECT_EQ(long_one.of("kv"), 131072 / 16 * 2 * layer) << "layers that attend to all";
  EXPECT_EQ(long_one.of("window"), (5 + 64 / 16) * 2 * layer) << "a window and a step";
  const MemoryEstimate many = estimate_memory(l.file, l.config, 131072, 10, 64).value();
  EXPECT_EQ(many.of("window"), (10 * 5 + 64 / 16) * 2 * layer);
  EXPECT_EQ(long_one.total(), long_one.weights + long_one.of("kv") + long_one.of("window") + long_one.activations);
}

TEST(Memory, FollowsContextAndSequences) {
  const TinyModel& m = model("qwen35");
  const Loaded l(m);
  const MemoryEstimate one = estimate_memory(l.file, l.config, 16, 1, 64).value();
  const MemoryEstimate many = estimate_memory(l.file, l.config, 17, 3, 64).value();
  EXPECT_EQ(one.weights, static_cast<int64_t>(l.file.mapped_bytes()));
  EXPECT_EQ(many.of("kv"), 6 * one.of("kv")) << "17 positions take two blocks";
  EXPECT_EQ(many.of("state"), 3 * one.of("state"));
  EXPECT_EQ(many.activations - one.activations, 2 * 4 * m.vocab) << "logits";
  EXPECT_EQ(one.total(), one.weights + one.of("kv") + one.of("state") + one.activations);
  EXPECT_FALSE(estimate_memory(l.file, l.config, INT64_MAX, 1, 64).ok());
  EXPECT_FALSE(estimate_memory(l.file, l.config, 0, 1, 64).ok());
}

}  // namespace
}  // namespace quire
