// Scratch memory is reserved once, for the largest steps: no step that an engine can plan takes more.
#include <gtest/gtest.h>

#include <random>

#include "engine/cpu_device.h"
#include "engine/engine_rig.h"
#include "engine/step_backend.h"
#include "support/image_model.h"

namespace quire::test {
namespace {

// A step as an engine could plan it: generated tokens first, then chunks of prompts.
int64_t scratch_of_random_step(StepBackend& b, int64_t context, std::mt19937_64& rng) {
  const auto pick = [&](int64_t lo, int64_t hi) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(lo, hi)(rng));
  };
  const StepCapacity& c = b.layout().capacity();
  const int32_t decodes = pick(0, c.segments), prompts = pick(decodes == 0 ? 1 : 0, c.segments - decodes);
  StepShape s{.decode_rows = decodes, .segments = decodes + prompts, .decodes = decodes, .table_width = c.table_width};
  std::vector<Segment> segments;
  const auto add = [&](int32_t count, int32_t position) {
    segments.push_back({.row = s.rows, .count = count, .position = position, .state_slot = 0, .anchor = position});
    s.rows += count;
    s.longest = std::max(s.longest, position + count);
  };
  for (int32_t i = 0; i < decodes; ++i) add(1, pick(0, context - 1));
  const bool equal = pick(0, 1) == 1;
  for (int32_t i = 0; i < prompts; ++i) {
    const auto most = static_cast<int32_t>(std::min<int64_t>(c.rows - s.rows - (prompts - 1 - i), context));
    const int32_t count = equal ? std::min(most, (c.rows - decodes) / prompts) : pick(1, pick(1, most));
    add(count, static_cast<int32_t>((context - count) / kChunkTokens * pick(0, 1) * kChunkTokens));
  }
  s.logit_rows = pick(decodes, s.segments);
  s.decode_logit_rows = decodes;
  return b.scratch_of(s, segments).value();
}

TEST(CpuScratch, NoStepTakesMoreThanTheLargest) {
  std::mt19937_64 rng(20261123);
  for (const std::string name : {"tiny-qwen3", "tiny-qwen3moe", "tiny-qwen35", "tiny-qwen35moe"}) {
    const ModelPtr model = tiny(name);
    for (const KvCacheType kv : {KvCacheType::kAuto, KvCacheType::kFp8})
      for (const auto [threads, sequences, rows] : {std::array{1, 40, 300}, {5, 3, 64}, {16, 40, 2048}, {2, 1, 512}}) {
        EngineOptions o{.threads = threads, .context = 512, .max_sequences = sequences, .max_batch_tokens = rows};
        o.kv_cache = kv;
        o.arithmetic = threads == 2 ? Arithmetic::kLatency : Arithmetic::kThroughput;
        const EnginePlan plan = resolve(o, model->model->config()).value();
        const auto backend = StepBackend::create(model, plan, std::make_unique<CpuDevice>(model, plan)).value();
        for (int i = 0; i < 60; ++i)
          ASSERT_LE(scratch_of_random_step(*backend, plan.context, rng), backend->largest_scratch())
              << name << ", " << threads << " threads, " << sequences << " sequences, step " << i;
      }
  }
}

// Long ones, small ones, many of them: whatever the tower takes at a time.
TEST(CpuScratch, NoPicturesTakeMoreThanTheLargest) {
  std::mt19937_64 rng(20261128);
  const ModelPtr model = image_model_of(kUsualMaxImagePixels);
  const VisionTower& tower = *model->vision->tower;
  const VisionConfig& c = tower.config();
  const EngineOptions o{.threads = 2, .context = 256, .max_sequences = 1, .max_batch_tokens = 64};
  const EnginePlan plan = resolve(o, model->model->config(), {.encoder = encoder_room(*model->vision)}).value();
  const auto backend = StepBackend::create(model, plan, std::make_unique<CpuDevice>(model, plan)).value();
  ThreadPool pool(o.threads);
  const auto pick = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  for (int i = 0; i < 300; ++i) {
    std::vector<ImageGrid> grids;
    const int64_t count = i % 3 == 0 ? static_cast<int64_t>(EncoderBatch::kMostPictures) : pick(1, 3);
    int64_t left = plan.encoder.patches / (c.merge * c.merge);  // tokens
    for (int64_t k = 0; k < count; ++k) {
      const int64_t most = k + 1 == count ? left : std::max<int64_t>(1, left / (count - k));
      const int64_t rows = pick(0, 1) == 0 ? 1 : pick(1, std::min<int64_t>(most, 64)), columns = most / rows;
      grids.push_back({1, c.merge * rows, c.merge * columns});
      if (pick(0, 1) == 1) std::swap(grids.back().rows, grids.back().columns);
      left -= rows * columns;
    }
    const VisionBatch batch = VisionBatch::make(c, grids).value();
    const int64_t stream = batch.patches() * c.width * 4;  // which a backend has apart
    const int64_t needed = tower.scratch_bytes({.device = Device::kCpu}, pool, batch, DType::kI8) - stream;
    EXPECT_LE(needed, backend->largest_scratch() + 256)
        << grids.size() << " pictures, the first one of " << grids[0].rows << " x " << grids[0].columns;
  }
}

}  // namespace
}  // namespace quire::test
