// Which engines have repacked weights, and of what.
#include "ops/gemm/repack.h"

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "eval/scorer.h"
#include "ops/observer.h"

namespace quire {
namespace {

class RepackedModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto loaded = load_model(std::string(QUIRE_SOURCE_DIR "/models/demo-") + GetParam() + "-nvfp4.gguf");
    ASSERT_TRUE(loaded.ok());
    model_ = *loaded;
  }
  std::unique_ptr<Engine> engine(EngineOptions options) const {
    options.context = 64;
    auto made = Engine::create(model_, std::move(options));
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
  std::shared_ptr<const LoadedModel> model_;
};

struct Recorder final : InputObserver {
  std::vector<Weight> seen;
  void inputs(const OpContext&, std::span<const Weight* const> weights, int64_t, const Tensor&) override {
    for (const Weight* w : weights) seen.push_back(*w);
  }
};

TEST_P(RepackedModel, HasACopyOfEveryBlockMatrixThatIsMultiplied) {
  Recorder recorder;
  auto scorer = Scorer::create(model_, {.window = 64, .observer = &recorder});
  ASSERT_TRUE(scorer.ok());
  const std::vector<TokenId> tokens(40, 1);
  ASSERT_TRUE((*scorer)->extend(tokens).ok());
  ThreadPool pool(1);
  const auto copies = model_->repacked(pool);
  ASSERT_NE(copies, nullptr);
  int blocks = 0;
  for (const Weight& w : recorder.seen) {
    const bool block = dtype_info(w.dtype).block_elems > 1;
    blocks += block;
    EXPECT_EQ(copies->find(w).repacked != nullptr, block) << dtype_name(w.dtype) << " " << w.rows << " x " << w.cols;
  }
  EXPECT_GT(blocks, 4);
}

TEST_P(RepackedModel, IsSharedByEnginesForFewOnly) {
  const int64_t bytes = RepackedWeights::bytes_for(model_->model->matrices());
  EXPECT_GT(bytes, 0);
  {
    const auto one = engine({.max_sequences = 1}), two = engine({.max_sequences = 2});
    EXPECT_EQ(one->memory().repacked, bytes);
    EXPECT_EQ(two->memory().repacked, bytes);
    ThreadPool pool(1);
    EXPECT_EQ(model_->repacked(pool).use_count(), 3) << "the copies of both engines are the same";
  }
  const auto again = engine({.max_sequences = 1});
  EXPECT_EQ(again->memory().repacked, bytes);
  for (const EngineOptions& options :
       {EngineOptions{.max_sequences = kFewSequences + 1}, EngineOptions{.max_sequences = 1, .repack = false},
        EngineOptions{.device = Device::kReference, .max_sequences = 1}}) {
    const auto without = engine(options);
    EXPECT_EQ(without->memory().repacked, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Demo, RepackedModel, testing::Values("dense", "moe"));

}  // namespace
}  // namespace quire
