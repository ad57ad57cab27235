// Operators of vision towers on the GPU, and a tower of large blocks: microseconds, bytes, FLOPs.
#include <cmath>
#include <cstdio>

#include "cuda/vision_support.h"
#include "ops/gelu/gelu.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/mix_rows/mix_rows.h"
#include "ops/vision_attention/vision_attention.h"

namespace quire::cuda_test {
namespace {

using device_bf16 = __nv_bfloat16;

std::vector<device_bf16> random_bf16(int64_t n) {
  std::mt19937 rng(3);
  std::vector<device_bf16> x(static_cast<size_t>(n));
  for (device_bf16& v : x) v = __float2bfloat16(static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-31f);
  return x;
}
std::vector<float> random_f32(int64_t n) {
  std::mt19937 rng(4);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-31f;
  return x;
}
template <class T>
Tensor view(const DeviceBuffer<T>& b, std::initializer_list<int64_t> shape) {
  constexpr DType kType = sizeof(T) == 2 ? DType::kBF16 : std::is_integral_v<T> ? DType::kI32 : DType::kF32;
  return make_tensor(b.data(), kType, shape);
}

class VisionBench : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(context_.create().ok());
    const auto limits = cuda::device_limits();
    ASSERT_TRUE(limits.ok());
    machine_ = {.device = Device::kCuda, .gpu = *limits};
  }

  // Ten calls in a row, for what a launch costs beside the kernel.
  template <class Args>
  void measure(const std::string& what, const Operator<Args>& op, const Args& a) {
    DeviceBuffer<char> memory(size_t{1} << 28);
    Workspace workspace = Workspace::over({reinterpret_cast<std::byte*>(memory.data()), memory.size()});
    const OpContext ctx{.pool = pool_, .workspace = workspace, .machine = machine_, .gpu = &context_};
    constexpr int kCalls = 10;
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int i = 0; i < 9; ++i) {
      must(cudaEventRecord(begin, context_.stream), "record");
      for (int call = 0; call < kCalls; ++call) dispatch(op, ctx, a);
      must(cudaEventRecord(end, context_.stream), "record");
      must(cudaEventSynchronize(end), "synchronize");
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      times.push_back(ms * 1e3f / kCalls);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    ASSERT_TRUE(context_.status.ok()) << context_.status.error().message;
    std::sort(times.begin(), times.end());
    const double us = static_cast<double>(times[times.size() / 2]);
    const Traffic traffic = op.traffic(a);
    std::printf("%-44s %9.1f us  %6.2f TB/s  %7.1f TFLOP/s\n", what.c_str(), us,
                static_cast<double>(traffic.bytes) / us * 1e-6, static_cast<double>(traffic.flops) / us * 1e-6);
    std::fflush(stdout);
  }

  ThreadPool pool_{1};
  cuda::Context context_;
  Machine machine_;
};

TEST_F(VisionBench, Attention) {
  struct Case {
    int d, side, images;
  };
  for (const auto& [d, side, images] : {Case{72, 16, 1}, Case{72, 64, 1}, Case{72, 128, 1}, Case{72, 16, 16},
                                        Case{64, 64, 1}, Case{80, 64, 1}, Case{128, 64, 1}}) {
    constexpr int64_t kHeads = 16;
    const int64_t each = int64_t{side} * side, rows = each * images, width = kHeads * d;
    const DeviceBuffer<device_bf16> qkv(random_bf16(rows * 3 * width)), out(static_cast<size_t>(rows * width));
    std::vector<int32_t> places;
    std::vector<RowSpan> spans;
    for (int i = 0; i < images; ++i) {
      spans.push_back({static_cast<int32_t>(i * each), static_cast<int32_t>(each)});
      for (int32_t p = 0; p < each; ++p) places.insert(places.end(), {p / side, p % side});
    }
    const DeviceBuffer<int32_t> positions(places);
    const DeviceBuffer<RowSpan> on_device(spans);
    const DeviceBuffer<float> inv_freq(std::vector<float>(static_cast<size_t>(d / 4), 0.1f));
    const auto part = [&](int64_t which) {
      Tensor t = view(qkv, {rows, 3 * width}).cols(which * width, width);
      t.rank = 3;
      t.shape = {rows, kHeads, d};
      t.stride = {3 * width, d, 1};
      return t;
    };
    VisionAttentionArgs a;
    a.q = part(0), a.k = part(1), a.v = part(2);
    a.rotation = {view(positions, {rows, 2}), view(inv_freq, {d / 4}), side};
    a.spans = {on_device.data(), images, static_cast<int32_t>(each), images * each * each};
    a.scale = 1.0f / std::sqrt(static_cast<float>(d));
    a.out = view(out, {rows, width});
    const std::string what = fmt::format("vision_attention d={} {} of {}x{}", d, images, side, side);
    measure(what, kVisionAttentionOp, a);
    a.rotation = {};
    measure(what + " not rotated", kVisionAttentionOp, a);
  }
}

TEST_F(VisionBench, Rows) {
  for (const int64_t rows : {16, 4096, 65536}) {
    constexpr int64_t kWidth = 1152, kInner = 4304;
    const DeviceBuffer<float> x(random_f32(rows * kWidth)), vector(random_f32(kWidth)),
        table(random_f32(2304 * kWidth));
    const DeviceBuffer<device_bf16> h(static_cast<size_t>(rows * kWidth));
    measure(
        fmt::format("layer_norm {} x {}", rows, kWidth), kLayerNormOp,
        {view(x, {rows, kWidth}), {}, view(vector, {kWidth}), view(vector, {kWidth}), 1e-6f, view(h, {rows, kWidth})});
    const DeviceBuffer<device_bf16> inner(random_bf16(rows * kInner)), activated(static_cast<size_t>(rows * kInner));
    for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf})
      measure(fmt::format("gelu {} {} x {}", form == GeluForm::kErf ? "erf" : "tanh", rows, kInner), kGeluOp,
              {view(inner, {rows, kInner}), view(activated, {rows, kInner}), form});
    std::vector<int32_t> from(static_cast<size_t>(rows * 4));
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int32_t>(i % 2304);
    const DeviceBuffer<int32_t> which(from);
    const DeviceBuffer<float> weights(random_f32(rows * 4)), mixed(random_f32(rows * kWidth));
    measure(fmt::format("mix_rows {} x 4 x {}", rows, kWidth), kMixRowsOp,
            {view(which, {rows, 4}), view(weights, {rows, 4}), view(table, {2304, kWidth}), view(mixed, {rows, kWidth}),
             true});
  }
}

// What a pass takes.
double pass_ms(const test::TinyTower& t, DType type) {
  const test::TowerFolder folder(t, type);
  const test::OpenTower open(convert::open_vision(folder.folder.path()));
  QUIRE_CHECK(open.error.empty(), "{}", open.error);
  GpuTower gpu(*open);
  GpuTower::Batch batch = gpu.upload(test::TowerInput(t));
  cudaEvent_t begin, end;
  must(cudaEventCreate(&begin), "event");
  must(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    must(cudaEventRecord(begin, gpu.stream()), "record");
    gpu.compute(batch);
    must(cudaEventRecord(end, gpu.stream()), "record");
    must(cudaEventSynchronize(end), "synchronize");
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

// Of the products and the attention of a pass.
double pass_tflop(const test::TinyTower& t, int64_t blocks) {
  const auto patches = static_cast<double>(t.patch_count()), width = static_cast<double>(t.width);
  const double merged = width * static_cast<double>(t.merge * t.merge), tokens = patches * width / merged;
  const double products = patches * (4 * width * width + 2 * width * static_cast<double>(t.ffn));
  const double attention = 2 * patches * patches * width;
  const double ends =
      patches * static_cast<double>(t.patch_width()) * width + tokens * merged * (merged + static_cast<double>(t.out));
  return 2e-12 * (static_cast<double>(blocks) * (products + attention) + ends);
}

// Blocks of the largest towers, and what stands before and behind them; and all 27 blocks beside what their products
// take at the least: an H100's or H200's tensor cores do 989 TFLOP a second in bf16.
TEST(VisionTowerBench, Pass) {
  constexpr int64_t kBlocks = 27;
  constexpr double kPeak = 989;
  test::TinyTower t = test::tiny_tower("vision-qwen35");
  t.width = 1152, t.heads = 16, t.ffn = 4304, t.positions = 2304, t.out = 2048;
  for (const DType type : {DType::kBF16, DType::kF16})
    for (const int64_t side : {16, 64}) {
      t.grids = {{1, side, side}};
      t.blocks = 1;
      const double one = pass_ms(t, type);
      t.blocks = 3;
      const double block = (pass_ms(t, type) - one) / 2;
      std::printf("tower of 1152, %s, %d x %d patches: %.3f ms with one block, %.3f ms for each more\n",
                  std::string(dtype_name(type)).c_str(), static_cast<int>(side), static_cast<int>(side), one, block);
      const double all = one + (kBlocks - 1) * block, tflop = pass_tflop(t, kBlocks);
      std::printf("  all %d blocks: %.2f ms, %.0f TFLOP/s, %.0f pictures a second; %.2f ms at %.0f TFLOP/s\n",
                  static_cast<int>(kBlocks), all, tflop / all * 1e3, 1e3 / all, tflop / kPeak * 1e3, kPeak);
    }
}

}  // namespace
}  // namespace quire::cuda_test
