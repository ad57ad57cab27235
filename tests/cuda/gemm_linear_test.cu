// linear and swiglu_mlp on packed weights: errors against float64, and the same bits for a row whatever else is
// computed.
#include "cuda/gemm_support.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"

namespace quire::cuda_test {
namespace {

using gemm::Out;
using gemm::Path;

constexpr DType kFormats[] = {DType::kBF16, DType::kNVFP4, DType::kQ8_0, DType::kMXFP4, DType::kQ4_K,
                              DType::kQ6_K, DType::kF32,   DType::kF16,  DType::kFP8};

constexpr int32_t kMostSwept = 32;

// One product to float32: rows x weight.rows, rows of y `stride` apart.
std::vector<float> multiply(const DeviceWeight& w, const DeviceBuffer<bf16>& x, int32_t first, int32_t rows, Path path,
                            int32_t tile_rows = 0) {
  DeviceBuffer<float> y(static_cast<size_t>(rows) * w.weight.rows);
  gemm::Product p(device_bf16(x) + static_cast<int64_t>(first) * w.weight.cols, w.weight.cols, rows);
  p.add(w.weight, {.y = y.data(), .y_stride = w.weight.rows, .out = Out::kF32});
  p.path = path;
  p.tile_rows = tile_rows;
  p.room = true;
  DeviceBuffer<float> sums(static_cast<size_t>(sliced_floats(p, device_limits())));
  p.sums = sums.data();
  must_succeed(launch_gemm(nullptr, p));
  must(cudaDeviceSynchronize(), "multiplying");
  EXPECT_TRUE(y.guards_intact() && sums.guards_intact());
  return y.download();
}

// |got - exact| as a multiple of what it may be.
double worst_error(const HostMatrix& m, const std::vector<bf16>& x, const std::vector<float>& got, int32_t rows) {
  double worst = 0;
  for (int32_t t = 0; t<rows; t += rows> 40 ? 7 : 1)
    for (int32_t n = 0; n<m.rows; n += m.rows> 100 ? 3 : 1) {
      const Exact e = exact_dot(m.row(0, n), x.data() + static_cast<size_t>(t) * m.cols, m.cols);
      const double error = std::fabs(got[static_cast<size_t>(t) * m.rows + n] - e.value);
      const double bound = kSumError * e.magnitude + 0x1p-23 * std::fabs(e.value) + 1e-30;
      worst = std::max(worst, error <= bound ? error / bound : std::isnan(error) ? 1e9 : error / bound);
    }
  return worst;
}

struct Shape {
  int32_t rows, cols, k_slice;
};

TEST(GemmLinear, ErrorsAgainstFloat64) {
  std::mt19937_64 rng(11);
  for (const DType type : kFormats)
    for (const Shape s :
         {Shape{1, 256, 0}, Shape{17, 512, 0}, Shape{200, 768, 0}, Shape{72, 4352, 512}, Shape{144, 2304, 2048}}) {
      const HostMatrix m(rng, type, s.rows, s.cols);
      const DeviceWeight w(m, nullptr, s.k_slice);
      for (const int32_t rows : {1, 3, 8, 9, 33, 70, 300}) {
        const auto x = random_bf16(rng, static_cast<size_t>(rows) * s.cols);
        const DeviceBuffer<bf16> dx(x);
        for (const Path path : {Path::kStream, Path::kSweep, Path::kTile, Path::kSliced, Path::kDealt}) {
          if (path == Path::kSliced && w.weight.k_slices() < 2) continue;
          if (path == Path::kSweep && rows > kMostSwept) continue;
          EXPECT_LE(worst_error(m, x, multiply(w, dx, 0, rows, path), rows), 1.0)
              << dtype_name(type) << " " << s.rows << " x " << s.cols << ", " << rows << " rows, path "
              << static_cast<int>(path);
        }
      }
    }
}

// Columns that end within a tile, for types whose blocks allow it.
TEST(GemmLinear, ColumnsThatEndWithinATile) {
  std::mt19937_64 rng(12);
  for (const auto& [type, cols] : {std::pair{DType::kBF16, 8},
                                   {DType::kBF16, 1032},
                                   {DType::kQ8_0, 96},
                                   {DType::kMXFP4, 1056},
                                   {DType::kF32, 72}}) {
    const HostMatrix m(rng, type, 40, cols);
    const DeviceWeight w(m);
    for (const int32_t rows : {1, 20, 130}) {
      const auto x = random_bf16(rng, static_cast<size_t>(rows) * cols);
      const DeviceBuffer<bf16> dx(x);
      for (const auto& [path, tile_rows] :
           {std::pair{Path::kStream, 0}, {Path::kSweep, 0}, {Path::kTile, 0}, {Path::kTile, 256}, {Path::kDealt, 32}})
        if (path != Path::kSweep || rows <= kMostSwept)
          EXPECT_LE(worst_error(m, x, multiply(w, dx, 0, rows, path, tile_rows), rows), 1.0)
              << dtype_name(type) << " " << cols << ", tiles of " << tile_rows;
    }
  }
}

TEST(GemmLinear, ARowsBitsDependOnThatRowAlone) {
  std::mt19937_64 rng(13);
  for (const DType type : kFormats)
    for (const Shape s : {Shape{200, 1280, 256}, Shape{136, 4096, 2048}, Shape{40, 2048, 2048}}) {
      const HostMatrix m(rng, type, s.rows, s.cols);
      const DeviceWeight w(m, nullptr, s.k_slice);
      constexpr int32_t kMost = 300;
      const auto x = random_bf16(rng, static_cast<size_t>(kMost) * s.cols);
      const DeviceBuffer<bf16> dx(x);
      std::vector<float> alone;
      for (int32_t t = 0; t < kMost; ++t) {
        const auto y = multiply(w, dx, t, 1, Path::kStream);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      const auto expect_same = [&](int32_t first, int32_t rows, Path path, int32_t tile_rows) {
        const auto y = multiply(w, dx, first, rows, path, tile_rows);
        size_t differ = 0;
        for (size_t i = 0; i < y.size(); ++i)
          differ += std::memcmp(&y[i], &alone[static_cast<size_t>(first) * s.rows + i], 4) != 0;
        EXPECT_EQ(differ, 0u) << dtype_name(type) << " " << s.rows << " x " << s.cols << " K slice " << s.k_slice
                              << ": rows [" << first << ", " << first + rows << ") path " << static_cast<int>(path)
                              << " tile " << tile_rows;
      };
      for (const int32_t rows : {2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 128, 300}) {
        expect_same(kMost - rows, rows, Path::kStream, 0);
        expect_same(kMost - rows, rows, Path::kAuto, 0);
        if (rows <= kMostSwept) expect_same(kMost - rows, rows, Path::kSweep, 0);
      }
      for (const int32_t rows : {1, 2, 31, 33, 64, 97, 128, 150, 192, 256, 300})
        for (const int32_t tile : {32, 64, 128, 192, 256}) {
          expect_same(kMost - rows, rows, Path::kTile, tile);
          expect_same(kMost - rows, rows, Path::kDealt, tile);
          if (w.weight.k_slices() > 1) expect_same(kMost - rows, rows, Path::kSliced, tile);
        }
    }
}

// So many rows that each block of threads has several groups of row tiles, and warps hand on their sums.
TEST(GemmLinear, SweepsOverManyRowTilesGiveTheBitsOfStreams) {
  std::mt19937_64 rng(16);
  for (const DType type : {DType::kBF16, DType::kNVFP4, DType::kQ8_0, DType::kQ6_K, DType::kF32})
    for (const Shape s : {Shape{70000, 768, 256}, Shape{40000, 1280, 512}, Shape{36000, 2560, 2048}}) {
      HostMatrix m(rng, type, 1000, s.cols);
      const std::vector<std::byte> once = m.bytes;
      for (m.rows = 1000; m.rows < s.rows; m.rows += 1000) m.bytes.insert(m.bytes.end(), once.begin(), once.end());
      const DeviceWeight w(m, nullptr, s.k_slice);
      const auto x = random_bf16(rng, static_cast<size_t>(kMostSwept) * s.cols);
      const DeviceBuffer<bf16> dx(x);
      for (const int32_t rows : {1, 8, 9, 32})
        EXPECT_TRUE(same_bits(multiply(w, dx, 0, rows, Path::kSweep), multiply(w, dx, 0, rows, Path::kStream)))
            << dtype_name(type) << " " << s.rows << " x " << s.cols << ", " << rows << " rows";
    }
}

// All multiprocessors at work: shares that end within tiles and within K slices, and blocks that wait for each other's
// sums.
TEST(GemmLinear, DealtOutTilesGiveTheBitsOfTilesInTurn) {
  std::mt19937_64 rng(19);
  constexpr int32_t kMost = 300;
  for (const DType type : {DType::kNVFP4, DType::kBF16, DType::kQ8_0})
    for (const Shape s :
         {Shape{36000, 2560, 2048}, Shape{20000, 1344, 512}, Shape{19000, 704, 704}, Shape{5000, 5120, 512}}) {
      HostMatrix m(rng, type, 1000, s.cols);
      const std::vector<std::byte> once = m.bytes;
      for (m.rows = 1000; m.rows < s.rows; m.rows += 1000) m.bytes.insert(m.bytes.end(), once.begin(), once.end());
      const DeviceWeight w(m, nullptr, s.k_slice);
      const DeviceBuffer<bf16> dx(random_bf16(rng, static_cast<size_t>(kMost) * s.cols));
      for (const int32_t rows : {1, 24, 50, 128, 160, kMost}) {
        const auto in_turn = multiply(w, dx, 0, rows, Path::kTile);
        for (const int32_t tile : {0, 32, 64, 128})
          for (const Path path : {Path::kDealt, Path::kSliced, Path::kAuto})
            if (path != Path::kSliced || s.rows < 8192)  // which is as many as are sliced
              EXPECT_TRUE(same_bits(in_turn, multiply(w, dx, 0, rows, path, tile)))
                  << dtype_name(type) << " " << s.rows << " x " << s.cols << ", " << rows << " rows, path "
                  << static_cast<int>(path) << " tile " << tile;
      }
    }
}

// Routers: of any number of rows, with columns that are no whole tiles, and K slices of several sizes.
TEST(GemmLinear, KSlicesApartAddUpToTheSameBits) {
  std::mt19937_64 rng(14);
  constexpr int32_t kExperts = 40;
  struct Case {
    DType type;
    int32_t cols, k_slice, k_slices;
  };
  for (const Case& c : {Case{DType::kF32, 2048, 0, 8}, Case{DType::kF32, 1000, 0, 4}, Case{DType::kBF16, 1544, 512, 4},
                        Case{DType::kF16, 576, 64, 9}, Case{DType::kQ8_0, 608, 0, 3}}) {
    const HostMatrix m(rng, c.type, kExperts, c.cols);
    const DeviceWeight w(m, nullptr, c.k_slice);
    ASSERT_EQ(w.weight.k_slices(), c.k_slices);
    for (const int32_t rows : {1, 8, 9, 31, 33, 64, 100, 128, 129, 300}) {
      const auto x = random_bf16(rng, static_cast<size_t>(rows) * c.cols);
      const DeviceBuffer<bf16> dx(x);
      DeviceBuffer<float> apart(static_cast<size_t>(c.k_slices) * rows * kExperts);
      gemm::Product p(device_bf16(dx), c.cols, rows);
      p.add(w.weight, {.y = apart.data(), .y_stride = kExperts, .out = Out::kF32});
      p.apart = true;
      must_succeed(launch_gemm(nullptr, p));
      must(cudaDeviceSynchronize(), "multiplying");
      EXPECT_TRUE(apart.guards_intact());
      const auto parts = apart.download(), whole = multiply(w, dx, 0, rows, Path::kTile);
      std::vector<float> sum(whole.size(), 0.0f);
      for (int32_t s = 0; s < c.k_slices; ++s)
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += parts[s * sum.size() + i];
      EXPECT_TRUE(same_bits(sum, whole)) << dtype_name(c.type) << " of " << c.cols << " columns, " << rows << " rows";
    }
  }
}

// The sums of a unit's K slices lie in shared memory, which then has no room for 32 rows of tokens.
TEST(GemmLinear, ManyKSlicesFitSharedMemory) {
  std::mt19937_64 rng(18);
  constexpr int32_t kCols = gemm::kMaxKSlices * 64, kRows = 20;
  for (const DType type : {DType::kNVFP4, DType::kF32}) {
    const HostMatrix m(rng, type, 40, kCols);
    const DeviceWeight w(m, nullptr, 64);
    ASSERT_EQ(w.weight.k_slices(), gemm::kMaxKSlices);
    const auto x = random_bf16(rng, static_cast<size_t>(kRows) * kCols);
    const DeviceBuffer<bf16> dx(x);
    const auto streams = multiply(w, dx, 0, kRows, Path::kStream);
    EXPECT_LE(worst_error(m, x, streams, kRows), 1.0) << dtype_name(type);
    EXPECT_TRUE(same_bits(streams, multiply(w, dx, 0, kRows, Path::kTile))) << dtype_name(type);
  }
}

// Several matrices over one input: types, output types, scales, biases and strides of their own, and the residual.
TEST(GemmLinear, PartsAndEpilogues) {
  std::mt19937_64 rng(15);
  constexpr int32_t kCols = 512;
  const HostMatrix q(rng, DType::kNVFP4, 96, kCols), k(rng, DType::kNVFP4, 33, kCols), v(rng, DType::kBF16, 50, kCols);
  const DeviceWeight wq(q), wk(k), wv(v);
  const std::vector<float> scale = {0.37f};
  const DeviceBuffer<float> dscale(scale);
  for (const int32_t rows : {1, 5, 40, 260})
    for (const Path path : {Path::kStream, Path::kTile, Path::kSliced, Path::kDealt, Path::kAuto}) {
      const auto x = random_bf16(rng, static_cast<size_t>(rows) * (kCols + 8));
      const DeviceBuffer<bf16> dx(x);
      const auto bias = random_floats(rng, 96), old = random_floats(rng, static_cast<size_t>(rows) * 60);
      const DeviceBuffer<float> dbias(bias);
      DeviceBuffer<bf16> yq(static_cast<size_t>(rows) * 101);
      DeviceBuffer<float> yk(static_cast<size_t>(rows) * 33), yv(old);
      const auto rows_of = [&](void* data, DType type, int64_t columns, int64_t stride) {
        return make_tensor(data, type, {rows, stride}).cols(0, columns);
      };
      const LinearArgs args{
          .x = rows_of(const_cast<bf16*>(dx.data()), DType::kBF16, kCols, kCols + 8),
          .parts = {{.w = weight_of(q, wq, dscale.data()),
                     .bias = make_tensor(const_cast<float*>(dbias.data()), {96}),
                     .y = rows_of(yq.data(), DType::kBF16, 96, 101)},
                    {.w = weight_of(k, wk), .y = rows_of(yk.data(), DType::kF32, 33, 33)},
                    {.w = weight_of(v, wv), .y = rows_of(yv.data(), DType::kF32, 50, 60), .add_to_y = true}}};
      run_operator("linear", path, [&](const OpContext& ctx) { linear(ctx, args); });
      EXPECT_TRUE(yq.guards_intact() && yk.guards_intact() && yv.guards_intact());
      const auto gq = yq.download();
      const auto gk = yk.download(), gv = yv.download();
      double worst = 0;
      for (int32_t t = 0; t < rows; ++t) {
        const bf16* xt = x.data() + static_cast<size_t>(t) * (kCols + 8);
        const auto check = [&](const HostMatrix& m, int32_t n, double factor, double add, double rounding, double got) {
          const Exact e = exact_dot(m.row(0, n), xt, kCols);
          const double want = e.value * factor + add;
          const double bound = kSumError * e.magnitude * factor + rounding * std::fabs(want) + 1e-6;
          worst = std::max(worst, std::isnan(got) ? 1e9 : std::fabs(got - want) / bound);
        };
        for (int32_t n = 0; n < 96; ++n)
          check(q, n, static_cast<double>(scale[0]), static_cast<double>(bias[n]), kHalfBf16,
                to_float(gq[t * 101 + n]));
        for (int32_t n = 0; n < 33; ++n) check(k, n, 1, 0, 0x1p-22, gk[t * 33 + n]);
        for (int32_t n = 0; n < 50; ++n) check(v, n, 1, static_cast<double>(old[t * 60 + n]), 0x1p-22, gv[t * 60 + n]);
        for (int32_t n = 96; n < 101; ++n) EXPECT_EQ(gq[t * 101 + n].bits, 0xffff);  // between rows: not touched
        for (int32_t n = 50; n < 60; ++n) EXPECT_EQ(gv[t * 60 + n], old[t * 60 + n]);
      }
      EXPECT_LE(worst, 1.0) << rows << " rows, path " << static_cast<int>(path);
    }
}

TEST(GemmLinear, NoRowsAndMisfits) {
  std::mt19937_64 rng(16);
  const HostMatrix m(rng, DType::kBF16, 16, 64);
  const DeviceWeight w(m);
  DeviceBuffer<float> y(16);
  const DeviceBuffer<bf16> x(random_bf16(rng, 64));
  gemm::Product p(device_bf16(x), 64, 0);
  p.add(w.weight, {.y = y.data(), .y_stride = 16, .out = Out::kF32});
  EXPECT_TRUE(launch_gemm(nullptr, p).ok());
  must(cudaDeviceSynchronize(), "no rows");
  const auto untouched = y.download();
  for (const float v : untouched) EXPECT_TRUE(std::isnan(v));
  p.problem.rows = p.problem.most_rows = 1;
  p.problem.x_stride = 65;
  EXPECT_FALSE(launch_gemm(nullptr, p).ok());
  EXPECT_FALSE(launch_gemm(nullptr, gemm::Product(device_bf16(x), 64, 1)).ok()) << "no parts";
}

struct Mlp {
  HostMatrix gate, up, down;
  DeviceWeight gate_up, down_packed;
  DeviceBuffer<float> scales;
  Mlp(std::mt19937_64& rng, DType type, int32_t width, int32_t inner)
      : gate(rng, type, inner, width),
        up(rng, type, inner, width),
        down(rng, type, width, inner),
        gate_up(gate, &up),
        down_packed(down),
        scales(std::vector<float>{1.5f, 0.7f, 0.9f}) {}

  std::vector<float> run(const std::vector<bf16>& h, const std::vector<float>& x, int32_t rows, Path path) const {
    const DeviceBuffer<bf16> dh(h);
    DeviceBuffer<float> dx(x);
    const MlpArgs args{.h = make_tensor(const_cast<bf16*>(dh.data()), {rows, gate.cols}),
                       .gate = weight_of(gate, gate_up, scales.data()),
                       .up = weight_of(up, gate_up, scales.data() + 1),
                       .down = weight_of(down, down_packed, scales.data() + 2),
                       .x = make_tensor(dx.data(), {rows, gate.cols})};
    run_operator("swiglu_mlp", path, [&](const OpContext& ctx) { swiglu_mlp(ctx, args); });
    EXPECT_TRUE(dx.guards_intact());
    return dx.download();
  }
};

TEST(GemmMlp, AgainstFloat64AndRowByRow) {
  std::mt19937_64 rng(17);
  for (const DType type : {DType::kNVFP4, DType::kBF16, DType::kQ8_0})
    for (const int32_t inner : {320, 1024}) {
      constexpr int32_t kWidth = 256, kMost = 200;
      const Mlp mlp(rng, type, kWidth, inner);
      const auto h = random_bf16(rng, kMost * kWidth);
      const auto x = random_floats(rng, kMost * kWidth);
      const auto many = mlp.run(h, x, kMost, Path::kTile);
      double error = 0, norm = 0;
      for (int32_t t = 0; t < kMost; t += 23) {
        std::vector<bf16> mid(inner);
        for (int32_t f = 0; f < inner; ++f) {
          const double g = 1.5f * exact_dot(mlp.gate.row(0, f), h.data() + t * kWidth, kWidth).value;
          const double u = 0.7f * exact_dot(mlp.up.row(0, f), h.data() + t * kWidth, kWidth).value;
          mid[f] = to_bf16(static_cast<float>(g / (1 + std::exp(-g)) * u));
        }
        for (int32_t n = 0; n < kWidth; ++n) {
          const double add = 0.9f * exact_dot(mlp.down.row(0, n), mid.data(), inner).value;
          const double got = static_cast<double>(many[t * kWidth + n]) - static_cast<double>(x[t * kWidth + n]);
          error += (got - add) * (got - add);
          norm += add * add;
        }
      }
      EXPECT_LE(std::sqrt(error / norm), 1e-3) << dtype_name(type);
      for (const int32_t t : {0, 1, 63, 64, 127, 199}) {
        const std::vector<bf16> one(h.begin() + t * kWidth, h.begin() + (t + 1) * kWidth);
        const std::vector<float> old(x.begin() + t * kWidth, x.begin() + (t + 1) * kWidth);
        const std::vector<float> there(many.begin() + t * kWidth, many.begin() + (t + 1) * kWidth);
        EXPECT_TRUE(same_bits(mlp.run(one, old, 1, Path::kStream), there)) << dtype_name(type) << " row " << t;
      }
      EXPECT_TRUE(same_bits(mlp.run(h, x, kMost, Path::kSliced), many)) << dtype_name(type);
      EXPECT_TRUE(same_bits(mlp.run(h, x, kMost, Path::kDealt), many)) << dtype_name(type);
    }
}

}  // namespace
}  // namespace quire::cuda_test
