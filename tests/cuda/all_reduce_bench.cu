// all_reduce of two GPUs, in graphs, in microseconds per call, beside a floor: what a kernel takes whose ranks only
// meet, and what the peer's bytes take at the rate that this run reads them with.
#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <thread>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "cuda/support.h"
#include "ops/all_reduce/cuda/all_reduce.h"
#include "ops/all_reduce/cuda/peers.h"

namespace quire::cuda_test {
namespace {

constexpr int64_t kPiece = int64_t{8192} * 5120 * 4;  // of exchange memory: the largest partial result
constexpr int kCalls = 100;                           // in a graph; ranks alternate between two pieces

__global__ void nothing() {
  cuda::begin_kernel();
}

__global__ void __launch_bounds__(512) read_all(const float4* from, int64_t n, float* to) {
  float sum = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const float4 v = __ldcv(from + i);
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum == 1234.5f) *to = sum;
}

// One GPU: memory of the largest case.
struct Gpu {
  Gpu(cuda::PeerLink& l, int on) : link(l), device(on) {
    must(cudaSetDevice(device), "device");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t* e : {&begin, &end}) must(cudaEventCreate(e), "event");
    constexpr size_t kMost = size_t{8192} * 5120;
    must(cudaMalloc(&x, kMost * 4), "x");
    must(cudaMalloc(&h, kMost * 2), "h");
    must(cudaMalloc(&weight, 5120 * 4), "weight");
    for (void* p : {static_cast<void*>(x), h, static_cast<void*>(weight)})
      must(cudaMemset(p, 0, p == weight ? 5120 * 4 : kMost * 2), "zeros");
    must(cudaMemset(x, 0, kMost * 4), "zeros");
    must(cudaDeviceSynchronize(), "zeros");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  cuda::AllReduceParams params(int64_t rows, int64_t width, bool half, bool normed, int call) const {
    cuda::AllReduceParams p{.rows = rows,
                            .D = width,
                            .count = 2,
                            .partial_bf16 = half,
                            .partial_stride = width,
                            .x = x,
                            .x_stride = width,
                            .weight = normed ? weight : nullptr,
                            .h = normed ? h : nullptr,
                            .h_stride = width,
                            .meeting = link.meeting()};
    const RankLink::Places places = link.meet(link.memory().data() + call % 2 * kPiece);
    for (size_t r = 0; r < 2; ++r) p.partials[r] = places[r];
    return p;
  }
  // enqueue(call) kCalls times, as a graph.
  cudaGraphExec_t capture(const std::function<Status(int)>& enqueue) const {
    must(cudaSetDevice(device), "device");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < kCalls; ++i)
      if (const Status s = enqueue(i); !s.ok()) QUIRE_CHECK(false, "{}", s.error().message);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t made = nullptr;
    must(cudaStreamEndCapture(stream, &graph), "end of capture");
    must(cudaGraphInstantiate(&made, graph, 0), "graph");
    cudaGraphDestroy(graph);
    return made;
  }
  // Of one of two graphs in a row: in the first the ranks come together.
  double microseconds(cudaGraphExec_t graph) const {
    float ms = 0;
    must(cudaGraphLaunch(graph, stream), "launch");
    must(cudaEventRecord(begin, stream), "record");
    must(cudaGraphLaunch(graph, stream), "launch");
    must(cudaEventRecord(end, stream), "record");
    must(cudaStreamSynchronize(stream), "synchronize");
    must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    return static_cast<double>(ms) * 1e3 / kCalls;
  }

  cuda::PeerLink& link;
  int device;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  float *x = nullptr, *weight = nullptr;
  void* h = nullptr;
};

struct Pair {
  explicit Pair(std::array<int, 2> devices) {
    auto made = cuda::Peers::create(devices, 2 * kPiece);
    QUIRE_CHECK(made.ok(), "{}", made.error().message);
    peers = std::move(made).value();
    for (int32_t r = 0; r < 2; ++r)
      gpus.push_back(std::make_unique<Gpu>(peers->link(r), devices[static_cast<size_t>(r)]));
  }
  // The median of what the slower of the two takes for a call, over launches of both at once.
  double both(const std::function<Status(const Gpu&, int call)>& enqueue) {
    constexpr int kLaunches = 15;
    std::vector<double> times[2];
    std::barrier together(2);
    std::vector<std::thread> threads;
    for (auto& gpu : gpus)
      threads.emplace_back([&] {
        const cudaGraphExec_t graph = gpu->capture([&](int call) { return enqueue(*gpu, call); });
        for (int i = 0; i < kLaunches; ++i) {
          together.arrive_and_wait();
          times[gpu->link.rank()].push_back(gpu->microseconds(graph));
        }
        cudaGraphExecDestroy(graph);
      });
    for (std::thread& t : threads) t.join();
    const Status met = peers->status();
    QUIRE_CHECK(met.ok(), "{}", met.error().message);
    for (size_t i = 0; i < times[0].size(); ++i) times[0][i] = std::max(times[0][i], times[1][i]);
    std::sort(times[0].begin(), times[0].end());
    return times[0][times[0].size() / 2];
  }
  std::unique_ptr<cuda::Peers> peers;
  std::vector<std::unique_ptr<Gpu>> gpus;
};

// Bytes per second, both GPUs reading from each other at once.
double peer_rate(Pair& pair) {
  constexpr int64_t kBytes = 64 << 20;
  const double us = pair.both([&](const Gpu& g, int) {
    const auto* from = reinterpret_cast<const float4*>(pair.gpus[1 - g.link.rank()]->link.memory().data());
    read_all<<<528, 512, 0, g.stream>>>(from, kBytes / 16, g.x);
    return cuda::check_launch("read_all");
  });
  return static_cast<double>(kBytes) / (us * 1e-6);
}

// Rows of both widths and types. Beside it the kernel whose ranks do not wait for each other, and the floor.
void report(Pair& pair, std::span<const int64_t> all_rows) {
  const auto reduce = [](int64_t rows, int64_t width, bool half, bool normed, bool meets = true) {
    return [=](const Gpu& g, int call) {
      cuda::AllReduceParams p = g.params(rows, width, half, normed, call);
      if (!meets) p.meeting = {};
      return cuda::launch_all_reduce(g.stream, p);
    };
  };
  const double empty =
      pair.both([](const Gpu& g, int) { return cuda::launch(g.stream, "nothing", nothing, dim3(1), 32, 0); });
  const double meeting = pair.both(reduce(1, 4, false, false)), rate = peer_rate(pair);
  std::printf("an empty kernel %.2f us, ranks that only meet %.2f us, reading what the other has %.0f GB/s\n", empty,
              meeting, rate * 1e-9);
  std::printf("%6s %6s %5s | %9s %9s %11s | %9s\n", "rows", "width", "type", "sum, us", "+norm, us", "unmet, us",
              "floor, us");
  for (const int64_t width : {2048, 5120})
    for (const bool half : {true, false})
      for (const int64_t rows : all_rows) {
        const double bytes = static_cast<double>(rows * width * (half ? 2 : 4));
        const double sum = pair.both(reduce(rows, width, half, false));
        const double normed = pair.both(reduce(rows, width, half, true));
        const double unmet = pair.both(reduce(rows, width, half, true, false));
        std::printf("%6ld %6ld %5s | %9.2f %9.2f %11.2f | %9.2f\n", static_cast<long>(rows), static_cast<long>(width),
                    half ? "bf16" : "f32", sum, normed, unmet, meeting + bytes / rate * 1e6);
      }
  std::fflush(stdout);
}

TEST(AllReduceBench, TwoGpus) {
  int count = 0;
  must(cudaGetDeviceCount(&count), "counting GPUs");
  if (count < 2) GTEST_SKIP() << "one GPU";
  Pair pair({0, 1});
  const int64_t rows[] = {1, 8, 32, 128, 1024, 8192};
  report(pair, rows);
}

}  // namespace
}  // namespace quire::cuda_test
