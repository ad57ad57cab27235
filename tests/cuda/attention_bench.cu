// Attention on the GPU: microseconds, bytes, FLOPs, and what share they are of what this run's card can copy and
// multiply.
#include <cstdio>
#include <numeric>

#include "core/cuda/device.h"
#include "core/cuda/target.cuh"
#include "cuda/attention_launch.h"
#include "cuda/support.h"
#include "ops/attention/cuda/attention.h"
#include "ops/attention/cuda/wgmma.cuh"

namespace quire::cuda_test {
namespace {

// Values in [-1, 1), different everywhere: products of zeros run faster than real ones.
__global__ void fill(uint16_t* to, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x = (x ^ (x >> 15)) * 2246822519u;
    x = (x ^ (x >> 13)) * 3266489917u;
    const float f = static_cast<float>(x >> 8) * 0x1p-23f - 1.0f;
    to[i] = static_cast<uint16_t>(__float_as_uint(f) >> 16);
  }
}
DeviceBuffer<bf16> random_device(int64_t n, uint32_t seed) {
  DeviceBuffer<bf16> b(static_cast<size_t>(n));
  fill<<<1024, 256>>>(reinterpret_cast<uint16_t*>(b.data()), n, seed);
  must(cudaDeviceSynchronize(), "fill");
  return b;
}

// E4M3 codes of numbers below 1, which are possible scales too.
__global__ void fill_codes(uint8_t* to, int64_t n) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<uint8_t>(((static_cast<uint32_t>(i) * 2654435761u >> 20) & 0x8f) | 0x30);
}
DeviceBuffer<uint8_t> random_cache(cuda::KvFormat f, int64_t bytes) {
  DeviceBuffer<uint8_t> b(static_cast<size_t>(bytes));
  if (f == cuda::KvFormat::kBf16)
    fill<<<1024, 256>>>(reinterpret_cast<uint16_t*>(b.data()), bytes / 2, 7);
  else
    fill_codes<<<1024, 256>>>(b.data(), bytes);
  must(cudaDeviceSynchronize(), "fill");
  return b;
}
const char* name(cuda::KvFormat f) {
  return f == cuda::KvFormat::kBf16 ? "bf16" : "e4m3";
}
constexpr cuda::KvFormat kFormats[] = {cuda::KvFormat::kBf16, cuda::KvFormat::kE4m3};

// What tensor cores can do, by the instruction that prompts use: 64 x 256 x 16 for each warpgroup and step.
__device__ void multiply_wgmma(float* out, int steps) {
  extern __shared__ char raw[];
  const uint32_t base = (cuda::shared_address(raw) + 1023) / 1024 * 1024;
  for (uint32_t i = threadIdx.x; i < 40960 / 4; i += 256)
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(base + i * 4), "r"(0x3f803e80u + i % 7 * 0x10001u) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  float c[128] = {};
  const uint32_t a[4] = {0x3f803f81u + threadIdx.x, 0x3e803f82u, 0xbf803f83u, 0x3f00bf84u};
  const uint64_t b = cuda::matrix_descriptor(base, 8192);
  for (int i = 0; i < steps; ++i) {
    cuda::pin(c);
    cuda::warpgroup_fence();
    for (int j = 0; j < 4; ++j) cuda::warpgroup_mma_rows(c, a, b + j * 128);
    cuda::warpgroup_commit();
    cuda::warpgroup_wait<0>();
    cuda::pin(c);
  }
  float sum = 0;
  for (const float x : c) sum += x;
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
// The same number of operations: 16 x 8 x 16 a time, 16 sums a warp.
__device__ void multiply_mma(float* out, int steps) {
  float c[16][4] = {};
  const uint32_t a[4] = {0x3f803f81u + threadIdx.x, 0x3e803f82u, 0xbf803f83u, 0x3f00bf84u};
  for (int i = 0; i < steps; ++i) {
#pragma unroll
    for (int j = 0; j < 128; ++j) cuda::mma_bf16(c[j % 16], a, 0x3f803e80u + j, 0x3f803e80u);
  }
  float sum = 0;
  for (const auto& four : c)
    for (const float x : four) sum += x;
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}
__global__ void __launch_bounds__(256) multiply(float* out, int steps) {
  if constexpr (cuda::kForWgmma)
    multiply_wgmma(out, steps);
  else
    multiply_mma(out, steps);
}

const cuda::DeviceLimits& device() {
  static const cuda::DeviceLimits limits = [] {
    const auto found = cuda::device_limits();
    QUIRE_CHECK(found.ok(), "{}", found.error().message);
    return *found;
  }();
  return limits;
}

struct Limits {
  double copy = 0, product = 0;  // bytes and FLOPs per second
};
const Limits& limits() {
  static const Limits l = [] {
    Limits r;
    DeviceBuffer<bf16> a = random_device(1 << 29, 1), b(size_t{1} << 29);
    const auto copy = [&] { must(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice), "copy"); };
    r.copy = 2.0 * static_cast<double>(a.bytes()) / (static_cast<double>(median_ms(copy)) * 1e-3);
    const int blocks = device().multiprocessors;
    DeviceBuffer<float> out(static_cast<size_t>(blocks) * 256);
    constexpr int kSteps = 8192;
    must(cudaFuncSetAttribute(multiply, cudaFuncAttributeMaxDynamicSharedMemorySize, 49152), "shared memory");
    const auto product = [&] { multiply<<<static_cast<unsigned>(blocks), 256, 49152>>>(out.data(), kSteps); };
    r.product = 1.0 * blocks * 2 * kSteps * 4 * 2 * 64 * 256 * 16 / (static_cast<double>(median_ms(product)) * 1e-3);
    std::printf("this run: copies %.2f TB/s, products of bf16 %.0f TFLOP/s\n", r.copy * 1e-12, r.product * 1e-12);
    return r;
  }();
  return l;
}

// `sequences` pieces of `count` tokens that end at position `context`, on shuffled blocks; layer 0 of one.
struct Batch {
  Batch(cuda::KvFormat format, int q_heads, int kv_heads, int d, int sequences, int count, int context, bool decode)
      : stride(int64_t{2} * kv_heads * cuda::kv_head_bytes(format, d)),
        pitch((context + 15) / 16),
        cache(random_cache(format, static_cast<int64_t>(sequences) * pitch * stride)),
        q(random_device(int64_t{sequences} * count * q_heads * d, 8)),
        gate(random_device(int64_t{sequences} * count * q_heads * d, 9)),
        out(static_cast<size_t>(sequences) * static_cast<size_t>(count * q_heads * d)),
        tables(static_cast<size_t>(sequences * pitch)),
        segments(static_cast<size_t>(sequences)) {
    std::vector<int32_t> order(tables.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 rng(5);
    std::shuffle(order.begin(), order.end(), rng);
    tables.upload(order);
    std::vector<Segment> s(static_cast<size_t>(sequences));
    for (int i = 0; i < sequences; ++i)
      s[static_cast<size_t>(i)] = {.row = i * count, .count = count, .position = context - count};
    segments.upload(s);
    p.q = q.data();
    p.gate = gate.data();
    p.out = out.data();
    p.q_stride = p.gate_stride = p.out_stride = q_heads * d;
    p.gate_head_stride = d;
    p.kv = {cache.data(), cache.data() + stride / 2, stride, format};
    p.segments = {segments.data(), sequences, decode ? sequences : 0, tables.data(), pitch};
    p.q_heads = q_heads;
    p.kv_heads = kv_heads;
    p.head_size = d;
    p.scale = 1.0f / std::sqrt(static_cast<float>(d));
  }
  int64_t stride;  // bytes of a block
  int pitch;
  DeviceBuffer<uint8_t> cache;
  DeviceBuffer<bf16> q, gate, out;
  DeviceBuffer<int32_t> tables;
  DeviceBuffer<Segment> segments;
  cuda::AttentionParams p;
};

// Microseconds of run() as a graph, which is how decode steps run; the L2 is flushed before each.
float graph_us(const std::function<void(cudaStream_t)>& run) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream), "stream");
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  run(stream);
  cudaGraph_t graph;
  must(cudaStreamEndCapture(stream, &graph), "capture");
  cudaGraphExec_t exec;
  must(cudaGraphInstantiate(&exec, graph, 0), "graph");
  DeviceBuffer<char> flush(128 << 20);
  const float ms = median_ms([&] { must(cudaGraphLaunch(exec, nullptr), "graph"); }, 21,
                             [&] { must(cudaMemsetAsync(flush.data(), 1, flush.bytes()), "flush"); });
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return ms * 1e3f;
}

__global__ void nothing() {}

// What the measurement itself takes: to be subtracted from the times of small kernels.
TEST(CudaAttentionBench, AnEmptyGraph) {
  const float one = graph_us([](cudaStream_t s) { nothing<<<1, 32, 0, s>>>(); });
  const float two = graph_us([](cudaStream_t s) {
    nothing<<<1, 32, 0, s>>>();
    nothing<<<1, 32, 0, s>>>();
  });
  std::printf("a graph of one empty kernel: %.1f us, of two: %.1f us\n", static_cast<double>(one),
              static_cast<double>(two));
}

TEST(CudaAttentionBench, Decode) {
  struct Case {
    int q_heads, kv_heads, d, sequences, rows, context;
  };
  constexpr Case kCases[] = {{16, 2, 256, 1, 1, 4096},   {16, 2, 256, 8, 1, 4096},  {16, 2, 256, 32, 1, 4096},
                             {16, 2, 256, 128, 1, 4096}, {16, 2, 256, 128, 1, 512}, {16, 2, 256, 32, 4, 4096},
                             {16, 2, 256, 1, 1, 131072}, {24, 4, 256, 32, 1, 4096}, {32, 8, 128, 32, 1, 4096},
                             {16, 8, 64, 32, 1, 4096},   {16, 2, 512, 1, 1, 4096},  {16, 2, 512, 32, 1, 4096},
                             {32, 4, 512, 32, 1, 4096}};
  for (size_t i = 0; i < 2 * std::size(kCases); ++i) {
    const Case& c = kCases[i / 2];
    const cuda::KvFormat format = kFormats[i % 2];
    Batch b(format, c.q_heads, c.kv_heads, c.d, c.sequences, c.rows, c.context, true);
    const cuda::DecodeBounds bounds{c.rows, c.sequences * attention_parts(c.context)};
    DeviceBuffer<char> workspace(static_cast<size_t>(cuda::decode_attention_workspace_bytes(b.p, bounds)));
    const float us = graph_us([&](cudaStream_t s) {
      const Status launched = cuda::launch_decode_attention(s, b.p, bounds, workspace.data());
      QUIRE_CHECK(launched.ok(), "{}", launched.error().message);
    });
    const double bytes = static_cast<double>(b.stride) / kBlockTokens * c.sequences * c.context;
    std::printf(
        "decode   %s %2d/%d heads of %3d, %3d x %d rows, context %6d: %7.1f us, %5.2f TB/s, %3.0f%% of "
        "copies\n",
        name(format), c.q_heads, c.kv_heads, c.d, c.sequences, c.rows, c.context, static_cast<double>(us),
        bytes / static_cast<double>(us) * 1e-6, 100 * bytes / static_cast<double>(us) * 1e6 / limits().copy);
    std::fflush(stdout);
  }
}

TEST(CudaAttentionBench, Prompt) {
  struct Case {
    int q_heads, kv_heads, d, sequences, count, context;
  };
  constexpr Case kCases[] = {{16, 2, 256, 1, 8192, 8192},  {16, 2, 256, 4, 2048, 2048}, {16, 2, 256, 1, 2048, 2048},
                             {16, 2, 256, 1, 2048, 32768}, {24, 4, 256, 1, 8192, 8192}, {32, 8, 128, 1, 8192, 8192},
                             {16, 8, 64, 1, 8192, 8192},   {16, 2, 512, 1, 8192, 8192}, {16, 2, 512, 4, 2048, 2048},
                             {16, 2, 512, 1, 2048, 32768}};
  for (size_t i = 0; i < 2 * std::size(kCases); ++i) {
    const Case& c = kCases[i / 2];
    const cuda::KvFormat format = kFormats[i % 2];
    Batch b(format, c.q_heads, c.kv_heads, c.d, c.sequences, c.count, c.context, false);
    const float us = 1e3f * median_ms(
                                [&] {
                                  const Status launched = launch_prompt_attention(nullptr, b.p, c.sequences * c.count);
                                  QUIRE_CHECK(launched.ok(), "{}", launched.error().message);
                                },
                                11);
    const double before = c.context - c.count, keys = before * c.count + 0.5 * c.count * (c.count + 1.0);
    const double flops = 4.0 * keys * c.sequences * c.q_heads * c.d;
    std::printf(
        "prompt   %s %2d/%d heads of %3d, %d x %d tokens, context %5d: %8.1f us, %4.0f TFLOP/s, %3.0f%% of "
        "products\n",
        name(format), c.q_heads, c.kv_heads, c.d, c.sequences, c.count, c.context, static_cast<double>(us),
        flops / static_cast<double>(us) * 1e-6, 100 * flops / static_cast<double>(us) * 1e6 / limits().product);
    std::fflush(stdout);
  }
}

TEST(CudaAttentionBench, Prepare) {
  constexpr int kRows[] = {1, 32, 128, 2048, 8192};
  for (size_t i = 0; i < 2 * std::size(kRows); ++i) {
    const int rows = kRows[i / 2];
    const cuda::KvFormat format = kFormats[i % 2];
    const bool decode = rows <= 128;
    const int d = 256, heads = 16, kv_heads = 2;
    Batch b(format, heads, kv_heads, d, decode ? rows : 1, decode ? 1 : rows, decode ? 512 : rows, decode);
    DeviceBuffer<bf16> q_proj = random_device(int64_t{rows} * 2 * heads * d, 3);
    DeviceBuffer<bf16> k_proj = random_device(int64_t{rows} * kv_heads * d, 4),
                       v_proj = random_device(int64_t{rows} * kv_heads * d, 5);
    DeviceBuffer<float> norm(std::vector<float>(static_cast<size_t>(d), 1.0f)), inv_freq(std::vector<float>(32, 0.01f));
    cuda::AttentionPrepareParams p;
    p.q_proj = q_proj.data();
    p.k_proj = k_proj.data();
    p.v_proj = v_proj.data();
    p.q_stride = 2 * heads * d;
    p.k_stride = p.v_stride = kv_heads * d;
    p.gated = true;
    p.q_norm = p.k_norm = norm.data();
    p.n_rot = 64;
    p.inv_freq = inv_freq.data();
    p.segments = b.p.segments;
    p.rows = rows;
    p.q_heads = heads;
    p.kv_heads = kv_heads;
    p.head_size = d;
    p.q = b.q.data();
    p.kv = b.p.kv;
    const float us = graph_us([&](cudaStream_t s) {
      const Status launched = cuda::launch_attention_prepare(s, p);
      QUIRE_CHECK(launched.ok(), "{}", launched.error().message);
    });
    const double bytes =
        2.0 * rows * d * (2 * heads + 2 * kv_heads) + static_cast<double>(b.stride) / kBlockTokens * rows;
    std::printf("prepare  %s %2d/%d heads of %3d, %d rows: %7.1f us, %5.2f TB/s, %3.0f%% of copies\n", name(format),
                heads, kv_heads, d, rows, static_cast<double>(us), bytes / static_cast<double>(us) * 1e-6,
                100 * bytes / static_cast<double>(us) * 1e6 / limits().copy);
  }
}

}  // namespace
}  // namespace quire::cuda_test
