// Graphs of steps, and what is said of launches that the driver refuses.
#include "engine/cuda_graphs.h"

#include "core/cuda/launch.h"
#include "cuda/support.h"
#include "engine/engine.h"
#include "support/failing_backend.h"
#include "support/tiny_models.h"

namespace quire::cuda_test {
namespace {

__global__ void add_one(int* to) {
  ++*to;
}

class CudaGraphsTest : public testing::Test {
 protected:
  CudaGraphsTest() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~CudaGraphsTest() override { cudaStreamDestroy(stream_); }
  Status launch(int threads, int* to) { return cuda::launch(stream_, "adding one", add_one, dim3(1), threads, 0, to); }
  cudaStream_t stream_ = nullptr;
};

TEST_F(CudaGraphsTest, OneThatFailsLeavesThoseBeforeIt) {
  DeviceBuffer<int> count(std::vector<int>{0});
  const std::vector<GraphSize> sizes = {{8, 16}, {4, 16}, {2, 16}, {1, 16}};
  CudaGraphs graphs;
  const Status done = graphs.capture(stream_, sizes, [&](const GraphSize& s) {
    return launch(s.sequences == 2 ? 4096 : 1, count.data());  // more threads than a block may have
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().message.find("adding one: "), 0u) << done.error().message;
  EXPECT_EQ(graphs.count(), 2);
  EXPECT_EQ(graphs.find({2, 16}), nullptr);
  EXPECT_EQ(graphs.find({1, 16}), nullptr);
  ASSERT_NE(graphs.find({4, 16}), nullptr);
  CUDA_OK(cudaGraphLaunch(graphs.find({4, 16}), stream_));
  EXPECT_TRUE(launch(1, count.data()).ok()) << "the stream is still being captured";
  CUDA_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(count.download()[0], 2);  // captures computed nothing
}

TEST_F(CudaGraphsTest, RehearsingComputesNothing) {
  DeviceBuffer<int> count(std::vector<int>{0});
  const auto kernels = CudaGraphs::rehearse(stream_, [&]() -> Status {
    QUIRE_CHECKED(launch(1, count.data()));
    return launch(1, count.data());
  });
  ASSERT_TRUE(kernels.ok()) << kernels.error().message;
  EXPECT_EQ(*kernels, 2);
  const auto refused = CudaGraphs::rehearse(stream_, [] { return Status(Error{Fault::kBug, "moe: 40 experts"}); });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "moe: 40 experts");
  CUDA_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(count.download()[0], 0);
}

std::shared_ptr<const LoadedModel> tiny(int top_k) {
  for (test::TinyModel m : test::tiny_models()) {
    if (m.name != "tiny-qwen35moe") continue;
    m.head_dim = 64, m.state = 128;
    if (top_k > 0) m.experts = 64, m.experts_used = top_k;
    const test::TinyModelFile file(m);
    auto model = load_model(file.path());
    QUIRE_CHECK(model.ok(), "{}", model.error().message);
    return std::move(model).value();
  }
  fatal(__FILE__, __LINE__, "no such model");
}

TEST(CudaLoad, AModelBeyondTheKernelsIsRefused) {
  const auto refused = Engine::create(tiny(40), {.device = Device::kCuda});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().fault, Fault::kRequest);
  EXPECT_NE(refused.error().message.find("moe: no kernel takes h bf16"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("top 40 of 64 experts"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(Engine::create(tiny(32), {.device = Device::kCuda}).ok());
}

TEST(CudaLoad, NumbersBeyondTheGpusAreRefused) {
  const auto refused = Engine::create(tiny(0), {.device = Device::kCuda, .gpu = 100});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message.find("--gpu 100: there "), 0u) << refused.error().message;
}

// What nobody asked for is chosen, printed, and there.
TEST(CudaLoad, DefaultsHoldWhatTheyPromise) {
  EngineOptions o{.device = Device::kCuda};
  o.prefix_cache = true;
  const auto engine = Engine::create(tiny(0), o);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const EnginePlan& got = (*engine)->plan();
  std::printf("%s\n", (*engine)->capacity().c_str());
  EXPECT_EQ(got.max_sequences, 256);
  EXPECT_EQ(got.max_batch_tokens, 2048);
  (*engine)->step();  // publishes counts
  EXPECT_GE((*engine)->stats().pools[kKvPool].total() * kBlockTokens, got.context * got.max_sequences);
}

// The driver refuses a launch in the middle of a run: those that run hear "internal error", and the engine goes on.
TEST(CudaLoad, AMistakeInALaunchIsNotALostDevice) {
  test::Loss ours{.step = 5, .lasting = false};
  ours.error = []() -> std::optional<Error> {
    const Status s = cuda::launch(nullptr, "adding one", add_one, dim3(1), 4096, 0, nullptr);
    return s.ok() ? std::nullopt : std::optional(s.error());
  };
  const auto model = tiny(0);
  auto engine =
      Engine::create(model, {.device = Device::kCuda, .context = 256, .max_sequences = 2}, test::failing_backend(ours));
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  std::vector<std::string> said(6);
  std::vector<std::vector<TokenId>> tokens(6);
  for (size_t i = 0; i < said.size(); ++i) {
    Request r;
    for (TokenId t = 0; t < 50; ++t) r.prompt.edit().push_back(40 + t % 90);
    r.max_tokens = 20;
    r.ignore_eos = true;
    const auto id = (*engine)->submit(r, [&, i](const TokenEvent& e) {
      if (e.token() >= 0) tokens[i].push_back(e.token());
      if (e.error() != nullptr) said[i] = e.error()->message;
    });
    ASSERT_TRUE(id.ok());
  }
  for (int i = 0; (*engine)->busy() && i < 10000; ++i) (*engine)->step();
  (*engine)->drain_events();
  EXPECT_FALSE((*engine)->lost());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess) << "who launches next would be told of it again";
  EXPECT_EQ(said[0].find("internal error: adding one: "), 0u) << said[0];
  EXPECT_EQ(said[5], "");
  EXPECT_EQ(tokens[5].size(), 20u);
  EXPECT_EQ(tokens[5], tokens[4]);
  EXPECT_TRUE(std::equal(tokens[0].begin(), tokens[0].end(), tokens[5].begin()));
}

}  // namespace
}  // namespace quire::cuda_test
