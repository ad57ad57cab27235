// The longest sequence of an engine whose options do not say: what the model was trained for, or what memory allows.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine.h"
#include "model/memory.h"
#include "support/cache_bytes.h"

namespace quire {
namespace {

class DefaultContext : public testing::Test {
 protected:
  void SetUp() override {
    const auto loaded = load_model(std::string(QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf"));
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    config_ = (*loaded)->model->config();
    config_.context_length = INT32_MAX;  // as a file may say
  }
  EnginePlan options(int64_t memory, EngineOptions o = {}) const {
    o.threads = 1;
    Result<EnginePlan> resolved = resolve(std::move(o), config_, {.host = memory});
    EXPECT_TRUE(resolved.ok()) << resolved.error().message;
    return std::move(resolved).value();
  }
  int64_t kv_bytes(const EnginePlan& o) const {
    return test::unit_bytes(cache_shape(config_, activation_type(o.device), o.kv_cache), "kv") * o.kv_blocks();
  }
  ModelConfig config_;
};

TEST_F(DefaultContext, IsWhatMemoryAllows) {
  for (const int64_t memory : {int64_t{1} << 30, int64_t{1} << 33})
    for (const int32_t sequences : {1, 16, 1024}) {
      const EnginePlan o =
          options(memory, {.max_sequences = sequences, .max_batch_tokens = 2048, .prefix_cache = true});
      const int64_t tables = int64_t{o.kv_blocks()} * 4 * sequences,
                    states =
                        test::unit_bytes(o.cache_shape(config_), "state") * (o.max_sequences + o.state_checkpoints);
      EXPECT_LE(kv_bytes(o) + tables + states, memory) << sequences;
      EXPECT_GT(kv_bytes(o) + tables + states, memory / 2) << sequences;
      EXPECT_LE(o.context, o.kv_tokens);
    }
}

// Layers with a window take what few sequences hold; the others the rest.
TEST_F(DefaultContext, IsLongerWithWindows) {
  const int64_t memory = int64_t{1} << 28;
  EngineOptions asked;
  asked.prefix_cache = true;
  std::fill(config_.mixers.begin(), config_.mixers.end(), Mixer::kAttention);
  const EnginePlan without = options(memory, asked);
  config_.attention.window = 256;
  std::fill(config_.mixers.begin() + 1, config_.mixers.end(), Mixer::kWindowAttention);
  const EnginePlan with = options(memory, asked);
  const CachePools pools = with.cache_shape(config_).pools().value();
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_GT(with.context, without.context);
  const PoolCounts units = with.wanted_units(pools);
  EXPECT_LE(pools[0].bytes * units[0] + pools[1].bytes * units[1], memory);
  EXPECT_LT(with.state_checkpoints, 64) << "as many places as memory is left for";
  EXPECT_GE(units[1], 16 * with.window_needs(pools[1]).sequence);
  EXPECT_EQ(options(int64_t{1} << 40, {.context = 8192, .prefix_cache = true}).state_checkpoints, 64);
}

TEST_F(DefaultContext, IsTheTrainedOneWhereThatFits) {
  config_.context_length = 8192;
  EXPECT_EQ(options(int64_t{1} << 33).context, 8192);
  EXPECT_EQ(options(INT64_MAX).context, 8192);
}

TEST_F(DefaultContext, HasAFloor) {
  EXPECT_EQ(options(0).context, 4096);
  config_.context_length = 100;
  EXPECT_EQ(options(0).context, 100);
}

TEST_F(DefaultContext, DoesNotChangeWhatIsAskedFor) {
  EXPECT_EQ(options(0, {.context = 100000}).context, 100000);
  EXPECT_EQ(options(0, {.context = 77}).context, 77);
}

}  // namespace
}  // namespace quire
