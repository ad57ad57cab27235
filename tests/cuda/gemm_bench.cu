// Products of packed weights at the shapes of the models that Quire is measured with: bytes, FLOPs, microseconds, and
// shares of this run's copy bandwidth. Weights are random bits made on the device; enough copies of them are used in
// turn that none is found in the L2. Each figure is the median of graph replays, divided by the launches in a graph.
#include <cuda_runtime.h>

#include <cstdio>
#include <memory>
#include <set>
#include <utility>

#include "core/cuda/device.h"
#include "cuda/gemm_support.h"
#include "ops/cuda/context.h"
#include "ops/gemm/cuda/gemm.h"
#include "ops/moe/moe.h"

namespace quire::cuda_test {
namespace {

using gemm::Out;
using gemm::PackedWeight;
using gemm::TileFormat;

__device__ uint32_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185ull;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44dull;
  return static_cast<uint32_t>(x >> 32);
}

// Plausible tiles: bf16 of magnitudes around 2^-5, codes of every value, scales around 2^-5.
__global__ void fill_kernel(uint16_t* to, int64_t count, int tile_bytes, bool fp4, uint64_t seed) {
  for (int64_t i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    const uint32_t r = mix(static_cast<uint64_t>(i) + seed);
    const bool scale = fp4 && i * 2 % tile_bytes >= 512;
    to[i] = static_cast<uint16_t>(scale ? 0x2020 | (r & 0x0707) : fp4 ? r : (r & 0x80ff) | 0x3c00 | (r >> 8 & 0x0100));
  }
}

struct Weights {
  PackedWeight shape;
  std::vector<std::unique_ptr<DeviceBuffer<std::byte>>> copies;

  Weights(TileFormat format, int32_t rows, int32_t cols, bool paired = false, int32_t experts = 1,
          int64_t at_least = 200 << 20) {
    shape.format = format;
    shape.paired = paired;
    shape.rows = rows;
    shape.cols = cols;
    shape.experts = experts;
    const bool fp4 = format == TileFormat::kNvfp4;
    do {
      auto memory = std::make_unique<DeviceBuffer<std::byte>>(static_cast<size_t>(shape.bytes()));
      fill_kernel<<<2048, 256>>>(reinterpret_cast<uint16_t*>(memory->data()), shape.bytes() / 2,
                                 gemm::tile_bytes(format), fp4, copies.size() * 977 + 1);
      must(cudaGetLastError(), "fill");
      copies.push_back(std::move(memory));
    } while (static_cast<int64_t>(copies.size()) * shape.bytes() < at_least);
  }
  PackedWeight copy(size_t i) const {
    PackedWeight w = shape;
    w.data = copies[i % copies.size()]->data();
    return w;
  }
};

DeviceBuffer<uint16_t> random_rows(int64_t count, uint64_t seed) {
  DeviceBuffer<uint16_t> b(static_cast<size_t>(count));
  fill_kernel<<<2048, 256>>>(b.data(), count, 1, false, seed);
  must(cudaGetLastError(), "fill");
  return b;
}
const __nv_bfloat16* as_bf16(const DeviceBuffer<uint16_t>& b) {
  return reinterpret_cast<const __nv_bfloat16*>(b.data());
}

// Bytes read and written by a second of a large copy.
double copy_bandwidth() {
  static const double measured = [] {
    const size_t bytes = size_t{1} << 30;
    const DeviceBuffer<std::byte> from(bytes), to(bytes);
    const float ms =
        median_ms([&] { must(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice), "copy"); });
    std::printf("copy bandwidth %.2f TB/s\n", 2.0 * static_cast<double>(bytes) / ms * 1e-9);
    return 2.0 * static_cast<double>(bytes) / ms * 1e3;
  }();
  return measured;
}

// Microseconds of one of `launches` calls, recorded in a graph.
template <class F>
double graph_us(int launches, F&& launch) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(stream, i);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "graph");
  must(cudaDeviceSynchronize(), "before timing");
  const float ms = median_ms([&] { must(cudaGraphLaunch(exec, nullptr), "replay"); }, 9);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return static_cast<double>(ms) * 1e3 / launches;
}

void report(const char* what, int64_t rows, double bytes, double flops, double us) {
  std::printf("%-56s %6lld rows %8.1f MB %9.2f GFLOP %9.2f us %6.2f TB/s %4.0f%% %7.1f TFLOP/s\n", what,
              static_cast<long long>(rows), bytes * 1e-6, flops * 1e-9, us, bytes / us * 1e-6,
              100 * bytes / us * 1e6 / copy_bandwidth(), flops / us * 1e-6);
  std::fflush(stdout);
}

// What may take a product of so many rows; kAuto is one of them.
std::vector<std::pair<gemm::Path, const char*>> paths(int32_t rows, bool can_slice) {
  std::vector<std::pair<gemm::Path, const char*>> all = {{gemm::Path::kAuto, ""}};
  if (rows > 256) return all;
  if (rows <= 32) all.insert(all.end(), {{gemm::Path::kStream, " (streams)"}, {gemm::Path::kSweep, " (sweep)"}});
  all.emplace_back(gemm::Path::kTile, " (tiles)");
  all.emplace_back(gemm::Path::kDealt, " (tiles dealt out)");
  if (can_slice) all.emplace_back(gemm::Path::kSliced, " (sliced tiles)");
  return all;
}

void bench_linear(const std::string& what, TileFormat format, int32_t n, int32_t k, bool paired, Out out,
                  std::initializer_list<int32_t> row_counts) {
  const Weights weights(format, n, k, paired);
  const int32_t most = std::max(row_counts);
  const auto x = random_rows(static_cast<int64_t>(most) * k, 5);
  DeviceBuffer<float> y(static_cast<size_t>(most) * n);
  must(cudaMemset(y.data(), 0, y.bytes()), "clear");
  const auto product = [&](size_t copy, int32_t rows, gemm::Path path) {
    gemm::Product p(as_bf16(x), k, rows);
    p.add(weights.copy(copy), {.y = y.data(), .y_stride = n, .out = out});
    p.path = path;
    p.room = true;
    return p;
  };
  const cuda::DeviceLimits device = *cuda::device_limits();
  gemm::Product p = product(0, most, gemm::Path::kAuto);
  const bool can_slice = sliced_floats(p, device) > 0;
  p.path = gemm::Path::kDealt;
  DeviceBuffer<float> sums(static_cast<size_t>(sliced_floats(p, device)));
  for (const int32_t rows : row_counts)
    for (const auto& [path, name] : paths(rows, can_slice)) {
      p = product(0, rows, path);
      p.sums = sums.data();
      if (!launch_gemm(nullptr, p).ok()) continue;  // no room for that many sums
      const double us = graph_us(rows >= 1024 || n > 100000 ? 4 : 24,
                                 [&, rows = rows, path = path, &name = name](cudaStream_t stream, int i) {
                                   gemm::Product mine = product(static_cast<size_t>(i), rows, path);
                                   mine.sums = sums.data();
                                   const Status s = launch_gemm(stream, mine);
                                   QUIRE_CHECK(s.ok(), "{}{}: {}", what, name, s.error().message);
                                 });
      const double y_bytes = static_cast<double>(rows) * n * (out == Out::kBf16 ? 2 : out == Out::kF32 ? 4 : 8);
      report((what + name).c_str(), rows, static_cast<double>(weights.shape.bytes()) + 2.0 * rows * k + y_bytes,
             2.0 * rows * n * k * (paired ? 2 : 1), us);
    }
}

TEST(GemmLinearBench, Bf16) {
  bench_linear("bf16 12352 x 2048 -> bf16", TileFormat::kBf16, 12352, 2048, false, Out::kBf16,
               {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192});
  bench_linear("bf16 2048 x 4096 -> += f32", TileFormat::kBf16, 2048, 4096, false, Out::kAddF32,
               {1, 8, 16, 32, 64, 128, 512, 2048, 8192});
  bench_linear("bf16 16384 x 5120 -> bf16", TileFormat::kBf16, 16384, 5120, false, Out::kBf16,
               {1, 8, 16, 32, 64, 128, 256, 2048});
  bench_linear("bf16 5120 x 6144 -> += f32", TileFormat::kBf16, 5120, 6144, false, Out::kAddF32,
               {1, 8, 16, 32, 64, 128, 256, 2048});
  bench_linear("bf16 9216 x 2048 -> bf16", TileFormat::kBf16, 9216, 2048, false, Out::kBf16,
               {1, 8, 16, 32, 64, 128, 2048, 8192});
  bench_linear("bf16 248320 x 2048 -> f32", TileFormat::kBf16, 248320, 2048, false, Out::kF32, {1, 8, 32, 128});
}

TEST(GemmLinearBench, Nvfp4) {
  bench_linear("nvfp4 12352 x 2048 -> bf16", TileFormat::kNvfp4, 12352, 2048, false, Out::kBf16,
               {1, 8, 16, 32, 64, 128, 2048, 8192});
  bench_linear("nvfp4 2048 x 4096 -> += f32", TileFormat::kNvfp4, 2048, 4096, false, Out::kAddF32,
               {1, 8, 16, 32, 64, 128, 2048, 8192});
  bench_linear("nvfp4 gate+up 17408 x 5120 -> SwiGLU bf16", TileFormat::kNvfp4, 17408, 5120, true, Out::kBf16,
               {1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 2048, 8192});
  bench_linear("nvfp4 5120 x 17408 -> += f32", TileFormat::kNvfp4, 5120, 17408, false, Out::kAddF32,
               {1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 2048, 8192});
}

TEST(GemmLinearBench, Fp8) {
  bench_linear("fp8 12352 x 2048 -> bf16", TileFormat::kFp8, 12352, 2048, false, Out::kBf16,
               {1, 8, 16, 32, 64, 128, 512, 2048, 8192});
  bench_linear("fp8 2048 x 4096 -> += f32", TileFormat::kFp8, 2048, 4096, false, Out::kAddF32,
               {1, 8, 32, 128, 2048, 8192});
  bench_linear("fp8 16384 x 5120 -> bf16", TileFormat::kFp8, 16384, 5120, false, Out::kBf16,
               {1, 8, 16, 32, 64, 128, 256, 2048});
}

// Products of prompts: with the K slices that generated rows have, and with one accumulator for all of K, in turns.
void bench_k_slices(const std::string& what, TileFormat format, int32_t n, int32_t k, bool paired, Out out,
                    std::vector<int32_t> slices) {
  const Weights weights(format, n, k, paired);
  constexpr int32_t kMost = 8192;
  const auto x = random_rows(static_cast<int64_t>(kMost) * k, 5);
  DeviceBuffer<float> y(static_cast<size_t>(kMost) * n);
  must(cudaMemset(y.data(), 0, y.bytes()), "clear");
  const auto product = [&](size_t copy, int32_t rows, int32_t k_slice) {
    gemm::Product p(as_bf16(x), k, rows);
    PackedWeight w = weights.copy(copy);
    w.k_slice = k_slice;
    p.add(w, {.y = y.data(), .y_stride = n, .out = out});
    p.room = true;
    return p;
  };
  const cuda::DeviceLimits device = *cuda::device_limits();
  slices.push_back(weights.shape.col_tiles() * gemm::kTileCols);
  int64_t room = 0;
  for (const int32_t s : slices) room = std::max(room, sliced_floats(product(0, kMost, s), device));
  DeviceBuffer<float> sums(static_cast<size_t>(room));
  for (const int32_t rows : {1, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192}) {
    std::printf("%-30s %5d:", what.c_str(), rows);
    for (int turn = 0; turn < 2; ++turn)
      for (const int32_t k_slice : slices) {
        const double us = graph_us(rows >= 1024 ? 4 : 16, [&](cudaStream_t stream, int i) {
          gemm::Product mine = product(static_cast<size_t>(i), rows, k_slice);
          mine.sums = sums.data();
          const Status s = launch_gemm(stream, mine);
          QUIRE_CHECK(s.ok(), "{}: {}", what, s.error().message);
        });
        std::printf(" %5d %6.1f", k_slice, us);
      }
    std::printf("\n");
    std::fflush(stdout);
  }
}

TEST(GemmKSlicesBench, Shapes) {
  bench_k_slices("nvfp4 gate+up 17408 x 5120", TileFormat::kNvfp4, 17408, 5120, true, Out::kBf16, {2048});
  bench_k_slices("bf16 10240 x 5120", TileFormat::kBf16, 10240, 5120, false, Out::kBf16, {2048});
  bench_k_slices("nvfp4 5120 x 17408", TileFormat::kNvfp4, 5120, 17408, false, Out::kAddF32, {512, 1024, 2048});
  bench_k_slices("bf16 5120 x 6144", TileFormat::kBf16, 5120, 6144, false, Out::kAddF32, {512, 2048});
  bench_k_slices("nvfp4 4096 x 4096", TileFormat::kNvfp4, 4096, 4096, false, Out::kAddF32, {512, 1024, 2048});
  bench_k_slices("nvfp4 4096 x 12288", TileFormat::kNvfp4, 4096, 12288, false, Out::kAddF32, {512, 1024, 2048});
  bench_k_slices("bf16 5120 x 2880", TileFormat::kBf16, 5120, 2880, false, Out::kBf16, {512, 1024});
  bench_k_slices("bf16 2048 x 4096", TileFormat::kBf16, 2048, 4096, false, Out::kAddF32, {512, 1024});
}

// What a tile of 192 rows takes for each column tile, and besides: full waves, K of several sizes.
TEST(GemmTileBench, Columns) {
  for (const TileFormat format : {TileFormat::kNvfp4, TileFormat::kBf16})
    for (const Out out : {Out::kBf16, Out::kAddF32})
      for (const auto& [k, k_slice] : {std::pair{2048, 2048}, {4096, 2048}, {8192, 2048}, {4096, 512}, {8192, 512}}) {
        constexpr int32_t kN = 132 * 128, kRows = 192 * 8;
        const Weights weights(format, kN, k, false);
        const auto x = random_rows(static_cast<int64_t>(kRows) * k, 5);
        DeviceBuffer<float> y(static_cast<size_t>(kRows) * kN);
        must(cudaMemset(y.data(), 0, y.bytes()), "clear");
        const double us = graph_us(4, [&, k_slice = k_slice, k = k](cudaStream_t stream, int i) {
          gemm::Product p(as_bf16(x), k, kRows);
          PackedWeight w = weights.copy(static_cast<size_t>(i));
          w.k_slice = k_slice;
          p.add(w, {.y = y.data(), .y_stride = kN, .out = out});
          p.path = gemm::Path::kTile;
          p.tile_rows = 192;
          const Status s = launch_gemm(stream, p);
          QUIRE_CHECK(s.ok(), "{}", s.error().message);
        });
        report(fmt::format("{} {} columns, K slices of {}, {}", format == TileFormat::kBf16 ? "bf16" : "nvfp4", k,
                           k_slice, out == Out::kBf16 ? "bf16" : "+= f32")
                   .c_str(),
               kRows, static_cast<double>(weights.shape.bytes()), 2.0 * kRows * kN * k, us);
      }
}

class GemmMoeBench : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Rows, GemmMoeBench,
                         testing::Values(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384));

TEST_P(GemmMoeBench, Nvfp4) {
  constexpr int32_t kExperts = 256, kTopK = 8, kWidth = 2048, kInner = 512;
  const Weights router(TileFormat::kBf16x3, kExperts, kWidth),
      gate_up(TileFormat::kNvfp4, kInner, kWidth, true, kExperts + 1),
      down(TileFormat::kNvfp4, kWidth, kInner, false, kExperts + 1);
  const int32_t rows = GetParam();
  for (const gemm::Path path : {gemm::Path::kAuto, gemm::Path::kStream, gemm::Path::kTile}) {
    if (path != gemm::Path::kAuto && (rows < 16 || rows > 256)) continue;
    const int sets = rows <= 64 ? 24 : rows <= 1024 ? 6 : 2;
    const auto h = random_rows(static_cast<int64_t>(rows) * sets * kWidth, 9);
    DeviceBuffer<float> x(static_cast<size_t>(rows) * kWidth);
    must(cudaMemset(x.data(), 0, x.bytes()), "clear");
    DeviceBuffer<int32_t> chosen(static_cast<size_t>(rows) * kTopK * sets);
    const auto weight = [](const Weights& w, DType type, int64_t experts, int64_t first = 0) {
      const PackedWeight packed = w.copy(0);
      return Weight{.dtype = type,
                    .data = packed.data + packed.expert_bytes() * first,
                    .rows = packed.rows,
                    .cols = packed.cols,
                    .experts = experts};
    };
    MoeArgs args{.router = weight(router, DType::kF32, 1),
                 .gate = weight(gate_up, DType::kNVFP4, kExperts),
                 .up = weight(gate_up, DType::kNVFP4, kExperts),
                 .down = weight(down, DType::kNVFP4, kExperts),
                 .top_k = kTopK,
                 .shared_gate = weight(gate_up, DType::kNVFP4, 1, kExperts),
                 .shared_up = weight(gate_up, DType::kNVFP4, 1, kExperts),
                 .shared_down = weight(down, DType::kNVFP4, 1, kExperts),
                 .x = make_tensor(x.data(), {rows, kWidth})};
    KernelChoice choice;
    if (path != gemm::Path::kAuto)
      choice.forced.emplace_back("moe", path == gemm::Path::kStream ? "cuda_stream" : "cuda_tiles");
    ThreadPool pool(1);
    cuda::Context context;
    must_succeed(context.create());
    // Set `i` of the tokens; dry: finds out how much scratch memory that takes.
    const auto run = [&](Workspace& workspace, bool dry, int64_t i) {
      context.dry = dry;
      auto* const tokens = const_cast<uint16_t*>(h.data()) + i * rows * kWidth;
      args.h = make_tensor(reinterpret_cast<bf16*>(tokens), {rows, kWidth});
      args.chosen = make_tensor(chosen.data() + i * rows * kTopK, {rows, kTopK});
      moe({.pool = pool,
           .workspace = workspace,
           .machine = {.device = Device::kCuda, .gpu = *cuda::device_limits()},
           .choice = &choice,
           .gpu = &context},
          args);
      must_succeed(context.status);
    };
    Workspace measured;
    run(measured, true, 0);
    const auto scratch_bytes = static_cast<size_t>(measured.high_water());
    DeviceBuffer<std::byte> scratch(scratch_bytes);
    const double us = graph_us(sets, [&](cudaStream_t stream, int i) {
      Workspace workspace = Workspace::over({scratch.data(), scratch_bytes});
      const cudaStream_t own = std::exchange(context.stream, stream);
      run(workspace, false, i);
      context.stream = own;
    });
    // Experts that some token chose, on average over the sets, and the shared one.
    const auto all = chosen.download();
    double active = 1;
    for (int i = 0; i < sets; ++i) {
      const auto begin = all.begin() + static_cast<int64_t>(i) * rows * kTopK;
      active += static_cast<double>(std::set<int32_t>(begin, begin + static_cast<int64_t>(rows) * kTopK).size()) / sets;
    }
    const double expert = static_cast<double>(gate_up.shape.expert_bytes() + down.shape.expert_bytes());
    const double results = static_cast<double>(rows) * (kTopK + 1);
    const double bytes = active * expert + static_cast<double>(router.shape.bytes()) + rows * kWidth * 10.0 +
                         results * (4.0 * kInner + 4.0 * kWidth);
    report(path == gemm::Path::kAuto     ? "moe nvfp4 256 of 512, top 8, shared"
           : path == gemm::Path::kStream ? "  the same by streams"
                                         : "  the same by tiles",
           rows, bytes, results * 6 * kWidth * kInner, us);
  }
}

}  // namespace
}  // namespace quire::cuda_test
