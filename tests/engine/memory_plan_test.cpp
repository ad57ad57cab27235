// How memory is shared out: cards from 8 to 141 GB, machines and containers, dense and hybrid models, what was asked
// for and what was not.
#include "engine/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/graph_sizes.h"
#include "engine/pool_units.h"
#include "model/memory.h"
#include "ops/attention/parts.h"

namespace quire {
namespace {

using testing::HasSubstr;

constexpr int64_t kGib = int64_t{1} << 30;

ModelConfig hybrid_moe() {  // 35B-A3B
  ModelConfig c{.architecture = "qwen35moe", .name = "35B-A3B", .layers = 40};
  c.d_model = 2048, c.vocab = 248320, c.context_length = 262144;
  c.attention.heads = 16, c.attention.kv_heads = 2, c.attention.head_dim = 256;
  c.experts.count = 256, c.experts.top_k = 8, c.experts.d_ff = 512, c.experts.d_ff_shared = 512;
  c.delta = {.conv_kernel = 4, .key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128};
  for (int i = 0; i < c.layers; ++i) c.mixers.push_back(i % 4 != 3 ? Mixer::kDelta : Mixer::kAttention);
  return c;
}
ModelConfig hybrid_dense() {  // 27B
  ModelConfig c = hybrid_moe();
  c.name = "27B", c.architecture = "qwen35", c.layers = 64, c.d_model = 5120, c.attention.heads = 24,
  c.attention.kv_heads = 4;
  c.experts = {}, c.dense.d_ff = 17408, c.delta.value_heads = 48;
  c.mixers.clear();
  for (int i = 0; i < c.layers; ++i) c.mixers.push_back(i % 4 != 3 ? Mixer::kDelta : Mixer::kAttention);
  return c;
}
ModelConfig dense_8b() {
  ModelConfig c{.architecture = "qwen3", .name = "8B", .layers = 36, .d_model = 4096, .vocab = 151936};
  c.context_length = 40960, c.attention.heads = 32, c.attention.kv_heads = 8, c.attention.head_dim = 128,
  c.dense.d_ff = 12288;
  c.mixers.assign(36, Mixer::kAttention);
  return c;
}
ModelConfig dense_06b() {
  ModelConfig c = dense_8b();
  c.name = "0.6B", c.layers = 28, c.d_model = 1024, c.attention.heads = 16, c.dense.d_ff = 3072;
  c.mixers.assign(28, Mixer::kAttention);
  return c;
}
ModelConfig tiny_dense() {
  ModelConfig c{.architecture = "qwen3", .name = "tiny", .layers = 4, .d_model = 256, .vocab = 4096};
  c.context_length = 2048, c.attention.heads = 4, c.attention.kv_heads = 2, c.attention.head_dim = 64,
  c.dense.d_ff = 768;
  c.mixers.assign(4, Mixer::kAttention);
  return c;
}

struct Card {
  const char* name;
  double gib;
};
constexpr Card kCards[] = {{"8 GB", 7.6}, {"12 GB", 11.6}, {"24 GB", 23.5}, {"80 GB", 79.1}, {"141 GB", 139.7}};

GpuMemory memory(double gib, double weights_gib) {
  const auto bytes = [](double g) { return static_cast<int64_t>(g * kGib); };
  return {.total = bytes(gib), .used = bytes(weights_gib + 0.5), .weights = bytes(weights_gib)};
}
Result<EnginePlan> plan(EngineOptions o, const ModelConfig& c, const GpuMemory& m) {
  return plan_memory(EnginePlan{std::move(o)}, c, {.gpu = m});
}
EngineOptions serving() {
  EngineOptions o{.device = Device::kCuda};
  o.prefix_cache = true;
  return o;
}

// What is planned fits, whatever the card: places, a context, and something for every sequence.
void expect_sane(const EnginePlan& o, const ModelConfig& c, const GpuMemory& m) {
  const StepCost cost = std::move(step_cost(o, c)).value();
  const auto cap = static_cast<int64_t>(static_cast<double>(m.total) * o.gpu_memory_utilization);
  const int64_t fixed = m.used + cost.steps(o) + o.max_sequences * cost.state();
  const int64_t context = (o.context + kBlockTokens - 1) / kBlockTokens * cost.kv_block();
  EXPECT_LE(fixed + context, cap);
  EXPECT_GE(o.decode_parts, attention_parts(o.context));
  EXPECT_GE(o.max_batch_tokens, o.max_sequences);
  EXPECT_GE(o.kv_tokens, o.context);
  EXPECT_TRUE(o.kv_is_bound);
  if (o.max_sequences > 1) {
    EXPECT_GE((cap - fixed) / cost.kv_block() * kBlockTokens, o.max_sequences * 512);
  }
}

TEST(Plan, StepsHaveRoomForAPictureThatIsComputedWhole) {
  const EncoderRoom room{.patches = 4096, .tokens = 1024, .whole = 256};
  // So little memory that steps would be of 64 tokens.
  const EngineMemory little{.host = kGib / 16, .encoder = room};
  const EngineOptions open{.device = Device::kCpu, .context = 64, .max_sequences = 1};
  EXPECT_EQ(resolve(open, dense_8b(), {.host = little.host})->max_batch_tokens, 64);
  EXPECT_EQ(resolve(open, dense_8b(), little)->max_batch_tokens, 256);
  const auto few = resolve({.max_batch_tokens = 128}, tiny_dense(), {.encoder = room});
  ASSERT_FALSE(few.ok());
  EXPECT_EQ(few.error().message,
            "128 batch tokens: must be at least 256, because one step computes all tokens of a picture");
  EXPECT_TRUE(resolve({.max_batch_tokens = 256}, tiny_dense(), {.encoder = room}).ok());
}

TEST(GpuPlan, DefaultsOfCardsAndModels) {
  struct Case {
    ModelConfig model;
    double weights;         // GiB
    const char* wanted[5];  // of each card: "sequences of context, steps" or why not
  };
  const auto told = [](const Result<EnginePlan>& r) {
    if (!r.ok()) return std::string("no");
    return fmt::format("{} of {}, {}", r->max_sequences, r->context, r->max_batch_tokens);
  };
  const Case cases[] = {
      {hybrid_moe(), 21.4, {"no", "no", "no", "256 of 262144, 2048", "256 of 262144, 2048"}},
      {hybrid_dense(), 27.2, {"no", "no", "no", "120 of 262144, 2048", "256 of 262144, 2048"}},
      {dense_8b(),
       4.9,
       {"12 of 4096, 1024", "56 of 16016, 2048", "192 of 40960, 2048", "256 of 40960, 2048", "256 of 40960, 2048"}},
      {dense_8b(), 15.3, {"no", "no", "60 of 17152, 2048", "256 of 40960, 2048", "256 of 40960, 2048"}},
      {dense_06b(),
       1.2,
       {"72 of 21872, 2048", "128 of 38736, 2048", "256 of 40960, 2048", "256 of 40960, 2048", "256 of 40960, 2048"}},
      {tiny_dense(),
       0.01,
       {"256 of 2048, 2048", "256 of 2048, 2048", "256 of 2048, 2048", "256 of 2048, 2048", "256 of 2048, 2048"}},
  };
  for (const Case& c : cases)
    for (size_t i = 0; i < std::size(kCards); ++i) {
      SCOPED_TRACE(fmt::format("{} of {} GiB on {}", c.model.name, c.weights, kCards[i].name));
      const GpuMemory m = memory(kCards[i].gib, c.weights);
      const auto planned = plan(serving(), c.model, m);
      EXPECT_EQ(told(planned), c.wanted[i]);
      if (planned.ok()) expect_sane(*planned, c.model, m);
    }
}

TEST(GpuPlan, KeepsWhatIsAskedFor) {
  EngineOptions o = serving();
  o.context = 5000, o.max_sequences = 7, o.max_batch_tokens = 100, o.kv_tokens = 50000;
  const EnginePlan got = plan(o, hybrid_moe(), memory(79.1, 21.4)).value();
  EXPECT_EQ(got.context, 5000);
  EXPECT_EQ(got.max_sequences, 7);
  EXPECT_EQ(got.max_batch_tokens, 100);
  EXPECT_EQ(got.kv_tokens, 50000);
  EXPECT_FALSE(got.kv_is_bound);
}

TEST(GpuPlan, WhatIsLeftOpenFollowsWhatIsAskedFor) {
  EngineOptions o = serving();
  o.max_sequences = 1000;
  EXPECT_EQ(plan(o, dense_8b(), memory(79.1, 15.3)).value().max_batch_tokens, 2048);
  o.max_sequences = 3000;
  EXPECT_EQ(plan(o, dense_06b(), memory(139.7, 1.2)).value().max_batch_tokens, 3000);
  o = serving();
  o.max_batch_tokens = 100;
  EXPECT_EQ(plan(o, dense_8b(), memory(79.1, 15.3)).value().max_sequences, 100);
  o = serving();
  o.kv_tokens = 4096;
  EXPECT_EQ(plan(o, dense_8b(), memory(79.1, 15.3)).value().context, 4096);
  // Less of the card, less of everything.
  o = serving();
  o.gpu_memory_utilization = 0.4;
  const EnginePlan less = plan(o, hybrid_moe(), memory(79.1, 21.4)).value();
  EXPECT_LT(less.max_sequences, 256);
  EXPECT_LT(less.context, 262144);
}

TEST(GpuPlan, SaysWithNumbersWhatDoesNotFit) {
  const auto message = [](const EngineOptions& o, const ModelConfig& c, const GpuMemory& m) {
    const auto r = plan(o, c, m);
    EXPECT_TRUE(r.ok() || r.error().fault == Fault::kCapacity);
    return r.ok() ? "(accepted)" : r.error().message;
  };
  EngineOptions o = serving();
  o.kv_tokens = 10'000'000;
  const std::string pool = message(o, dense_8b(), memory(23.5, 15.3));
  EXPECT_THAT(pool,
              HasSubstr("8B does not fit the GPU: of 23.5 GiB, 90% may be used, 15.8 GiB are in use (weights 15.3), "
                        "and one sequence beside a KV cache of 10000000 tokens needs 137"));
  EXPECT_THAT(pool, testing::MatchesRegex(".*at most 3[0-9]+ tokens fit.; use a smaller --kv-tokens.*"));
  o = serving();
  o.context = 40960;
  EXPECT_THAT(message(o, dense_8b(), memory(18.5, 15.3)), HasSubstr("use a shorter --context"));
  EXPECT_THAT(message(serving(), dense_8b(), memory(11.6, 15.3)), HasSubstr("where nothing is left; use"));
}

// More sequences or rows than there is room for become fewer: others wait. What is measured counts, not the estimate.
TEST(GpuPlan, TakesWhatFits) {
  EngineOptions o = serving();
  o.max_sequences = 1024, o.max_batch_tokens = 2048;
  const EnginePlan fewer = plan(o, hybrid_moe(), memory(79.1, 21.4)).value();
  EXPECT_LT(fewer.max_sequences, 700);
  EXPECT_GT(fewer.max_sequences, 400);
  const StepCost cost = step_cost(EnginePlan{serving()}, hybrid_moe()).value();
  for (const int64_t more : {2, 5, 20}) {
    EngineMemory has{.gpu = memory(79.1, 21.4)};
    int asked = 0;
    has.step_bytes = [&](const EnginePlan& e) -> Result<int64_t> { return ++asked, more * cost.steps(e); };
    const EnginePlan got = plan_memory(EnginePlan{serving()}, hybrid_moe(), has).value();
    EXPECT_LE(more * cost.steps(got) + has.gpu.used + got.max_sequences * cost.state(), 0.9 * 79.1 * kGib);
    EXPECT_LE(asked, 60);
    if (more == 2) {
      EXPECT_EQ(got.context, 262144) << "sequences go first";
    }
  }
  EngineMemory none{.gpu = memory(79.1, 21.4),
                    .step_bytes = [](const EnginePlan&) -> Result<int64_t> { return 60 * kGib; }};
  EXPECT_FALSE(plan_memory(EnginePlan{serving()}, hybrid_moe(), none).ok());
}

// Partial results of attention do not grow with sequences times context: a full pool's keys have room, and more.
TEST(GpuPlan, DraftsCostLittle) {
  for (const ModelConfig& model : {hybrid_moe(), hybrid_dense(), dense_8b()}) {
    const double weights = model.experts.count > 0 ? 21.4 : 17.6;
    int64_t left[2] = {};
    for (const bool drafts : {false, true}) {
      EngineOptions o = serving();
      o.depth = 2;
      if (drafts) o.speculative.mode = Speculative::kLookup;
      const GpuMemory m = memory(79.1, weights);
      const EnginePlan got = plan(o, model, m).value();
      expect_sane(got, model, m);
      const StepCost cost = step_cost(got, model).value();
      left[drafts] =
          static_cast<int64_t>(0.9 * 79.1 * kGib) - m.used - cost.steps(got) - got.max_sequences * cost.state();
      EXPECT_EQ(got.context, model.context_length);
      EXPECT_GE(got.max_sequences, 112) << model.name;
      const int64_t pool = left[drafts] / cost.kv_block() * kBlockTokens;
      EXPECT_GE(got.decode_parts, attention_parts(pool) + got.max_sequences) << "everybody of a full pool";
    }
    EXPECT_GE(static_cast<double>(left[1]), 0.95 * static_cast<double>(left[0])) << model.name;
  }
}

TEST(CpuPlan, LeavesRoomWhereThereIsLittle) {
  const auto taken = [](const EnginePlan& o, const ModelConfig& c) {
    const StepCost cost = step_cost(o, c).value();
    return cost.steps(o) + (o.max_sequences + (o.prefix_cache ? o.state_checkpoints : 0)) * cost.state() +
           o.kv_blocks() * cost.kv_block();
  };
  EngineOptions asked;
  asked.prefix_cache = true;
  for (const ModelConfig& model : {hybrid_dense(), hybrid_moe(), dense_8b(), tiny_dense()})
    for (const double gib : {3.0, 4.0, 6.0, 8.0, 16.0, 48.0, 500.0}) {
      const auto host = static_cast<int64_t>(gib * kGib);
      const EnginePlan o = resolve(asked, model, {.host = host}).value();
      EXPECT_LE(taken(o, model), host - host / 16) << model.name << " in " << gib;
      EXPECT_GE(o.context, std::min<int64_t>(model.context_length, 4096));
      EXPECT_GE(o.kv_tokens, o.context);
      if (gib >= 48) {
        EXPECT_EQ(o.max_sequences, 16);
        EXPECT_EQ(o.kv_tokens, std::max<int64_t>(o.context, std::min<int64_t>(65536, 16 * o.context)));
        EXPECT_EQ(o.state_checkpoints, 64);
      }
    }
  // A small model in a container of 100 MiB, of which its file and the program have half.
  ModelConfig small = tiny_dense();
  small.context_length = 32768;
  const EnginePlan o = resolve(asked, small, {.host = 50 << 20}).value();
  EXPECT_LE(taken(o, small), 50 << 20);
  EXPECT_GE(o.context, 4096);
  // What the host's memory is asked for besides is not planned twice.
  asked.prefix_host_bytes = 4 * kGib;
  const EnginePlan less = resolve(asked, dense_8b(), {.host = 8 * kGib}).value();
  EXPECT_LT(less.prefix_host_bytes, 2 * kGib);
  EXPECT_LE(taken(less, dense_8b()) + less.prefix_host_bytes, 7 * kGib);
}

// The longest context first, then as many sequences as that leaves room for, but for those that it is planned beside.
TEST(CpuPlan, DefaultsOfMachinesAndModels) {
  const double kMachines[] = {2, 4, 8, 16, 32, 64};
  struct Case {
    ModelConfig model;
    const char* wanted[6];  // beside the weights: "sequences of context, steps in tokens of the pool, saved states"
  };
  const auto told = [](const EnginePlan& o) {
    return fmt::format("{} of {}, {} in {}, {}", o.max_sequences, o.context, o.max_batch_tokens, o.kv_tokens,
                       o.state_checkpoints);
  };
  const Case cases[] = {
      {hybrid_moe(),
       {"8 of 55680, 512 in 55680, 0", "16 of 117024, 512 in 117024, 0", "16 of 262144, 512 in 262144, 10",
        "16 of 262144, 512 in 262144, 64", "16 of 262144, 512 in 262144, 64", "16 of 262144, 512 in 262144, 64"}},
      {hybrid_dense(),
       {"4 of 15248, 512 in 15248, 0", "8 of 32928, 512 in 32928, 0", "16 of 68288, 512 in 68288, 0",
        "16 of 182944, 512 in 182944, 0", "16 of 262144, 512 in 262144, 55", "16 of 262144, 512 in 262144, 64"}},
      {dense_8b(),
       {"16 of 11952, 512 in 11952, 64", "16 of 24688, 512 in 24688, 64", "16 of 40960, 512 in 50176, 64",
        "16 of 40960, 512 in 65536, 64", "16 of 40960, 512 in 65536, 64", "16 of 40960, 512 in 65536, 64"}},
  };
  EngineOptions asked;
  asked.prefix_cache = true;
  for (const Case& c : cases)
    for (size_t i = 0; i < std::size(kMachines); ++i) {
      const auto host = static_cast<int64_t>(kMachines[i] * kGib);
      EXPECT_EQ(told(resolve(asked, c.model, {.host = host}).value()), c.wanted[i])
          << c.model.name << " in " << kMachines[i];
    }
}

TEST(CpuPlan, WhatIsLeftOpenFollowsWhatIsAskedFor) {
  EngineOptions asked;
  asked.prefix_cache = true;
  // A short context leaves room for more sequences; a pool bounds the context.
  asked.context = 4096;
  const EnginePlan shorter = resolve(asked, hybrid_moe(), {.host = kGib}).value();
  asked.context = 0;
  const EnginePlan longest = resolve(asked, hybrid_moe(), {.host = kGib}).value();
  EXPECT_GT(longest.context, 4096);
  EXPECT_GT(shorter.max_sequences, longest.max_sequences);
  asked.kv_tokens = 5008;
  EXPECT_EQ(resolve(asked, dense_8b(), {.host = 64 * kGib}).value().context, 5008);
  // What is asked for is taken as it is, but for sequences whose states have no room.
  asked.kv_tokens = 0, asked.context = 100000, asked.state_checkpoints = 77, asked.max_sequences = 1000;
  const EnginePlan got = resolve(asked, hybrid_moe(), {.host = 2 * kGib}).value();
  EXPECT_EQ(got.context, 100000);
  EXPECT_EQ(got.state_checkpoints, 77);
  EXPECT_GE(got.max_sequences, 4);
  EXPECT_LT(got.max_sequences, 100);
}

TEST(GpuPlan, ResolveLeavesNothingOpen) {
  const EnginePlan gpu = resolve(serving(), hybrid_moe(), {.gpu = memory(79.1, 21.4)}).value();
  EXPECT_EQ(gpu.state_checkpoints, 4 * gpu.max_sequences);
  EXPECT_EQ(gpu.depth, 2);
  EngineOptions on_cpu;
  on_cpu.prefix_cache = true;
  const EnginePlan cpu = resolve(on_cpu, dense_8b(), {.host = 64 * kGib}).value();
  EXPECT_EQ(cpu.max_sequences, 16);
  EXPECT_EQ(cpu.max_batch_tokens, 512);
  EXPECT_EQ(cpu.kv_tokens, 65536);
  EXPECT_FALSE(cpu.kv_is_bound);
  EXPECT_EQ(resolve({.max_sequences = 1000}, dense_8b(), {.host = 64 * kGib}).value().max_batch_tokens, 1000);
}

ModelConfig gpt_oss_20b() {
  ModelConfig c{.architecture = "gpt-oss", .name = "20b", .layers = 24, .d_model = 2880, .vocab = 201088};
  c.context_length = 131072, c.attention.heads = 64, c.attention.kv_heads = 8, c.attention.head_dim = 64;
  c.attention.window = 128;
  c.experts.count = 32, c.experts.top_k = 4, c.experts.d_ff = 2880;
  for (int i = 0; i < c.layers; ++i) c.mixers.push_back(i % 2 == 0 ? Mixer::kWindowAttention : Mixer::kAttention);
  return c;
}

// Half of its layers hold a window of each sequence, the others the whole context.
TEST(GpuPlan, WindowsLeaveRoomForLongerContexts) {
  ModelConfig all = gpt_oss_20b();
  all.attention.window = 0;
  std::fill(all.mixers.begin(), all.mixers.end(), Mixer::kAttention);
  for (const double gib : {23.5, 79.1}) {
    EngineOptions o = serving();
    o.depth = 2;
    const GpuMemory m = memory(gib, 12.8);
    const EnginePlan got = plan(o, gpt_oss_20b(), m).value(), before = plan(o, all, m).value();
    expect_sane(got, gpt_oss_20b(), m);
    EXPECT_GE(got.context, before.context);
    EXPECT_GE(got.max_sequences, before.max_sequences);
    const CachePoolSpec windows = step_cost(got, gpt_oss_20b()).value().pools.at(1);
    const WindowNeeds n = got.window_needs(windows);
    EXPECT_EQ(n.sequence, 10);
    EXPECT_EQ(n.steps, 2 * got.max_batch_tokens / 16);
    EXPECT_EQ(n.place, 8);
    EXPECT_EQ(windows.bytes, 16 * 12 * 2 * 8 * 64 * 2);
  }
}

TEST(GpuPlan, WindowBlocksAreForThoseWhoRunAndThenForTheCache) {
  const WindowNeeds n{.sequence = 10, .steps = 256, .place = 8};
  EXPECT_EQ(window_pool(n, 256, 1024, 100000, 1, 1000), 10 * 256 + 256 + 8 * 1024);
  EXPECT_EQ(window_pool(n, 256, 0, 100000, 1, 1000), 10 * 256 + 256);
  EXPECT_EQ(window_pool(n, 256, 1024, 8000, 1, 1000), 2816 + 2000) << "a quarter for the cache";
  EXPECT_EQ(window_pool(n, 256, 1024, 4000, 1, 1000), 2000 + 999) << "half for those who run, and the rest stays";
  EXPECT_EQ(window_pool(n, 256, 1024, 400, 1, 100), 266 + 33) << "one sequence can always run";
  EXPECT_EQ(window_pool(n, 256, 1024, 300, 1, 100), 0) << "or nothing fits";
  EXPECT_EQ(window_pool({}, 256, 1024, 4000, 1, 100), 0);
}

// States first, then windows, each as their sequences need, and the rest for all else.
TEST(GpuPlan, UnitsShareWhatIsLeft) {
  EnginePlan plan;
  plan.context = 4096, plan.max_sequences = 8, plan.max_batch_tokens = 64, plan.depth = 1, plan.kv_tokens = 1 << 20;
  plan.prefix_cache = true, plan.state_checkpoints = 32, plan.kv_is_bound = true;
  const CachePools pools = {{.name = "kv", .bytes = 1000},
                            {.name = "window_128", .bytes = 500, .window = 128},
                            {.name = "window_1024", .bytes = 500, .window = 1024},
                            {.name = "state", .unit = CachePoolSpec::Unit::kSequence, .bytes = 10000}};
  const WindowNeeds shorter = plan.window_needs(pools[1]), longer = plan.window_needs(pools[2]);
  EXPECT_EQ(shorter.sequence, 10);
  EXPECT_EQ(longer.sequence, 66);
  EXPECT_EQ(plan.window_needs(pools[0]).least() + plan.window_needs(pools[3]).least(), 0);
  for (const int64_t bytes : {700'000, 1'000'000, 3'000'000, 100'000'000}) {
    SCOPED_TRACE(bytes);
    const UnitsWithin u = units_within(plan, pools, bytes);
    ASSERT_TRUE(u.fits);
    ASSERT_EQ(u.counts.size(), 4u);
    EXPECT_GE(u.counts[0], 256) << "one context";
    EXPECT_GE(u.counts[1], shorter.least());
    EXPECT_GE(u.counts[2], longer.least());
    EXPECT_GE(u.counts[3], 8);
    int64_t taken = 1000 * int64_t{u.counts[0]} + 10000 * int64_t{u.counts[3]};
    for (const size_t w : {1, 2}) taken += 500 * (int64_t{u.counts[w]} + 1);
    EXPECT_LE(taken, bytes);
    if (bytes == 100'000'000) {
      EXPECT_EQ(u.counts[1], 8 * shorter.sequence + shorter.steps + 32 * shorter.place);
      EXPECT_EQ(u.counts[2], 8 * longer.sequence + longer.steps + 32 * longer.place);
      EXPECT_EQ(u.counts[3], 8 + 32);
      EXPECT_EQ(u.counts[0], 65536) << "as many as kv_tokens";
    }
  }
  const UnitsWithin none = units_within(plan, pools, 300'000);
  EXPECT_FALSE(none.fits);
  EXPECT_EQ(none.least_tokens, 4096);
  EXPECT_EQ(none.least_bytes, 256 * 1000 + 500 * (shorter.least() + longer.least()));
  // Windows that hold the whole context need nothing.
  plan.context = 1024;
  EXPECT_EQ(plan.window_needs(pools[2]).least(), 0);
}

TEST(GpuPlan, SavedStatesTakeAQuarterAndLeaveAContext) {
  EXPECT_EQ(saved_states(1024, 40 * kGib, kGib / 16, 5 * kGib), 160);
  EXPECT_EQ(saved_states(100, 40 * kGib, kGib / 16, 5 * kGib), 100);
  EXPECT_EQ(saved_states(1024, 6 * kGib, kGib / 16, 5 * kGib), 16);
  EXPECT_EQ(saved_states(1024, 4 * kGib, kGib / 16, 5 * kGib), 0);
  EXPECT_EQ(saved_states(1024, 40 * kGib, 0, kGib), 0);
}

// Every step that is replayed finds its graph, and none is padded by more than the rule says.
TEST(GraphSizes, HoldWhateverAStepIsRoundedTo) {
  for (const StepCapacity& c : {StepCapacity{.rows = 2048, .segments = 256, .table_width = 16384},
                                StepCapacity{.rows = 512, .segments = 100, .table_width = 77},
                                StepCapacity{.rows = 64, .segments = 1, .table_width = 3},
                                StepCapacity{.rows = 4096, .segments = 4096, .table_width = 16}}) {
    const std::vector<GraphSize> sizes = graph_sizes(c);
    EXPECT_EQ(sizes.front(), (GraphSize{std::min(c.rows, c.segments), c.table_width}));
    EXPECT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
    EXPECT_EQ(std::adjacent_find(sizes.begin(), sizes.end()), sizes.end());
    EXPECT_LE(sizes.size(), 700u);
    for (int32_t rows = 1; rows <= c.segments; ++rows)
      for (const int32_t blocks : {1, 2, 16, 17, 60, c.table_width / 2 + 1, c.table_width}) {
        if (blocks > c.table_width) continue;
        const GraphSize size{graph_rows(rows, c), table_width(blocks, c)};
        EXPECT_TRUE(std::binary_search(sizes.rbegin(), sizes.rend(), size)) << rows << " rows, " << blocks;
        EXPECT_GE(size.sequences, rows);
        EXPECT_GE(size.width, blocks);
        EXPECT_LE(size.sequences, rows + std::max(3, rows / 8));
      }
  }
}

}  // namespace
}  // namespace quire
