// Kernels whose blocks wait for each other: alone, one after the other, in graphs, and two grids that come together.
#include "core/cuda/cooperative.h"

#include <gmock/gmock.h>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/grid_barrier.cuh"
#include "cuda/support.h"

namespace quire::cuda_test {
namespace {

constexpr int kThreads = 128;

// Each block adds what its neighbour wrote before the barrier.
__global__ void pass_on(cuda::GridBarrier* barrier, int* written, int* sums) {
  cuda::begin_kernel();
  if (threadIdx.x == 0) written[blockIdx.x] += static_cast<int>(blockIdx.x) + 1;
  cuda::wait_for_grid(barrier);
  if (threadIdx.x == 0) sums[blockIdx.x] += written[(blockIdx.x + 1) % gridDim.x];
}

int multiprocessors() {
  return std::move(cuda::device_limits()).value().multiprocessors;
}

struct Chain {
  int blocks = multiprocessors();
  // So much that a multiprocessor holds one block alone.
  int64_t shared = std::move(cuda::device_limits()).value().shared_bytes - 1024;
  DeviceBuffer<cuda::GridBarrier> barrier{std::vector<cuda::GridBarrier>{0}};
  DeviceBuffer<int> written{std::vector<int>(static_cast<size_t>(blocks), 0)};
  DeviceBuffer<int> sums{std::vector<int>(static_cast<size_t>(blocks), 0)};
  cudaStream_t stream = nullptr;

  Chain() { must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"); }
  ~Chain() { cudaStreamDestroy(stream); }
  void enqueue(int count) {
    for (int i = 0; i < count; ++i) {
      const Status s = cuda::launch_cooperative(stream, "passing on", pass_on, dim3(static_cast<unsigned>(blocks)),
                                                kThreads, shared, barrier.data(), written.data(), sums.data());
      ASSERT_TRUE(s.ok()) << s.error().message;
    }
  }
  void expect_passed_on(int count) const {
    const std::vector<int> got = sums.download();
    for (int b = 0; b < blocks; ++b)
      EXPECT_EQ(got[static_cast<size_t>(b)], count * (count + 1) / 2 * ((b + 1) % blocks + 1)) << b;
  }
};

cudaGraphExec_t graph_of(Chain& chain, int count) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  cuda::cooperative_may_be_dependent();  // finds out by launches of its own, which would spoil a capture
  must(cudaStreamBeginCapture(chain.stream, cudaStreamCaptureModeThreadLocal), "capture");
  chain.enqueue(count);
  must(cudaStreamEndCapture(chain.stream, &graph), "capture");
  must(cudaGraphInstantiate(&made, graph, 0), "instantiate");
  cudaGraphDestroy(graph);
  return made;
}

// With the attribute and without.
class Allowed {
 public:
  explicit Allowed(bool allowed) { cuda::allow_cooperative(allowed); }
  ~Allowed() { cuda::allow_cooperative(true); }
};

TEST(CudaCooperative, BlocksWaitForEachOther) {
  std::printf("cooperative kernels may start early: %s\n", cuda::cooperative_may_be_dependent() ? "yes" : "no");
  for (const bool allowed : {true, false}) {
    const Allowed now(allowed);
    Chain chain;
    chain.enqueue(40);
    CUDA_OK(cudaStreamSynchronize(chain.stream));
    chain.expect_passed_on(40);
    const cudaGraphExec_t graph = graph_of(chain, 40);
    CUDA_OK(cudaGraphLaunch(graph, chain.stream));
    CUDA_OK(cudaStreamSynchronize(chain.stream));
    chain.expect_passed_on(80);
    cudaGraphExecDestroy(graph);
  }
}

// Without the attribute each of the two could hold half of the device and wait for the other half.
TEST(CudaCooperative, TwoGridsThatComeTogetherBothEnd) {
  const bool dependent = std::move(cuda::device_limits()).value().dependent_launch;
  if (dependent && !cuda::cooperative_may_be_dependent()) GTEST_SKIP() << "launched without the attribute here";
  Chain a, b;
  for (int i = 0; i < 50; ++i) {
    a.enqueue(4);
    b.enqueue(4);
  }
  CUDA_OK(cudaDeviceSynchronize());
  a.expect_passed_on(200);
  b.expect_passed_on(200);
}

TEST(CudaCooperative, MoreBlocksThanFindRoomAreRefused) {
  Chain chain;
  const int blocks = 33 * chain.blocks;  // no multiprocessor takes more than 32, however little shared memory each has
  const Status s =
      cuda::launch_cooperative(chain.stream, "passing on", pass_on, dim3(static_cast<unsigned>(blocks)), kThreads,
                               chain.shared, chain.barrier.data(), chain.written.data(), chain.sums.data());
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.error().message,
              testing::StartsWith(fmt::format("passing on: {} blocks that wait for each other, and ", blocks)));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// What the attribute costs in a chain of kernels of which each waits for the one before, as in a step of few sequences.
TEST(CudaCooperativeBench, ChainsInGraphs) {
  constexpr int kCount = 200;
  for (const int64_t shared : {int64_t{0}, int64_t{160} << 10})
    for (const bool allowed : {false, true, false, true}) {
      const Allowed now(allowed);
      Chain chain;
      chain.shared = shared;
      const cudaGraphExec_t graph = graph_of(chain, kCount);
      cudaEvent_t begin, end;
      CUDA_OK(cudaEventCreate(&begin));
      CUDA_OK(cudaEventCreate(&end));
      std::vector<float> times;
      for (int i = 0; i < 23; ++i) {
        CUDA_OK(cudaEventRecord(begin, chain.stream));
        CUDA_OK(cudaGraphLaunch(graph, chain.stream));
        CUDA_OK(cudaEventRecord(end, chain.stream));
        CUDA_OK(cudaEventSynchronize(end));
        float ms = 0;
        CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 2) times.push_back(ms);
      }
      std::sort(times.begin(), times.end());
      std::printf("%s, %lld KiB of shared memory: %.2f us a kernel\n", allowed ? "cooperative" : "plain",
                  static_cast<long long>(shared >> 10), times[times.size() / 2] * 1e3f / kCount);
      cudaGraphExecDestroy(graph);
      cudaEventDestroy(begin);
      cudaEventDestroy(end);
    }
}

}  // namespace
}  // namespace quire::cuda_test
