// What is where in the operands of the product of FP4 by FP4, and that packed weights are one. On a GPU of 12.x this is
// the instruction; elsewhere it is what stands in for it.
#include "cuda/gemm_support.h"
#include "ops/gemm/cuda/mma_fp4.cuh"
#include "quant/fp4.h"

namespace quire::cuda_test {
namespace {

using gemm::TileFormat;

// The operands of a product by row and column, as they are documented: nothing of this is taken from the kernels.
struct Operands {
  uint8_t a[16][64], b[8][64];  // codes; b by its columns
  uint8_t a_scales[16][4], b_scales[8][4];
};

__device__ uint32_t eight_codes(const uint8_t* from) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<uint32_t>(from[i]) << (4 * i);
  return word;
}
__device__ uint32_t four_scales(const uint8_t (&of)[4]) {
  return of[0] | of[1] << 8 | of[2] << 16 | static_cast<uint32_t>(of[3]) << 24;
}

// A warp for each product. Lanes whose scales nobody asks for have others.
template <TileFormat F>
__global__ void multiply(const Operands* operands, float* out) {
  const Operands& o = operands[blockIdx.x];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const uint32_t a[4] = {eight_codes(&o.a[g][8 * t]), eight_codes(&o.a[g + 8][8 * t]), eight_codes(&o.a[g][8 * t + 32]),
                         eight_codes(&o.a[g + 8][8 * t + 32])};
  const uint2 b = make_uint2(eight_codes(&o.b[g][8 * t]), eight_codes(&o.b[g][8 * t + 32]));
  const uint32_t a_scales = t == 0 ? four_scales(o.a_scales[g]) : t == 1 ? four_scales(o.a_scales[g + 8]) : 0x55555555u;
  const uint32_t b_scales = t == 0 ? four_scales(o.b_scales[g]) : 0x66666666u;
  float d[4] = {};
  gemm::fp4::multiply_fp4<F>(d, a, b, a_scales, b_scales);
  float* to = out + blockIdx.x * 128;
  to[g * 8 + 2 * t] = d[0], to[g * 8 + 2 * t + 1] = d[1];
  to[(g + 8) * 8 + 2 * t] = d[2], to[(g + 8) * 8 + 2 * t + 1] = d[3];
}

template <TileFormat F>
double scale_of(uint8_t code) {
  return F == TileFormat::kMxfp4 ? quant::decode_e8m0(code) : quant::decode_ue4m3(code);
}

template <TileFormat F>
void expect_products(const std::vector<Operands>& operands, double tolerance) {
  constexpr int kEach = F == TileFormat::kMxfp4 ? 32 : 16;
  const DeviceBuffer<Operands> in(operands);
  const DeviceBuffer<float> out(operands.size() * 128);
  multiply<F><<<static_cast<unsigned>(operands.size()), 32>>>(in.data(), out.data());
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<float> got = out.download();
  for (size_t p = 0; p < operands.size(); ++p)
    for (int row = 0; row < 16; ++row)
      for (int col = 0; col < 8; ++col) {
        const Operands& o = operands[p];
        double want = 0, magnitude = 0;
        for (int k = 0; k < 64; ++k) {
          const double term = static_cast<double>(quant::kE2m1[o.a[row][k]]) * scale_of<F>(o.a_scales[row][k / kEach]) *
                              static_cast<double>(quant::kE2m1[o.b[col][k]]) * scale_of<F>(o.b_scales[col][k / kEach]);
          want += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(got[p * 128 + static_cast<size_t>(row * 8 + col)], want, tolerance * magnitude)
            << "product " << p << ", row " << row << ", column " << col;
      }
}

template <TileFormat F>
Operands random_operands(std::mt19937_64& rng) {
  Operands o;
  const auto code = [&] { return static_cast<uint8_t>(rng() % 16); };
  const auto scale = [&] { return static_cast<uint8_t>(F == TileFormat::kMxfp4 ? 100 + rng() % 40 : rng() % 0x7f); };
  for (auto& row : o.a) std::generate(std::begin(row), std::end(row), code);
  for (auto& col : o.b) std::generate(std::begin(col), std::end(col), code);
  for (auto& of : o.a_scales) std::generate(std::begin(of), std::end(of), scale);
  for (auto& of : o.b_scales) std::generate(std::begin(of), std::end(of), scale);
  return o;
}

// One number of A at a time: each result is exact and says where it, its scale and B's are.
template <TileFormat F>
void every_place() {
  std::mt19937_64 rng(1);
  std::vector<Operands> all;
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 64; ++k) {
      Operands o = random_operands<F>(rng);
      for (auto& other : o.a) std::fill(std::begin(other), std::end(other), uint8_t{0});
      o.a[row][k] = static_cast<uint8_t>(1 + rng() % 7);
      all.push_back(o);
    }
  expect_products<F>(all, 0.0);
}

TEST(Fp4Mma, EveryPlaceOfNvfp4) {
  every_place<TileFormat::kNvfp4>();
}
TEST(Fp4Mma, EveryPlaceOfMxfp4) {
  every_place<TileFormat::kMxfp4>();
}

TEST(Fp4Mma, SumsOfRandomNumbers) {
  std::mt19937_64 rng(2);
  std::vector<Operands> nv, mx;
  for (int i = 0; i < 200; ++i) {
    nv.push_back(random_operands<TileFormat::kNvfp4>(rng));
    mx.push_back(random_operands<TileFormat::kMxfp4>(rng));
  }
  expect_products<TileFormat::kNvfp4>(nv, 0x1p-20);
  expect_products<TileFormat::kMxfp4>(mx, 0x1p-20);
}

// What a lane makes of a packed tile: [lane] four words of codes, one of scales.
template <TileFormat F>
__global__ void load(const uint8_t* packed, uint32_t* out) {
  constexpr int kBytes = gemm::tile_bytes(F);
  __shared__ __align__(16) uint8_t tile[kBytes];
  const int lane = threadIdx.x;
  for (int i = lane; i < kBytes / 16; i += 32)
    reinterpret_cast<uint4*>(tile)[i < 32 ? gemm::fp4::place_of_lane(i) : i] =
        reinterpret_cast<const uint4*>(packed + int64_t{blockIdx.x} * kBytes)[i];
  __syncwarp();
  const gemm::fp4::Weights a = gemm::fp4::load_weights<F>(gemm::shared_address(tile), lane);
  uint32_t* to = out + (blockIdx.x * 32 + lane) * 5;
  for (int i = 0; i < 4; ++i) to[i] = a.codes[i];
  to[4] = a.scales;
}

// Code i of register r of lane 4 g + t is of this column of the tile, and its scale byte that of the register's half
// and, with NVFP4, of the pair of lanes.
template <TileFormat F>
void expect_operand(uint64_t seed) {
  std::mt19937_64 rng(seed);
  constexpr DType kType = F == TileFormat::kMxfp4 ? DType::kMXFP4 : DType::kNVFP4;
  HostMatrix m(rng, kType, 16, 256);
  const size_t block = static_cast<size_t>(dtype_info(kType).block_bytes);
  for (size_t i = 0; i < m.bytes.size(); ++i) {  // any codes, scales of all sizes
    const bool scale = i % block < (kType == DType::kNVFP4 ? 4u : 1u);
    m.bytes[i] = static_cast<std::byte>(!scale                   ? rng() % 256
                                        : kType == DType::kNVFP4 ? rng() % 0x7f
                                                                 : 20 + rng() % 110);
  }
  for (int32_t r = 0; r < m.rows; ++r)
    quant::decode_row(kType, m.bytes.data() + r * dtype_bytes(kType, m.cols), m.cols, m.values.data() + r * m.cols);
  const DeviceWeight w(m);
  const DeviceBuffer<uint32_t> out(static_cast<size_t>(w.weight.col_tiles()) * 32 * 5);
  load<F><<<static_cast<unsigned>(w.weight.col_tiles()), 32>>>(reinterpret_cast<const uint8_t*>(w.weight.data),
                                                               out.data());
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<uint32_t> got = out.download();
  for (int tile = 0; tile < w.weight.col_tiles(); ++tile)
    for (int lane = 0; lane < 32; ++lane)
      for (int r = 0; r < 4; ++r)
        for (int i = 0; i < 8; ++i) {
          const int t = lane % 4, half = r / 2, row = lane / 4 + r % 2 * 8, within[] = {0, 8, 1, 9};
          const bool nv = kType == DType::kNVFP4, second = i >= 4;
          const int step = nv ? t / 2 * 2 + half : 2 * half + second, of = nv && second ? t ^ 2 : t;
          const int col = tile * 64 + step * 16 + 2 * of + within[i % 4];
          const uint32_t code = got[static_cast<size_t>((tile * 32 + lane) * 5 + r)] >> (4 * i) & 15u;
          // The scale comes from the first two lanes of four, for the row and the row eight further.
          const uint32_t scales = got[static_cast<size_t>((tile * 32 + lane / 4 * 4 + r % 2) * 5 + 4)];
          const uint32_t scale = scales >> (8 * (nv ? 2 * half + t / 2 : half)) & 0xffu;
          ASSERT_EQ(static_cast<double>(quant::kE2m1[code]) * scale_of<F>(static_cast<uint8_t>(scale)),
                    static_cast<double>(m.row(0, row)[col]))
              << "lane " << lane << ", register " << r << ", code " << i;
        }
}

TEST(Fp4Mma, PackedWeightsAreTheOperand) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    expect_operand<TileFormat::kNvfp4>(seed);
    expect_operand<TileFormat::kMxfp4>(seed);
  }
}

}  // namespace
}  // namespace quire::cuda_test
