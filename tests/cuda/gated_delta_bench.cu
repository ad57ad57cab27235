// cuda_checks --bench: the gated delta net and the norms at the shapes of Qwen3.5-35B-A3B (16 key heads, 32
// value heads of 128). Every line says the bytes that the contract needs, and the share of what this run's
// device-to-device copy reaches.
#include "cuda/support.h"
#include "ops/gated_delta/cuda/chunked.h"
#include "ops/gated_delta/cuda/decode.h"
#include "ops/gated_delta/cuda/prepare.h"
#include "ops/norm/cuda/norm.h"

namespace quire::cuda_test {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kHk = 16, kHv = 32, kD = 128, kC = (2 * kHk + kHv) * kD, kW = 20, kRing = 8;

__global__ void fill(float* x, size_t n, float lo, float hi) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    x[i] = lo + (hi - lo) * (static_cast<float>(h) / 4294967296.0f);
  }
}
__global__ void fill(bf16* x, size_t n, float lo, float hi) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u;
    h ^= h >> 15, h *= 2246822519u, h ^= h >> 13;
    x[i] = __float2bfloat16(lo + (hi - lo) * (static_cast<float>(h) / 4294967296.0f));
  }
}
template <class T>
DeviceBuffer<T> random_buffer(size_t n, float lo, float hi) {
  DeviceBuffer<T> b(n);
  fill<<<1024, 256>>>(b.data(), n, lo, hi);
  must(cudaDeviceSynchronize(), "fill");
  return b;
}

double copy_bandwidth() {
  static const double value = [] {
    const size_t bytes = size_t{1} << 30;
    DeviceBuffer<unsigned char> from(bytes), to(bytes);
    const float ms =
        median_ms([&] { must(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice), "copy"); }, 11);
    const double bandwidth = 2.0 * static_cast<double>(bytes) / (static_cast<double>(ms) * 1e-3);
    std::printf("device-to-device copy: %.2f TB/s, read and written\n", bandwidth * 1e-12);
    return bandwidth;
  }();
  return value;
}

void report(const std::string& name, double us, double bytes, double flops = 0.0, const char* theirs = "") {
  std::printf("%-58s %9.2f us  %8.2f MB  %5.2f TB/s  %3.0f%% of copy", name.c_str(), us, bytes * 1e-6,
              bytes / us * 1e-6, 100.0 * bytes / (us * 1e-6) / copy_bandwidth());
  if (flops > 0.0) std::printf("  %6.1f TFLOP/s", flops / us * 1e-6);
  std::printf("  %s\n", theirs);
  std::fflush(stdout);
}

// Microseconds per launch of a graph of launches, median over replays.
double graph_us(int launches, const std::function<void(cudaStream_t, int)>& launch, int repeats = 15) {
  cudaStream_t stream;
  must(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; ++i) launch(stream, i);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < repeats + 2; ++i) {
    must(cudaEventRecord(begin, stream), "record");
    must(cudaGraphLaunch(exec, stream), "launch");
    must(cudaEventRecord(end, stream), "record");
    must(cudaStreamSynchronize(stream), "synchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 2) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return static_cast<double>(times[times.size() / 2]) * 1e3 / launches;
}

struct Weights {
  DeviceBuffer<float> conv = random_buffer<float>(static_cast<size_t>(kC) * 4, -0.5f, 0.5f);
  DeviceBuffer<float> ssm_a = random_buffer<float>(kHv, -1.5f, -0.5f), dt = random_buffer<float>(kHv, -0.5f, 0.5f);
  DeviceBuffer<float> norm = random_buffer<float>(kD, 0.5f, 1.5f);
  cuda::DeltaWeights views() const { return {conv.data(), ssm_a.data(), dt.data()}; }
};

// Slots of one layer, slot-major.
class Slots {
 public:
  explicit Slots(int slots) : memory_(random_buffer<float>(static_cast<size_t>(slots) * kBytes / 4, -0.1f, 0.1f)) {}
  cuda::DeltaSlots views() const {
    char* p = reinterpret_cast<char*>(memory_.data());
    cuda::DeltaSlots s;
    s.state = {reinterpret_cast<float*>(p), kBytes};
    s.pending_u = {reinterpret_cast<float*>(p + kState), kBytes};
    s.pending_g = {reinterpret_cast<float*>(p + kState + kU), kBytes};
    s.pending_k = {reinterpret_cast<bf16*>(p + kState + kU + kG), kBytes};
    s.conv = {reinterpret_cast<bf16*>(p + kState + kU + kG + kK), kBytes};
    s.pending = kW;
    s.ring = kRing;
    return s;
  }

 private:
  static constexpr int64_t kState = int64_t{kHv} * kD * kD * 4, kU = int64_t{kW} * kHv * kD * 4, kG = kW * kHv * 4,
                           kK = kW * kHk * kD * 2, kBytes = kState + kU + kG + kK + kRing * kC * 2;
  DeviceBuffer<float> memory_;
};

// Sequences with evenly spread numbers of pending tokens: each step 1 of 16 writes its state.
void bench_decode(const Weights& w, const Slots& slots, int sequences, int rows, bool fused, const char* fla,
                  int phases = 16) {
  constexpr int kSlots = 256;
  const int launches = std::max(1, kSlots / sequences);
  std::vector<Segment> segments;
  double bytes = 0.0;
  for (int i = 0; i < launches * sequences; ++i) {
    const int position = 1024 + i * 5 % 16 % phases, end = position + rows;
    segments.push_back({i % sequences * rows, rows, position, i % kSlots, 1024, 0});
    const double state = kHv * kD * kD * 4.0, pending = kHv * (kD * 4.0 + 4) + kHk * kD * 2.0;
    bytes += state * (1 + (end / 16 > 64)) + pending * (position - 1024 + rows);
    bytes += rows * (kC * 2.0 * 2 + kHv * kD * 4.0) + kC * 2.0 * 3;  // qkv read, ring written and read, z, y
  }
  const DeviceBuffer<Segment> d_segments(segments);
  const auto n = static_cast<size_t>(sequences) * static_cast<size_t>(rows);
  const auto qkv = random_buffer<bf16>(n * kC, -2.0f, 2.0f), z = random_buffer<bf16>(n * kHv * kD, -2.0f, 2.0f);
  const auto ab = random_buffer<bf16>(n * kHv * 2, -2.0f, 2.0f);
  const DeviceBuffer<bf16> y(n * kHv * kD);
  cuda::GdnDecodeParams p;
  p.shape = {kHk, kHv, false};
  p.weights = w.views();
  p.slots = slots.views();
  p.qkv = qkv.data(), p.qkv_stride = kC;
  p.a = {ab.data(), 2 * kHv, true}, p.b = {ab.data() + kHv, 2 * kHv, true};
  p.z = z.data(), p.z_stride = kHv * kD;
  p.norm_weight = fused ? w.norm.data() : nullptr;
  p.y = y.data(), p.y_stride = kHv * kD;
  const double us = graph_us(launches, [&](cudaStream_t stream, int i) {
    p.segments = {d_segments.data() + static_cast<int64_t>(i) * sequences, sequences, sequences};
    const Status s = cuda::launch_gdn_decode(stream, p);
    QUIRE_CHECK(s.ok(), "{}", s.error().message);
  });
  report(fmt::format("gdn_decode {} x {} rows{}", sequences, rows, fused ? ", with norm" : ""), us, bytes / launches,
         0.0, fla);
}

TEST(GdnBench, Decode) {
  copy_bandwidth();
  const Weights w;
  const Slots slots(256);
  struct Case {
    int sequences;
    const char* fla;
  };
  for (const Case& c :
       {Case{1, ""}, Case{2, ""}, Case{4, ""}, Case{8, "(FLA, without conv and norm: 21 us)"}, Case{16, ""},
        Case{32, "(FLA: 62 us)"}, Case{64, ""}, Case{128, "(FLA: 224 us)"}, Case{256, "(FLA: 441 us)"}}) {
    bench_decode(w, slots, c.sequences, 1, true, c.fla);
    if (c.sequences >= 32) bench_decode(w, slots, c.sequences, 1, false, c.fla);
  }
  for (const int sequences : {1, 32, 128}) bench_decode(w, slots, sequences, 4, true, "");
  bench_decode(w, slots, 32, 1, true, "(no state is written)", 15);
}

TEST(GdnBench, Prepare) {
  const Weights w;
  const Slots slots(16);
  for (const int rows : {512, 2048, 8192}) {
    const std::vector<Segment> segments = {{0, rows / 2, 0, 1, 0, 0}, {rows / 2, rows / 2, 0, 2, 0, 0}};
    const DeviceBuffer<Segment> d_segments(segments);
    const auto n = static_cast<size_t>(rows);
    const auto qkv = random_buffer<bf16>(n * kC, -2.0f, 2.0f), ab = random_buffer<bf16>(n * kHv * 2, -2.0f, 2.0f);
    const DeviceBuffer<bf16> q(n * kHk * kD), k(n * kHk * kD), v(n * kHv * kD);
    const DeviceBuffer<float> g(n * kHv), beta(n * kHv);
    cuda::GdnPrepareParams p;
    p.shape = {kHk, kHv, false};
    p.weights = w.views();
    p.slots = slots.views();
    p.segments = {d_segments.data(), 2, 0};
    p.prompt_rows = rows;
    p.qkv = qkv.data(), p.qkv_stride = kC;
    p.a = {ab.data(), 2 * kHv, true}, p.b = {ab.data() + kHv, 2 * kHv, true};
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.g = g.data(), p.beta = beta.data();
    const double us = graph_us(10, [&](cudaStream_t stream, int) {
      const Status s = cuda::launch_gdn_prepare(stream, p);
      QUIRE_CHECK(s.ok(), "{}", s.error().message);
    });
    report(fmt::format("gdn_prepare {} rows", rows), us, static_cast<double>(rows) * (kC * 4.0 + kHv * 12.0));
  }
}

// `lengths` sequences' prompts; bytes are q, k, v, g, beta read and out written once, and the states.
void bench_chunked(const Slots& slots, const std::vector<int>& lengths, int slab, const char* theirs) {
  std::vector<Segment> segments;
  int rows = 0;
  for (const int n : lengths) {
    segments.push_back({rows, n, 0, static_cast<int>(segments.size()), 0, 0});
    rows += n;
  }
  const DeviceBuffer<Segment> d_segments(segments);
  const auto n = static_cast<size_t>(rows);
  const auto q = random_buffer<bf16>(n * kHk * kD, -0.15f, 0.15f), k = random_buffer<bf16>(n * kHk * kD, -0.15f, 0.15f);
  const auto v = random_buffer<bf16>(n * kHv * kD, -1.0f, 1.0f);
  const auto g = random_buffer<float>(n * kHv, -0.2f, 0.0f), beta = random_buffer<float>(n * kHv, 0.0f, 1.0f);
  const DeviceBuffer<bf16> out(n * kHv * kD);
  cuda::GdnChunkedParams p;
  p.shape = {kHk, kHv, false};
  const auto prompts = static_cast<int>(segments.size());
  const DeviceBuffer<unsigned char> workspace(
      static_cast<size_t>(cuda::gdn_chunked_workspace_bytes(p.shape, rows, prompts)));
  p.slots = slots.views();
  p.segments = {d_segments.data(), prompts, 0};
  p.prompt_rows = rows;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.g = g.data(), p.beta = beta.data();
  p.out = out.data();
  p.slab = slab;
  p.workspace = workspace.data();
  const double us = graph_us(4, [&](cudaStream_t stream, int) {
    const Status s = cuda::launch_gdn_chunked(stream, p);
    QUIRE_CHECK(s.ok(), "{}", s.error().message);
  });
  const double bytes =
      static_cast<double>(rows) * (2 * kHk * kD * 2.0 + kHv * kD * 4.0 + kHv * 8.0) + prompts * kHv * 65536.0;
  report(fmt::format("gdn_chunked {} x {}, slab {}", prompts, lengths[0], slab), us, bytes,
         static_cast<double>(rows) * kHv * 182720.0, theirs);
}

TEST(GdnBench, Chunked) {
  const Slots slots(32);
  for (const int slab : {64, 32, 0}) {
    bench_chunked(slots, {512}, slab, "");
    bench_chunked(slots, {2048}, slab, "");
    bench_chunked(slots, {8192}, slab, "(FLA: 670 us)");
    bench_chunked(slots, std::vector<int>(4, 2048), slab, "(FLA: 670 us)");
    bench_chunked(slots, std::vector<int>(16, 512), slab, "");
    bench_chunked(slots, {32768}, slab, "(FLA: 2590 us)");
  }
}

TEST(NormBench, Rows) {
  const Weights w;
  for (const int rows : {1, 32, 2048, 8192}) {
    const auto n = static_cast<size_t>(rows);
    const int64_t D = 2048, Y = kHv * kD;
    const auto x = random_buffer<float>(n * D, -1.0f, 1.0f), weight = random_buffer<float>(D, 0.5f, 1.5f);
    const auto add = random_buffer<bf16>(n * D, -1.0f, 1.0f), o = random_buffer<bf16>(n * Y, -1.0f, 1.0f);
    const auto z = random_buffer<bf16>(n * Y, -1.0f, 1.0f);
    const DeviceBuffer<bf16> h(n * D), y(n * Y);
    const double us = graph_us(20, [&](cudaStream_t stream, int) {
      const Status s = cuda::launch_add_rms_norm(
          stream, {rows, D, x.data(), D, add.data(), true, D, weight.data(), 1e-6f, h.data(), true, D});
      QUIRE_CHECK(s.ok(), "{}", s.error().message);
    });
    report(fmt::format("add_rms_norm {} x {}", rows, D), us, static_cast<double>(n) * D * 12.0);
    const double gated = graph_us(20, [&](cudaStream_t stream, int) {
      const Status s = cuda::launch_gated_rms_norm(
          stream, {rows, kHv, true, o.data(), Y, z.data(), Y, w.norm.data(), 1e-6f, y.data(), Y});
      QUIRE_CHECK(s.ok(), "{}", s.error().message);
    });
    report(fmt::format("gated_rms_norm {} x {} x 128", rows, kHv), gated, static_cast<double>(n) * Y * 6.0);
  }
}

}  // namespace
}  // namespace quire::cuda_test
