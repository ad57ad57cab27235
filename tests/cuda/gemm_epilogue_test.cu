// What becomes of sums, bit for bit: several gates at once as one alone, and as division rounds; and long walks over
// tiles, where one warpgroup multiplies while the other stores.
#include <bit>
#include <limits>

#include "cuda/gemm_support.h"
#include "ops/gemm/cuda/problem.cuh"

namespace quire::cuda_test {
namespace {

using gemm::Out;
using gemm::Path;

// Counts the numbers from `first` on whose reciprocal is not the rounded one.
__global__ void compare_reciprocals(uint32_t first, uint32_t count, unsigned long long* differ) {
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < count; i += uint64_t{gridDim.x} * blockDim.x) {
    const float y = __uint_as_float(first + static_cast<uint32_t>(i));
    if (__float_as_uint(gemm::reciprocal_from_one(y)) != __float_as_uint(__frcp_rn(y))) atomicAdd(differ, 1ull);
  }
}

TEST(GemmEpilogue, ReciprocalsAreRoundedOnes) {
  const DeviceBuffer<unsigned long long> differ(std::vector<unsigned long long>{0});
  const auto bits = [](float v) { return std::bit_cast<uint32_t>(v); };
  compare_reciprocals<<<1024, 256>>>(bits(1.0f), bits(gemm::kMostReciprocal) - bits(1.0f) + 1,
                                     const_cast<unsigned long long*>(differ.data()));
  must(cudaGetLastError(), "comparing reciprocals");
  must(cudaDeviceSynchronize(), "comparing reciprocals");
  EXPECT_EQ(differ.download()[0], 0u);
}

// Eight values at once, and each alone.
__global__ void gate_kernel(GateActivation activation, const float* gates, const float* ups, int count, float* together,
                            float* alone) {
  const int first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (first + 8 > count) return;
  float gate[8], up[8];
  for (int i = 0; i < 8; ++i) {
    gate[i] = gates[first + i];
    up[i] = ups[first + i];
    alone[first + i] = gemm::gated(activation, gate[i], up[i]);
  }
  gemm::gate_all(activation, gate, up);
  for (int i = 0; i < 8; ++i) together[first + i] = gate[i];
}

TEST(GemmEpilogue, GatesTogetherAsAlone) {
  std::mt19937_64 rng(31);
  std::vector<float> gates, ups;
  const auto add = [&](float g, float u) {
    gates.push_back(g);
    ups.push_back(u);
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float extremes[] = {0.0f,
                            -0.0f,
                            1.0f,
                            -1.0f,
                            7.0f,
                            7.5f,
                            -7.5f,
                            80.0f,
                            -80.0f,
                            -86.0f,
                            -86.7f,
                            -87.4f,
                            -88.5f,
                            -89.0f,
                            -104.0f,
                            -1e30f,
                            -3e38f,
                            3e38f,
                            1e-40f,
                            -1e-40f,
                            kInfinity,
                            -kInfinity,
                            std::numeric_limits<float>::quiet_NaN()};
  for (const float g : extremes)
    for (const float u : extremes) add(g, u);
  for (const float scale : {1.0f, 30.0f, 100.0f})
    for (int i = 0; i < 4096; ++i) add(random_floats(rng, 1, scale)[0], random_floats(rng, 1, scale)[0]);
  while (gates.size() % 8 != 0) add(0.5f, 0.5f);
  const auto count = static_cast<int>(gates.size());
  const DeviceBuffer<float> dg(gates), du(ups);
  for (const GateActivation activation :
       {GateActivation::kSilu, GateActivation::kGeluTanh, GateActivation::kSwigluOai}) {
    DeviceBuffer<float> together(gates.size()), alone(gates.size());
    gate_kernel<<<(count / 8 + 127) / 128, 128>>>(activation, dg.data(), du.data(), count, together.data(),
                                                  alone.data());
    must(cudaGetLastError(), "gating");
    must(cudaDeviceSynchronize(), "gating");
    const auto got = together.download(), want = alone.download();
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << gates[i] << ", " << ups[i];
      if (!std::isnan(want[i])) EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]));
      // As far as the exponential is a normal number.
      const double exact = gated(activation, static_cast<double>(gates[i]), static_cast<double>(ups[i]));
      if (std::fabs(gates[i]) <= 20 && std::fabs(exact) > 1e-30 && std::fabs(exact) < 1e30)
        EXPECT_NEAR(static_cast<double>(want[i]) / exact, 1.0, 1e-4) << gates[i] << ", " << ups[i];
    }
  }
}

// y of a product by one path; [rows, outputs] as bytes.
std::vector<std::byte> product_by(const DeviceWeight& w, const DeviceBuffer<bf16>& x, int32_t rows, Out out, Path path,
                                  int32_t tile_rows) {
  const size_t bytes = static_cast<size_t>(rows) * w.weight.rows * (out == Out::kBf16 ? 2 : 4);
  DeviceBuffer<std::byte> y(bytes);
  must(cudaMemset(y.data(), 0x3c, bytes), "what is added to");
  gemm::Product p(device_bf16(x), w.weight.cols, rows);
  p.add(w.weight, {.y = y.data(), .y_stride = w.weight.rows, .out = out});
  p.path = path;
  p.tile_rows = tile_rows;
  must_succeed(launch_gemm(nullptr, p));
  must(cudaDeviceSynchronize(), "multiplying");
  EXPECT_TRUE(y.guards_intact());
  return y.download();
}

// Each block of threads has several wide tiles: warpgroups are apart, and what is added to is fetched ahead.
TEST(GemmEpilogue, ManyWideTilesGiveTheBitsOfStreams) {
  std::mt19937_64 rng(32);
  constexpr int32_t kRows = 300, kOutputs = 26000;
  struct Case {
    int32_t cols, k_slice;
  };
  for (const DType type : {DType::kNVFP4, DType::kBF16, DType::kMXFP4, DType::kFP8})
    for (const Case c : {Case{768, 768}, {1280, 256}, {128, 128}})
      for (const bool paired : {false, true}) {
        HostMatrix m(rng, type, 1000, c.cols);
        const std::vector<std::byte> once = m.bytes;
        for (m.rows = 1000; m.rows < kOutputs; m.rows += 1000) m.bytes.insert(m.bytes.end(), once.begin(), once.end());
        const DeviceWeight w(m, paired ? &m : nullptr, c.k_slice);
        const DeviceBuffer<bf16> x(random_bf16(rng, static_cast<size_t>(kRows) * c.cols));
        for (const Out out : {Out::kBf16, Out::kF32, Out::kAddF32}) {
          if (paired && out != Out::kBf16) continue;
          const auto want = product_by(w, x, kRows, out, Path::kStream, 0);
          for (const int32_t tile : {192, 256})
            EXPECT_TRUE(want == product_by(w, x, kRows, out, Path::kTile, tile))
                << dtype_name(type) << " " << c.cols << " K slice " << c.k_slice << (paired ? " paired" : "") << " to "
                << static_cast<int>(out) << ", tiles of " << tile;
        }
      }
}

}  // namespace
}  // namespace quire::cuda_test
