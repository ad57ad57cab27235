// A model's layers on several devices, one behind the other (--pipeline-parallel-size): the bits of one device,
// whatever the split, and steps of different sequences at the same time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/constraints.h"
#include "engine/cpu_device.h"
#include "engine/engine_rig.h"
#include "engine/images_rig.h"
#include "engine/layer_split.h"
#include "support/failing_backend.h"
#include "support/protected_backend.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

// Few blocks, few rows: prompts in chunks, sequences that make room for others on the host, prefixes that are found.
EngineOptions crowded(int stages, int depth = 0) {
  EngineOptions o{.pipeline_parallel = stages, .threads = 2, .context = 400, .max_sequences = 5};
  o.max_batch_tokens = 128;
  o.kv_tokens = 512;
  o.depth = depth;
  o.swap_bytes = int64_t{1} << 22;
  o.prefix_cache = true;
  o.state_checkpoints = 3;
  o.prefix_host_bytes = int64_t{1} << 22;
  return o;
}

std::vector<Arrival> script_of(uint64_t seed, int count) {
  std::mt19937_64 rng(seed);
  const auto number = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  std::vector<Arrival> s;
  int64_t step = 0;
  for (int i = 0; i < count; ++i) {
    Request r = request_of(tokens(number(1, 40), i), number(1, number(0, 2) == 0 ? 150 : 20));
    const std::vector<TokenId> shared = tokens(number(0, 3) * 60, 1);
    r.prompt.edit().insert(r.prompt.edit().begin(), shared.begin(), shared.end());
    r.sampling.seed = static_cast<uint64_t>(i);
    r.sampling.logprobs = 2;
    if (number(0, 1) == 0) r.sampling.temperature = 1.0f;
    if (number(0, 3) == 0) r.sampling.repetition_penalty = 1.3f;
    if (number(0, 4) == 0) r.prompt_logprobs = 1;
    if (number(0, 6) == 0) r.embed = true, r.max_tokens = 0;
    step += number(0, 4);
    s.push_back({std::move(r), step});
  }
  return s;
}

void expect_same(const std::vector<Heard>& want, const std::vector<Heard>& got) {
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i << " " << want[i].message() << got[i].message());
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].logprobs, want[i].logprobs);
    EXPECT_EQ(got[i].tops, want[i].tops);
    EXPECT_EQ(got[i].prompt.logprobs, want[i].prompt.logprobs);
    EXPECT_EQ(got[i].embedding, want[i].embedding);
    EXPECT_EQ(got[i].finish, want[i].finish);
    EXPECT_EQ(got[i].ends, 1);
  }
}

std::vector<std::string> all_models() {
  std::vector<std::string> names;
  for (const TinyModel& m : tiny_models()) names.push_back(m.name);
  return names;
}

class Stages : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Tiny, Stages, testing::ValuesIn(all_models()), [](const auto& of) {
  std::string name = of.param;
  std::erase(name, '-');
  return name;
});

TEST_P(Stages, GiveTheBitsOfOneDevice) {
  const ModelPtr model = tiny(GetParam());
  const std::vector<Arrival> script = script_of(3, kSlow ? 12 : 30);
  EngineOptions alone = crowded(1, 1);
  alone.kv_tokens = 2048;
  alone.prefix_cache = false;
  alone.swap_bytes = alone.prefix_host_bytes = 0;
  const auto one = make_engine(model, alone);
  const std::vector<Heard> want = play(*one, script);
  int tried = 0;
  for (int stages = 2; stages <= std::min(3, model->model->config().layers); ++stages)
    for (const int depth : {1, 2}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, depth " << depth);
      Result<std::unique_ptr<Engine>> made = Engine::create(model, crowded(stages, depth));
      if (!made.ok()) {
        EXPECT_THAT(made.error().message, HasSubstr("cannot be cut"));
        continue;
      }
      ++tried;
      expect_same(want, play(**made, script));
      EXPECT_EQ((*made)->fingerprint(), one->fingerprint());
      if (HasFailure()) return;
    }
  EXPECT_GT(tried, 0);
}

// Masks are of the last stage, and wait for tokens of steps that are not always the one before.
TEST(Stages, FormsAreHeldTo) {
  if (!has_grammars()) GTEST_SKIP() << "compiled without grammars";
  const ModelPtr model = tiny("tiny-llama");
  std::vector<Arrival> script = script_of(8, 20);
  const auto form = constraint_of(model, {GrammarKind::kRegex, "[a-z0-9]{3,40}"});
  for (size_t i = 0; i < script.size(); i += 2)
    if (Request& r = script[i].request; !r.embed) r.constraint = form;
  EngineOptions alone = crowded(1, 1);
  const auto one = make_engine(model, alone);
  const std::vector<Heard> want = play(*one, script);
  for (const int depth : {1, 2}) {
    const auto two = make_engine(model, crowded(2, depth));
    expect_same(want, play(*two, script));
  }
}

// What leaves for the host and comes back is where other things were taken from, on every stage.
TEST(Stages, MakeRoomOnTheHost) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    const auto engine = make_engine(tiny(name), crowded(2));
    play(*engine, script_of(3, 30));
    EXPECT_GT(engine->stats().preemptions, 0) << name;
    EXPECT_GT(engine->stats().host_bytes_loaded, 0) << name;
    EXPECT_GT(engine->stats().prefix_hits, 0) << name;
  }
}

// The proof that a stage's memory is touched by nobody but the stage.
TEST(Stages, NobodyElseTouchesTheirMemory) {
  const ModelPtr model = tiny("tiny-qwen35moe");
  const std::vector<Arrival> script = script_of(5, 20);
  const auto plain = make_engine(model, crowded(1));
  const auto guarded = make_engine(model, crowded(2), make_protected_backend);
  expect_same(play(*plain, script), play(*guarded, script));
}

// A file of prefixes has units of the whole model: whoever wrote it, any split reads it.
TEST(Stages, FilesOfPrefixesAreThoseOfOneDevice) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama", "tiny-gptoss"}) {
    const ModelPtr model = tiny(name);
    const std::string path = testing::TempDir() + "stages-prefixes-" + name;
    for (const auto& [writes, reads] : {std::pair{1, 2}, std::pair{2, 1}, std::pair{2, 2}}) {
      SCOPED_TRACE(testing::Message() << name << ", " << writes << " to " << reads);
      EngineOptions o = crowded(writes);
      o.kv_tokens = 400;  // what was used first is on the host
      std::vector<Heard> want;
      {
        const auto engine = make_engine(model, o);
        for (int i = 0; i < 4; ++i) want.push_back(hear_one(*engine, request_of(tokens(200, i), 8)));
        const PrefixFileContent kept = engine->save_prefixes(path, int64_t{1} << 30).value();
        EXPECT_GE(kept.chunks, 12);
      }
      o = crowded(reads);
      o.kv_tokens = 400;
      const auto engine = make_engine(model, o);
      EXPECT_GE(engine->load_prefixes(path).value().chunks, 12);
      for (int i = 0; i < 4; ++i) {
        const Heard again = hear_one(*engine, request_of(tokens(200, i), 8));
        EXPECT_EQ(again.tokens, want[static_cast<size_t>(i)].tokens);
        EXPECT_EQ(again.logprobs, want[static_cast<size_t>(i)].logprobs);
        EXPECT_GE(again.cached, 128);
      }
      std::remove(path.c_str());
    }
  }
}

TEST(Stages, PicturesGoThroughThem) {
  for (const ImageKind kind : {ImageKind::kHybrid, ImageKind::kDeepstack, ImageKind::kBothWays}) {
    SCOPED_TRACE(image_kind_name(kind));
    const ModelPtr model = image_model(Device::kCpu, kind);
    std::vector<Arrival> script;
    for (int i = 0; i < 4; ++i)
      script.push_back({with_images({text(20 + i), picture(i), text(30), picture(i + 1), text(5)}, 10, i, kind), i});
    const auto one = make_engine(model, six_sequences());
    EngineOptions o = six_sequences();
    o.pipeline_parallel = 2;
    Result<std::unique_ptr<Engine>> two = Engine::create(model, o);
    ASSERT_TRUE(two.ok()) << two.error().message;
    expect_same(play(*one, script), play(**two, script));
  }
}

// ---- The split

LayerBytes bytes_of(std::vector<int64_t> layers, int64_t before = 0, int64_t behind = 0) {
  return {std::move(layers), before, behind};
}
std::vector<int32_t> firsts(const ModelConfig& c, const LayerBytes& b, const std::vector<double>& shares) {
  std::vector<int32_t> all;
  const std::vector<LayerRange> ranges = split_layers(c, b, 0, shares).value();
  for (const LayerRange& r : ranges) all.push_back(r.first);
  return all;
}

TEST(LayerSplit, IsByBytesAndShares) {
  ModelConfig c;
  c.layers = 8;
  c.mixers = Mixers(8, Mixer::kAttention);
  const std::vector<int64_t> even(8, 100);
  EXPECT_EQ(firsts(c, bytes_of(even), {1, 1}), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(firsts(c, bytes_of(even), {3, 1}), (std::vector<int32_t>{0, 6}));
  EXPECT_EQ(firsts(c, bytes_of(even), {1, 1, 2}), (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(firsts(c, bytes_of(even, 400, 0), {1, 1}), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(firsts(c, bytes_of(even, 0, 400), {1, 1}), (std::vector<int32_t>{0, 6}));
  EXPECT_EQ(firsts(c, bytes_of(even), {1, 1000}), (std::vector<int32_t>{0, 1})) << "every device has a layer";
}

TEST(LayerSplit, LayersThatShareKeysStayTogether) {
  ModelConfig c;
  c.layers = 8;
  c.mixers = Mixers(8, Mixer::kAttention);
  c.attention.shared_kv_layers = 4;  // the last four attend to layer 3
  EXPECT_EQ(firsts(c, bytes_of(std::vector<int64_t>(8, 100)), {3, 1}), (std::vector<int32_t>{0, 3}));
  EXPECT_FALSE(may_begin_with(c, 4, 0));
  EXPECT_TRUE(may_begin_with(c, 3, 0));
  EXPECT_FALSE(may_begin_with(c, 2, 3)) << "pictures are added to the first three";
  const auto five = split_layers(c, bytes_of(std::vector<int64_t>(8, 100)), 0, std::vector<double>(5, 1.0));
  ASSERT_FALSE(five.ok());
  EXPECT_THAT(five.error().message, HasSubstr("cannot be cut into as many"));
}

TEST(Stages, WhatCannotBeIsRefused) {
  const ModelPtr model = tiny("tiny-llama");
  const auto message = [&](auto change) {
    EngineOptions o = crowded(2);
    change(o);
    const auto made = Engine::create(model, o);
    return made.ok() ? std::string("it is made") : made.error().message;
  };
  EXPECT_THAT(message([](EngineOptions& o) { o.pipeline_parallel = 0; }), HasSubstr("between 1 and 8"));
  EXPECT_THAT(message([](EngineOptions& o) { o.pipeline_parallel = 8; }),
              HasSubstr("layers, and each stage needs one"));
  EXPECT_THAT(message([](EngineOptions& o) { o.tensor_split = {1, 2, 3}; }), HasSubstr("a split of 3 numbers"));
  EXPECT_THAT(message([](EngineOptions& o) { o.tensor_split = {1, 0}; }), HasSubstr("must be above 0"));
  EXPECT_THAT(message([](EngineOptions& o) { o.probe = [](auto...) {}; }), HasSubstr("intermediates"));
}

// A device that is lost takes the engine along.
TEST(Stages, OneThatIsLostLosesTheEngine) {
  const auto engine = make_engine(tiny("tiny-llama"), crowded(2), failing_backend({.step = 3}));
  std::vector<Arrival> script = script_of(3, 8);
  for (Arrival& a : script) a.arrives = 0;
  const std::vector<Heard> heard = play(*engine, script);
  EXPECT_TRUE(engine->lost().has_value());
  for (const Heard& h : heard) EXPECT_EQ(h.ends, 1);
}

// ---- Overlap

// How many devices computed at the same time, at most.
struct Busy {
  std::atomic<int> now = 0, most = 0;
};
class CountedDevice final : public CpuDevice {
 public:
  CountedDevice(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan, std::shared_ptr<Busy> busy)
      : CpuDevice(model, plan), busy_(std::move(busy)) {}
  void run(const StepShape& shape, const StepShape& padded, StepPart part) override {
    // Work of the queue, before and behind the pass.
    call(begin_);
    CpuDevice::run(shape, padded, part);
    call(end_);
  }

 private:
  std::shared_ptr<Busy> busy_;
  Call begin_ = [this](const OpContext&) {
    const int now = ++busy_->now;
    if (now > busy_->most) busy_->most = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  };
  Call end_ = [this](const OpContext&) { --busy_->now; };
};

int most_at_once(int sequences) {
  const auto busy = std::make_shared<Busy>();
  const auto make = [&](const std::shared_ptr<const LoadedModel>& m,
                        const EnginePlan& plan) -> Result<std::unique_ptr<ComputeDevice>> {
    return std::unique_ptr<ComputeDevice>(std::make_unique<CountedDevice>(m, plan, busy));
  };
  const auto engine = make_engine(tiny("tiny-llama"), crowded(2), backend_over(make));
  std::vector<Arrival> script;
  for (int i = 0; i < sequences; ++i) script.push_back({request_of(tokens(5, i), 12), 0});
  play(*engine, script);
  return busy->most;
}

TEST(Stages, StepsOfDifferentSequencesOverlap) {
  EXPECT_EQ(most_at_once(1), 1) << "each token needs the one before";
  EXPECT_EQ(most_at_once(2), 2);
}

}  // namespace
}  // namespace quire::test
