// What a server without options makes of every published shape on every card: it starts wherever weights and a context
// of 4096 tokens have room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "engine/card_plan.h"
#include "lab/synth_image.h"
#include "ops/attention/parts.h"

namespace quire::test {
namespace {

using cli::load_synth_model;
using cli::SynthPages;
using ::testing::ElementsAre;

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
  constexpr int64_t kRoom = 20 * kGib;  // beside weights
  int started = 0, refused = 0, shorter = 0;
  std::set<std::string> tight;
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
          if (card >= 80 && cap - used < kRoom) {
            tight.insert(m.name);
            EXPECT_GE(o->context, 16384) << told;
          } else if (card >= 80) {
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
  EXPECT_THAT(tight, ElementsAre("122b-a10b", "122b-a10b with MTP", "gpt-oss-120b"));
  EXPECT_EQ(shorter, 2) << "8b-vl with keys in bf16 on 80 GB, with and without drafts";
}

// A DGX Spark: 119.7 GiB for both, of which Linux says that 114 are available where nothing else runs, while CUDA calls
// 40 free because the model's file is in the page cache. Contexts of 32768 tokens.
TEST(PublishedPlans, FitAMemoryThatTheGpuSharesWithTheMachine) {
  constexpr int64_t kTotal = 119 * kGib + kGib * 7 / 10, kAvailable = 114 * kGib;
  const auto plan = [&](const char* preset, const char* ffn_type, int64_t available) -> Result<EnginePlan> {
    const auto model = load_synth_model({.preset = preset, .type = "q8_0", .ffn_type = ffn_type}, SynthPages::kShared);
    if (!model.ok()) return model.error();
    const int64_t weights = (*model)->file.tensor_bytes();
    QUIRE_CHECKED(check_room_for_weights(memory_shared_with_host(kTotal, available, 0), weights));
    EngineOptions asked = serving(Device::kCuda, false, KvCacheType::kAuto);
    asked.context = 32768;
    asked.swap_bytes = asked.prefix_host_bytes = 4 * kGib;
    const EngineMemory has{.gpu = memory_shared_with_host(kTotal, available - weights, weights)};
    QUIRE_TRY(EnginePlan o, resolve(asked, (*model)->model->config(), has));
    QUIRE_TRY(const MemoryShares s, memory_shares(o, (*model)->model->config(), has));
    EXPECT_EQ(o.swap_bytes + o.prefix_host_bytes, 0) << preset << ": there is no second memory";
    EXPECT_LE(has.gpu.used + s.steps + s.states + s.saved_states + s.kv, kTotal - kTotal / 10) << preset;
    EXPECT_EQ(o.max_batch_tokens, 2048) << preset;
    return o;
  };
  for (const auto& [preset, type, least] :
       {std::tuple{"35b-a3b", "nvfp4", 256}, {"122b-a10b", "nvfp4", 32}, {"gpt-oss-120b", "mxfp4", 64}}) {
    const auto o = plan(preset, type, kAvailable);
    ASSERT_TRUE(o.ok()) << preset << ": " << o.error().message;
    EXPECT_EQ(o->context, 32768) << preset;
    EXPECT_GE(o->max_sequences, least) << preset;
    EXPECT_GE(o->kv_tokens, 4 * 32768) << preset;
  }
  const auto refused = plan("122b-a10b", "nvfp4", 70 * kGib);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().fault, Fault::kCapacity);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("stay free for the system")) << refused.error().message;
}

// What stays free is a tenth, 8 GiB of smaller machines, and a quarter of the smallest.
TEST(SharedMemory, KeepsSomeFree) {
  const auto reserve = [](int64_t gib) { return memory_shared_with_host(gib * kGib, gib * kGib, 0).reserve; };
  EXPECT_EQ(reserve(480), 48 * kGib);
  EXPECT_EQ(reserve(64), 8 * kGib);
  EXPECT_EQ(reserve(8), 2 * kGib);
  const GpuMemory m = memory_shared_with_host(100 * kGib, 30 * kGib, 0);
  EXPECT_EQ(m.used, 70 * kGib);
  EXPECT_EQ(m.bound(1.0), 90 * kGib);
  EXPECT_EQ(m.bound(0.5), 50 * kGib);
  EXPECT_EQ(memory_shared_with_host(kGib, INT64_MAX, 0).used, 0) << "where Linux does not say";
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

// How many cards have the memory for a shape, in the types that it is served in.
TEST(PublishedPlans, CountCards) {
  const auto cards = [](const char* preset, const char* ffn_type, int32_t gb) {
    const auto model = load_synth_model({.preset = preset, .type = "q8_0", .ffn_type = ffn_type}, SynthPages::kShared);
    if (!model.ok()) return ADD_FAILURE() << preset << ": " << model.error().message, -1;
    const auto fit = fit_card((*model)->model->config(), layer_bytes((*model)->file, (*model)->model->config(), false),
                              card_bytes(gb), 4096);
    if (!fit.ok()) return ADD_FAILURE() << preset << ": " << fit.error().message, -1;
    EXPECT_EQ(fit->runs(), fit->longest_context > 0) << preset;
    if (fit->runs()) {
      EXPECT_EQ(fit->plan.plan.context, 4096) << preset;
      EXPECT_GE(fit->plan.shares.kv_tokens, 4096) << preset;
      EXPECT_GE(fit->longest_context, 4096) << preset;
    }
    return fit->cards;
  };
  EXPECT_EQ(cards("35b-a3b", "nvfp4", 16), 2);
  EXPECT_EQ(cards("35b-a3b", "nvfp4", 32), 1);
  EXPECT_EQ(cards("gpt-oss-120b", "mxfp4", 48), 2);
  EXPECT_EQ(cards("gpt-oss-120b", "mxfp4", 80), 1);
  EXPECT_EQ(cards("122b-a10b", "nvfp4", 48), 2);
  EXPECT_EQ(cards("122b-a10b", "nvfp4", 96), 1);
  EXPECT_EQ(cards("397b-a17b", "nvfp4", 80), 4);
  EXPECT_EQ(cards("397b-a17b", "nvfp4", 141), 2);
  EXPECT_EQ(cards("397b-a17b", "nvfp4", 180), 2);
  EXPECT_EQ(cards("122b-a10b", "nvfp4", 1), 0);
}

// More memory never takes more cards, and what none could have is an error.
TEST(PublishedPlans, LargerCardsAreFewer) {
  const auto model = load_synth_model({.preset = "122b-a10b", .type = "q8_0"}, SynthPages::kShared);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& c = (*model)->model->config();
  int before = kMostStages + 1;
  for (const int32_t gb : kCommonCards) {
    const auto fit = fit_card(c, layer_bytes((*model)->file, c, false), card_bytes(gb), 131072);
    ASSERT_TRUE(fit.ok()) << fit.error().message;
    EXPECT_LE(fit->cards, before) << gb;
    EXPECT_GT(fit->cards, 0) << gb;
    before = fit->cards;
  }
}

// The parameters that the models are published with, without vision towers and blocks for multi-token prediction.
TEST(PublishedPlans, HaveThePublishedParameters) {
  const std::pair<const char*, double> all[] = {
      {"122b-a10b", 122.1e9}, {"397b-a17b", 396.3e9}, {"gpt-oss-120b", 116.8e9}};
  for (const auto& [preset, parameters] : all) {
    const auto model = load_synth_model({.preset = preset, .type = "nvfp4"}, SynthPages::kShared);
    ASSERT_TRUE(model.ok()) << model.error().message;
    double sum = 0;
    for (const auto& t : (*model)->file.tensors())
      if (!t.name.ends_with(".scale")) sum += static_cast<double>(t.elems());
    EXPECT_NEAR(sum, parameters, 0.002 * parameters) << preset;
  }
}

}  // namespace
}  // namespace quire::test
