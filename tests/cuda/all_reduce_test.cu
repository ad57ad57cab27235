// Ranks whose GPUs read each other's memory: two GPUs where there are two, and two streams of one GPU in any case.
// Ranks of one GPU have few blocks, so that all find room.
#include "ops/all_reduce/cuda/all_reduce.h"

#include <thread>

#include "cuda/support.h"
#include "ops/all_reduce/cuda/peers.h"

namespace quire::cuda_test {
namespace {

constexpr int64_t kPiece = 64 << 20;  // of exchange memory: one of two partial results

struct Stream {
  explicit Stream(int on) : device(on) {
    must(cudaSetDevice(device), "device");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  }
  ~Stream() { cudaStreamDestroy(stream); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  int device;
  cudaStream_t stream = nullptr;
};

float part_of(int rank, int round, int64_t at) {
  const uint32_t mixed = static_cast<uint32_t>(at) * 2654435761u + static_cast<uint32_t>(rank * 977 + round) * 40503u;
  return static_cast<float>(static_cast<int32_t>(mixed)) * 0x1p-33f;
}

__global__ void write_part(float* to, __nv_bfloat16* half, int64_t n, int rank, int round) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank * 977 + round) * 40503u;
    const float part = static_cast<float>(static_cast<int32_t>(mixed)) * 0x1p-33f;
    if (half != nullptr)
      half[i] = __float2bfloat16_rn(part);
    else
      to[i] = part;
  }
}

// One rank: its residual stream, what is normalised, and a graph of some rounds.
struct Rank {
  Rank(int device, cuda::PeerLink& l, int64_t rows, int64_t width, bool half)
      : on(device),
        link(l),
        n(rows * width),
        x(std::vector<float>(static_cast<size_t>(n), 0.25f)),
        weight(std::vector<float>(static_cast<size_t>(width), 1.5f)),
        h(static_cast<size_t>(n)) {
    p = {.rows = rows,
         .D = width,
         .count = l.of(),
         .partial_bf16 = half,
         .partial_stride = width,
         .x = x.data(),
         .x_stride = width,
         .weight = weight.data(),
         .h = h.data(),
         .h_stride = width,
         .meeting = l.meeting()};
  }
  Status enqueue(int round) {
    std::byte* const mine = link.memory().data() + round % 2 * kPiece;
    write_part<<<32, 256, 0, on.stream>>>(reinterpret_cast<float*>(mine),
                                          p.partial_bf16 ? reinterpret_cast<__nv_bfloat16*>(mine) : nullptr, n,
                                          link.rank(), round);
    QUIRE_CHECKED(cuda::check_launch("write_part"));
    const RankLink::Places places = link.meet(mine);
    for (int32_t r = 0; r < link.of(); ++r) p.partials[r] = places[static_cast<size_t>(r)];
    return cuda::launch_all_reduce(on.stream, p);
  }
  Stream on;
  cuda::PeerLink& link;
  int64_t n;
  DeviceBuffer<float> x, weight;
  DeviceBuffer<__nv_bfloat16> h;
  cuda::AllReduceParams p;
};

float rounded(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}

std::vector<float> want_x(int64_t n, int32_t of, int rounds, bool half) {
  std::vector<float> x(static_cast<size_t>(n), 0.25f);
  for (int i = 0; i < rounds; ++i)
    for (int64_t at = 0; at < n; ++at) {
      const auto part = [&](int r) { return half ? rounded(part_of(r, i, at)) : part_of(r, i, at); };
      float sum = part(0);
      for (int r = 1; r < of; ++r) sum += part(r);
      x[static_cast<size_t>(at)] += sum;
    }
  return x;
}

// A thread for each rank, as devices have; every other round in a graph of two.
void run(const std::vector<int>& devices, int64_t rows, int64_t width, bool half, bool graphs) {
  SCOPED_TRACE(testing::Message() << devices.size() << " ranks, " << rows << " rows of " << width
                                  << (half ? ", bf16" : "") << (graphs ? ", graphs" : ""));
  constexpr int kRounds = 40;
  auto peers = cuda::Peers::create(devices, 2 * kPiece);
  ASSERT_TRUE(peers.ok()) << peers.error().message;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (size_t r = 0; r < devices.size(); ++r)
    ranks.push_back(std::make_unique<Rank>(devices[r], (*peers)->link(static_cast<int32_t>(r)), rows, width, half));
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] {
      must(cudaSetDevice(rank->on.device), "device");
      for (int i = 0; i < kRounds; i += 2) {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t made = nullptr;
        if (graphs) must(cudaStreamBeginCapture(rank->on.stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int j = i; j < i + 2; ++j)
          if (const Status s = rank->enqueue(j); !s.ok()) QUIRE_CHECK(false, "{}", s.error().message);
        if (!graphs) continue;
        must(cudaStreamEndCapture(rank->on.stream, &graph), "end of capture");
        must(cudaGraphInstantiate(&made, graph, 0), "graph");
        must(cudaGraphLaunch(made, rank->on.stream), "launch");
        must(cudaStreamSynchronize(rank->on.stream), "synchronize");
        cudaGraphExecDestroy(made);
        cudaGraphDestroy(graph);
      }
      must(cudaStreamSynchronize(rank->on.stream), "synchronize");
    });
  for (std::thread& t : threads) t.join();
  const Status met = (*peers)->status();
  ASSERT_TRUE(met.ok()) << met.error().message;
  const std::vector<float> want = want_x(rows * width, static_cast<int32_t>(devices.size()), kRounds, half);
  std::vector<__nv_bfloat16> first_h;
  for (auto& rank : ranks) {
    must(cudaSetDevice(rank->on.device), "device");
    EXPECT_EQ(std::memcmp(rank->x.download().data(), want.data(), want.size() * 4), 0) << "rank " << rank->link.rank();
    const std::vector<__nv_bfloat16> h = rank->h.download();
    if (first_h.empty()) first_h = h;
    EXPECT_EQ(std::memcmp(h.data(), first_h.data(), h.size() * 2), 0) << "every rank has the same bits";
    EXPECT_TRUE(rank->x.guards_intact() && rank->h.guards_intact());
  }
  must(cudaSetDevice(0), "device");
}

int gpus() {
  int count = 0;
  must(cudaGetDeviceCount(&count), "counting GPUs");
  return count;
}

TEST(AllReduce, RanksOfOneGpu) {
  for (const bool half : {false, true})
    for (const bool graphs : {false, true}) {
      run({0, 0}, 1, 2048, half, graphs);
      run({0, 0}, 7, 5120, half, graphs);
      run({0, 0, 0}, 16, 1024, half, graphs);
    }
}

TEST(AllReduce, RanksOfTwoGpus) {
  if (gpus() < 2) GTEST_SKIP() << "one GPU";
  for (const bool half : {false, true})
    for (const bool graphs : {false, true})
      for (const int64_t rows : {1, 8, 129, 2000}) {
        run({0, 1}, rows, 2048, half, graphs);
        run({0, 1}, rows, 5120, half, graphs);
      }
}

// A kernel ends by itself, says who was missing, and the ones after it do not wait once more.
TEST(AllReduce, WaitsForAMissingRankOnceAndNotForEver) {
  const std::vector<int> devices = {0, gpus() > 1 ? 1 : 0};
  auto peers = cuda::Peers::create(devices, 2 * kPiece, 0.2);
  ASSERT_TRUE(peers.ok()) << peers.error().message;
  Rank rank(0, (*peers)->link(0), 20, 2048, false);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(rank.enqueue(i).ok());
  CUDA_OK(cudaStreamSynchronize(rank.on.stream));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GT(seconds, 0.19);
  EXPECT_LT(seconds, 1.0);
  const Status s = (*peers)->status();
  ASSERT_FALSE(s.ok());
  EXPECT_NE(s.error().message.find("rank 1 of 2"), std::string::npos) << s.error().message;
}

}  // namespace
}  // namespace quire::cuda_test
