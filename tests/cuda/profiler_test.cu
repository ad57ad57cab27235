// What CUPTI records: kernels one by one, also those of a graph, and copies.
#include <algorithm>

#include "cuda/support.h"
#include "engine/cuda_profiler.h"

namespace quire::cuda_test {
namespace {

__global__ void add_one(int* x) {
  atomicAdd(x, 1);
}

TEST(CudaProfiler, RecordsKernelsOneByOne) {
  auto profiler = CudaProfiler::create("");
  if (!profiler.ok()) GTEST_SKIP() << profiler.error().message;
  DeviceBuffer<int> x(std::vector<int>{0});
  cudaStream_t stream = nullptr;
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 4; ++i) add_one<<<1, 32, 0, stream>>>(x.data());
  CUDA_OK(cudaStreamEndCapture(stream, &captured));
  CUDA_OK(cudaGraphInstantiate(&graph, captured, 0));
  add_one<<<1, 32, 0, stream>>>(x.data());  // before the recording
  CUDA_OK(cudaStreamSynchronize(stream));

  ASSERT_TRUE((*profiler)->start().ok());
  for (int i = 0; i < 3; ++i) add_one<<<2, 64, 0, stream>>>(x.data());
  CUDA_OK(cudaGetLastError());
  for (int i = 0; i < 5; ++i) CUDA_OK(cudaGraphLaunch(graph, stream));
  int result = 0;
  CUDA_OK(cudaMemcpyAsync(&result, x.data(), sizeof result, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  const auto recorded = (*profiler)->stop();
  ASSERT_TRUE(recorded.ok()) << recorded.error().message;
  EXPECT_EQ(result, 32 + 3 * 128 + 5 * 4 * 32);

  ASSERT_EQ(recorded->size(), 3u + 20 + 1);
  for (size_t i = 0; i + 1 < recorded->size(); ++i) {
    const GpuActivity& a = (*recorded)[i];
    EXPECT_EQ(a.kind, GpuActivity::Kind::kKernel);
    EXPECT_NE(a.name.find("add_one(int*)"), std::string::npos) << a.name;
    EXPECT_EQ(a.block[0], i < 3 ? 64 : 32);
    EXPECT_LT(a.begin, a.end);
    EXPECT_LE(a.begin, (*recorded)[i + 1].begin);
  }
  EXPECT_EQ(recorded->back().kind, GpuActivity::Kind::kToHost);
  EXPECT_EQ(recorded->back().bytes, 4);
  CUDA_OK(cudaGraphExecDestroy(graph));
  CUDA_OK(cudaGraphDestroy(captured));
  CUDA_OK(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace quire::cuda_test
