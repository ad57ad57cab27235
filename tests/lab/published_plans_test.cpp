// What a server without options makes of every published shape on every card: it starts wherever weights and a context
// of 4096 tokens have room.
#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "lab/synth_image.h"
#include "ops/attention/parts.h"

namespace quire::test {
namespace {

using cli::load_synth_model;
using cli::SynthPages;

constexpr int64_t kGib = int64_t{1} << 30;

struct Published {
  std::string name;
  ModelConfig config;
  int64_t weights = 0;
  bool mtp = false;
};

// The shapes as they are, in the types that they are served in.
std::vector<Published> published() {
  std::vector<Published> all;
  for (const cli::SynthShape& shape : cli::synth_shapes())
    for (const bool mtp : {false, true}) {
      cli::SynthOptions o{.preset = std::string(shape.name), .type = "q8_0", .ffn_type = "nvfp4", .mtp = mtp};
      if (mtp && !shape.hybrid()) continue;
      const auto model = load_synth_model(o, SynthPages::kShared);
      EXPECT_TRUE(model.ok()) << shape.name << ": " << model.error().message;
      if (!model.ok()) continue;
      all.push_back({.name = fmt::format("{}{}", shape.name, mtp ? " with MTP" : ""),
                     .config = (*model)->model->config(),
                     .weights = static_cast<int64_t>((*model)->file.tensor_bytes()),
                     .mtp = mtp});
    }
  return all;
}

EngineOptions serving(Device device, bool drafts, KvCacheType kv) {
  EngineOptions o{.device = device, .kv_cache = kv, .depth = device == Device::kCuda ? 2 : 1};
  o.prefix_cache = true;
  o.speculative.mode = drafts ? Speculative::kAuto : Speculative::kOff;
  return o;
}

// Bytes of the smallest engine: one sequence of 4096 tokens in steps of 64.
int64_t least(const EngineOptions& asked, bool drafts, const Published& m) {
  EnginePlan o{asked};
  o.mtp = drafts && m.mtp;
  o.context = std::min<int64_t>(4096, m.config.context_length), o.max_sequences = 1, o.max_batch_tokens = kChunkTokens;
  o.decode_parts = attention_parts(o.context);
  const StepCost cost = step_cost(o, m.config).value();
  const int64_t blocks = (o.context + kBlockTokens - 1) / kBlockTokens;
  int64_t bytes = cost.steps(o) + cost.state() + blocks * cost.kv_block();
  for (const CachePoolSpec& pool : cost.pools)
    if (pool.is_window()) bytes += (o.window_needs(pool).least() + 1) * pool.bytes;
  return bytes;
}

TEST(PublishedPlans, StartOnEveryCardWithRoom) {
  int started = 0, refused = 0, shorter = 0;
  for (const Published& m : published())
    for (const int64_t card : {16, 24, 32, 48, 80, 96, 141, 192})
      for (const bool drafts : {false, true})
        for (const KvCacheType kv : {KvCacheType::kAuto, KvCacheType::kFp8}) {
          const int64_t total = card * kGib * 98 / 100, used = m.weights + kGib / 2;
          const EngineOptions asked = serving(Device::kCuda, drafts, kv);
          const EngineMemory has{.gpu = {.total = total, .used = used, .weights = m.weights}};
          const auto o = resolve(asked, m.config, has, drafts && m.mtp);
          const std::string told =
              fmt::format("{} on {} GB, drafts {}, fp8 {}", m.name, card, drafts, kv == KvCacheType::kFp8);
          const auto cap = static_cast<int64_t>(static_cast<double>(total) * asked.gpu_memory_utilization);
          if (used + least(asked, drafts, m) > cap) {
            refused += !o.ok();
            continue;  // it may start all the same: with a shorter context
          }
          ASSERT_TRUE(o.ok()) << told << ": " << o.error().message;
          ++started;
          const MemoryShares s = memory_shares(*o, m.config, has).value();
          EXPECT_LE(used + s.steps + s.states + s.saved_states + s.kv, cap) << told;
          EXPECT_GE(o->context, std::min<int64_t>(4096, m.config.context_length)) << told;
          EXPECT_GE(s.kv_tokens, o->context) << told;
          EXPECT_GE(o->decode_parts, attention_parts(o->context)) << told;
          if (card >= 80) {
            // All of it, where that leaves as much again for others.
            const int64_t whole = m.config.context_length / kBlockTokens * step_cost(*o, m.config).value().kv_block();
            const bool fits = used + s.steps + 2 * whole <= cap;
            shorter += fits ? 0 : 1;
            EXPECT_GE(o->context, 131072) << told;
            EXPECT_TRUE(!fits || o->context == m.config.context_length) << told << ": " << o->context;
            EXPECT_GE(o->max_sequences, 64) << told;
            EXPECT_EQ(o->max_batch_tokens, 2048) << told;
          }
        }
  EXPECT_GT(started, 200);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(shorter, 2) << "8b-vl with keys in bf16 on 80 GB, with and without drafts";
}

// The same of machines without a GPU: caches and steps stay within what the weights leave.
TEST(PublishedPlans, StayWithinAMachine) {
  for (const Published& m : published())
    for (const int64_t machine : {8, 16, 24, 32, 64, 128, 512}) {
      const int64_t left = machine * kGib - m.weights;
      const EngineOptions asked = serving(Device::kCpu, true, KvCacheType::kAuto);
      if (left < 2 * least(asked, true, m)) continue;
      const auto o = resolve(asked, m.config, {.host = left}, m.mtp);
      const std::string told = fmt::format("{} in {} GiB", m.name, machine);
      ASSERT_TRUE(o.ok()) << told << ": " << o.error().message;
      const MemoryShares s = memory_shares(*o, m.config, {.host = left}).value();
      const StepCost cost = step_cost(*o, m.config).value();
      const PoolCounts units = o->wanted_units(cost.pools);
      int64_t windows = 0;
      for (size_t i = 0; i < units.size(); ++i)
        if (cost.pools[i].is_window()) windows += units[i] * cost.pools[i].bytes;
      EXPECT_LE(s.steps + s.states + s.saved_states + s.kv + windows, left) << told;
      EXPECT_GE(o->context, std::min<int64_t>(4096, m.config.context_length)) << told;
    }
}

}  // namespace
}  // namespace quire::test
