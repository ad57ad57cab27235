// The norms on the GPU against float64, and rows bit for bit alone and in batches.
#include <cmath>

#include "cuda/support.h"
#include "ops/norm/cuda/norm.h"

namespace quire::cuda_test {
namespace {

using bf16 = __nv_bfloat16;

template <class T>
T convert(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16(x);
  else
    return x;
}
template <class T>
double value(T x) {
  return static_cast<double>(static_cast<float>(x));
}
template <class T>
constexpr double rounding() {
  return std::is_same_v<T, bf16> ? 1.0 / 256 : 1.0 / (1 << 24);
}

template <class T>
std::vector<T> normal(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0.0f, scale);
  std::vector<T> x(n);
  for (T& f : x) f = convert<T>(dist(rng));
  return x;
}

struct AddCase {
  int64_t rows, D;
  float scale;
};

template <class Add, class H>
void check_add(const AddCase& c, bool with_add) {
  const int64_t pitch = c.D % 4 == 0 ? c.D + 4 : c.D + 1;  // columns of a wider matrix
  const auto n = static_cast<size_t>(c.rows * pitch);
  const std::vector<float> x = normal<float>(n, 1, c.scale), w = normal<float>(static_cast<size_t>(c.D), 2);
  const std::vector<Add> add = normal<Add>(n, 3, c.scale);
  const auto run = [&](int64_t first, int64_t rows, std::vector<float>* x_out) {
    const DeviceBuffer<float> d_x(std::vector<float>(x.begin() + first * pitch, x.begin() + (first + rows) * pitch)),
        d_w(w);
    const DeviceBuffer<Add> d_add(std::vector<Add>(add.begin() + first * pitch, add.begin() + (first + rows) * pitch));
    const DeviceBuffer<H> h(static_cast<size_t>(rows * pitch));
    const Status status = cuda::launch_add_rms_norm(
        nullptr, {rows, c.D, d_x.data(), pitch, with_add ? d_add.data() : nullptr, std::is_same_v<Add, bf16>, pitch,
                  d_w.data(), 1e-6f, h.data(), std::is_same_v<H, bf16>, pitch});
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    must(cudaDeviceSynchronize(), "add_rms_norm");
    EXPECT_TRUE(h.guards_intact() && d_x.guards_intact());
    if (x_out != nullptr) *x_out = d_x.download();
    return h.download();
  };
  std::vector<float> sums;
  const std::vector<H> h = run(0, c.rows, &sums);
  double worst = 0.0;
  for (int64_t t = 0; t < c.rows; ++t) {
    double sum = 0.0;
    for (int64_t i = 0; i < pitch; ++i) {
      const auto at = static_cast<size_t>(t * pitch + i);
      const float want = with_add && i < c.D ? x[at] + static_cast<float>(value(add[at])) : x[at];
      ASSERT_EQ(sums[at], want) << "x, row " << t << ", column " << i;
      if (i < c.D) sum += value(want) * value(want);
      if (i >= c.D) ASSERT_TRUE(std::isnan(value(h[at]))) << "h beyond its columns";
    }
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(c.D) + 1e-6);
    for (int64_t i = 0; i < c.D; ++i) {
      const auto at = static_cast<size_t>(t * pitch + i);
      const double want = value(sums[at]) * scale * value(w[static_cast<size_t>(i)]);
      const double excess = std::abs(value(h[at]) - want) / ((1.01 * rounding<H>() + 2e-6) * std::abs(want) + 1e-30);
      worst = std::isnan(excess) ? 1e30 : std::max(worst, excess);
    }
  }
  EXPECT_LE(worst, 1.0) << c.rows << " rows of " << c.D;
  const std::vector<H> last = run(c.rows - 1, 1, nullptr);
  EXPECT_EQ(0, std::memcmp(last.data(), h.data() + (c.rows - 1) * pitch, static_cast<size_t>(c.D) * sizeof(H)));
}

TEST(AddRmsNorm, MatchesFloat64) {
  for (const AddCase& c : {AddCase{1, 2048, 1.0f}, AddCase{5, 2560, 1.0f}, AddCase{3, 5120, 1e4f},
                           AddCase{2, 8192, 1e-4f}, AddCase{2, 32768, 1.0f}, AddCase{7, 256, 1.0f}, AddCase{4, 4, 1.0f},
                           AddCase{3, 1, 1.0f}, AddCase{3, 333, 1.0f}, AddCase{2, 8191, 1.0f}}) {
    check_add<bf16, bf16>(c, true);
    check_add<float, float>(c, true);
    check_add<float, bf16>(c, true);
    check_add<bf16, float>(c, false);
  }
}

TEST(AddRmsNorm, TakesNoRows) {
  EXPECT_TRUE(cuda::launch_add_rms_norm(nullptr, {}).ok());
}

template <class T>
void check_gated(int64_t rows, int32_t Hv, bool in_place) {
  const int64_t pitch = Hv * 128 + 8;
  const auto n = static_cast<size_t>(rows * pitch);
  const std::vector<T> o = normal<T>(n, 1), z = normal<T>(n, 2, 3.0f);
  const std::vector<float> w = normal<float>(128, 3);
  const DeviceBuffer<T> d_o(o), d_z(z), d_y(n);
  const DeviceBuffer<float> d_w(w);
  const DeviceBuffer<T>& y = in_place ? d_o : d_y;
  const Status status = cuda::launch_gated_rms_norm(nullptr, {rows, Hv, std::is_same_v<T, bf16>, d_o.data(), pitch,
                                                              d_z.data(), pitch, d_w.data(), 1e-6f, y.data(), pitch});
  ASSERT_TRUE(status.ok()) << status.error().message;
  must(cudaDeviceSynchronize(), "gated_rms_norm");
  EXPECT_TRUE(y.guards_intact());
  const std::vector<T> got = y.download();
  double worst = 0.0;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t h = 0; h < Hv; ++h) {
      const auto base = static_cast<size_t>(t * pitch + h * 128);
      double sum = 0.0;
      for (size_t i = 0; i < 128; ++i) sum += value(o[base + i]) * value(o[base + i]);
      for (size_t i = 0; i < 128; ++i) {
        const double gate = value(z[base + i]);
        const double want =
            value(o[base + i]) / std::sqrt(sum / 128 + 1e-6) * value(w[i]) * gate / (1.0 + std::exp(-gate));
        const double excess =
            std::abs(value(got[base + i]) - want) / ((1.01 * rounding<T>() + 2e-6) * std::abs(want) + 1e-30);
        worst = std::isnan(excess) ? 1e30 : std::max(worst, excess);
      }
    }
  EXPECT_LE(worst, 1.0) << rows << " rows of " << Hv << " heads";
}

TEST(GatedRmsNorm, MatchesFloat64) {
  for (const int64_t rows : {1, 2, 33})
    for (const int32_t Hv : {1, 3, 32})
      for (const bool in_place : {false, true}) {
        check_gated<bf16>(rows, Hv, in_place);
        check_gated<float>(rows, Hv, in_place);
      }
}

}  // namespace
}  // namespace quire::cuda_test
