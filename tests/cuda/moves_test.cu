// Moves to and from the host: beside the step before where they may be, behind it where they must.
#include <vector>

#include "cuda/support.h"
#include "engine/cuda_moves.h"
#include "support/cache_bytes.h"

namespace quire::cuda_test {
namespace {

constexpr int32_t kBlocks = 8, kSlots = 2, kPages = 24;

// A step that takes long and writes a value to bytes at its end.
__global__ void slow_write(std::byte* to, int64_t count, unsigned char value, long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = static_cast<std::byte>(value);
}
constexpr long long kLong = 100'000'000;  // cycles: about 60 ms

class CudaMovesTest : public testing::Test {
 protected:
  void SetUp() override {
    shape_ = {.attention = {{.layers = 2, .kv_heads = 2, .head_dim = 64}},
              .delta = {.layers = 2,
                        .conv_taps = 3,
                        .conv_channels = 512,
                        .value_heads = 2,
                        .value_dim = 128,
                        .key_heads = 2,
                        .key_dim = 128}};
    const auto bytes = CacheViews::bytes(shape_, shape_.counts(kBlocks, kSlots));
    ASSERT_TRUE(bytes);
    block_bytes_ = test::unit_bytes(shape_, "kv");
    ASSERT_TRUE(context_.create().ok());
    caches_.emplace(static_cast<size_t>(*bytes));
    views_ = CacheViews(shape_, caches_->data(), shape_.counts(kBlocks, kSlots));
    pages_ = cuda::Memory::create(cuda::Memory::Where::kPinned, kPages * block_bytes_, "pages").value();
    const Status created = moves_.create();
    ASSERT_TRUE(created.ok()) << created.error().message;
    CUDA_OK(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming));
    for (int32_t b = 0; b < kBlocks; ++b) CUDA_OK(cudaMemset(block(b), 10 + b, static_cast<size_t>(block_bytes_)));
    CUDA_OK(cudaDeviceSynchronize());
  }
  void TearDown() override {
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  std::byte* block(int32_t b) const { return views_.units(kKvPool).bytes_at(0) + b * block_bytes_; }
  // A slow step before, which writes the last of one sequence's two blocks (1, 2) and reads the other.
  void enqueue_step_before() {
    slow_write<<<1, 256, 0, context_.stream>>>(block(2), block_bytes_, 99, kLong);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(end_, context_.stream));
    const Segment s{.row = 0, .count = 1, .position = 17, .state_slot = 0};
    const int32_t table[] = {1, 2};
    StepBatch step;
    step.segments = {.data = &s, .count = 1, .decodes = 1, .tables = table, .pitch = 2};
    before_.note(step, kBlocks, kSlots);
  }
  void enqueue(const std::vector<HostMove>& outs, const std::vector<HostMove>& ins) {
    list_.clear();
    add_moves(outs, true, views_, pages_->data(), block_bytes_, before_, list_);
    add_moves(ins, false, views_, pages_->data(), block_bytes_, before_, list_);
    moves_.enqueue(context_, list_, end_);
    ASSERT_TRUE(context_.status.ok()) << context_.status.error().message;
  }
  // What a block holds, if all its bytes are the same; 0 if not. Waits for nothing but its own copy.
  int value_of(int32_t b) const {
    std::vector<unsigned char> host(static_cast<size_t>(block_bytes_));
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaMemcpyAsync(host.data(), block(b), host.size(), cudaMemcpyDeviceToHost, stream), "reading a block");
    must(cudaStreamSynchronize(stream), "reading a block");
    must(cudaStreamDestroy(stream), "stream");
    for (const unsigned char v : host)
      if (v != host[0]) return 0;
    return host[0];
  }

  CacheShape shape_;
  int64_t block_bytes_ = 0;
  cuda::Context context_;
  std::optional<DeviceBuffer<std::byte>> caches_;
  CacheViews views_;
  std::optional<cuda::Memory> pages_;
  std::vector<DeviceMove> list_;
  CudaMoves moves_;
  StepUse before_;
  cudaEvent_t end_ = nullptr;
};

TEST_F(CudaMovesTest, RunBesideAStepThatTheyDoNotConcern) {
  enqueue_step_before();
  // A block that the step only reads leaves, and comes back where the step does nothing.
  enqueue({{.device = 1, .piece = -1, .page = 3}}, {{.device = 5, .piece = -1, .page = 3}});
  const auto begin = std::chrono::steady_clock::now();
  while (value_of(5) != 11 && std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(30)) {
  }
  EXPECT_EQ(value_of(5), 11);
  EXPECT_EQ(cudaEventQuery(end_), cudaErrorNotReady) << "the move waited for the step before";
  CUDA_OK(cudaStreamSynchronize(context_.stream));
}

TEST_F(CudaMovesTest, WaitForAStepThatWritesWhatLeaves) {
  enqueue_step_before();
  enqueue({{.device = 2, .piece = -1, .page = 0}}, {{.device = 6, .piece = -1, .page = 0}});
  CUDA_OK(cudaStreamSynchronize(context_.stream));
  EXPECT_EQ(value_of(6), 99);
}

TEST_F(CudaMovesTest, WaitForAStepThatReadsWhereTheyGo) {
  enqueue_step_before();
  enqueue({{.device = 7, .piece = -1, .page = 0}}, {{.device = 1, .piece = -1, .page = 0}});
  EXPECT_EQ(value_of(1), 11);
  EXPECT_EQ(cudaEventQuery(end_), cudaErrorNotReady) << "the step was too short to show anything";
  CUDA_OK(cudaStreamSynchronize(context_.stream));
  EXPECT_EQ(value_of(1), 17);
}

TEST_F(CudaMovesTest, WhatFollowsInTheStreamWaitsForThem) {
  before_.clear();
  enqueue({{.device = 3, .piece = -1, .page = 1}, {.device = 4, .piece = -1, .page = 2}}, {});
  CUDA_OK(cudaMemsetAsync(block(3), 77, static_cast<size_t>(block_bytes_), context_.stream));
  enqueue({}, {{.device = 0, .piece = -1, .page = 1}});
  CUDA_OK(cudaMemcpyAsync(block(5), block(0), static_cast<size_t>(block_bytes_), cudaMemcpyDeviceToDevice,
                          context_.stream));
  CUDA_OK(cudaStreamSynchronize(context_.stream));
  EXPECT_EQ(value_of(0), 13);
  EXPECT_EQ(value_of(5), 13);
  EXPECT_EQ(value_of(3), 77);
}

TEST_F(CudaMovesTest, TakePiecesOfStates) {
  const int64_t state = test::unit_bytes(shape_, "state");
  std::byte* const slots = views_.states().bytes_at(0);
  CUDA_OK(cudaMemset(slots, 42, static_cast<size_t>(state)));
  CUDA_OK(cudaMemset(slots + state, 0, static_cast<size_t>(state)));
  CUDA_OK(cudaDeviceSynchronize());  // moves are enqueued in streams that do not wait for the default one
  std::vector<HostMove> outs, ins;
  for (int32_t piece = 0; piece * block_bytes_ < state; ++piece) {
    outs.push_back({.device = 0, .piece = piece, .page = piece});
    ins.push_back({.device = 1, .piece = piece, .page = piece});
  }
  ASSERT_GT(outs.size(), 1u);
  ASSERT_LE(outs.size(), size_t{kPages});
  enqueue(outs, ins);
  CUDA_OK(cudaStreamSynchronize(context_.stream));
  std::vector<unsigned char> host(static_cast<size_t>(state));
  CUDA_OK(cudaMemcpy(host.data(), slots + state, host.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::ranges::count(host, 42), state);
}

}  // namespace
}  // namespace quire::cuda_test
