// Encoding and decoding random rows: the error of every element stays within what its block's scale allows,
// and encoding what was decoded changes nothing that it need not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/float.h"
#include "quant/format.h"
#include "quant/fp4.h"

namespace quire::quant {
namespace {

constexpr uint32_t kSeed = 20240601;
constexpr DType kEncodable[] = {DType::kF32,  DType::kF16,   DType::kBF16,  DType::kQ8_0, DType::kQ4_0,
                                DType::kQ4_1, DType::kQ5_0,  DType::kQ5_1,  DType::kQ4_K, DType::kQ5_K,
                                DType::kQ6_K, DType::kMXFP4, DType::kNVFP4, DType::kQ3_K, DType::kIQ4_NL};

using Row = std::vector<float>;

std::vector<std::byte> encode(DType type, const Row& x) {
  std::vector<std::byte> out(static_cast<size_t>(dtype_bytes(type, static_cast<int64_t>(x.size()))));
  encode_row(type, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}
Row decode(DType type, const std::vector<std::byte>& bytes, size_t elems) {
  Row out(elems);
  decode_row(type, bytes.data(), static_cast<int64_t>(elems), out.data());
  return out;
}

// Rows as weights come: normal, heavy-tailed, tiny, large, sparse, constant, one outlier.
std::vector<Row> rows(size_t elems) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  std::vector<Row> out(7, Row(elems));
  for (size_t i = 0; i < elems; ++i) {
    const float z = normal(random);
    out[0][i] = z;
    out[1][i] = 0.02f * z * z * z;
    out[2][i] = 1e-3f * z;
    out[3][i] = 300 * z;
    out[4][i] = i % 7 == 0 ? z : 0;
    out[5][i] = -0.75f;
    out[6][i] = i % 64 == 5 ? 40.0f : 0.1f * z;
  }
  return out;
}

float largest(const float* x, int n) {
  float m = 0;
  for (int i = 0; i < n; ++i) m = std::max(m, std::fabs(x[i]));
  return m;
}

// The largest error that the format may make on element x of a block whose largest magnitude is `m`.
double bound(DType type, double x, double m) {
  const double half_scale = m * 0x1p-11 + 0x1p-25;  // what rounding the scale to half can move the largest element by
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return std::fabs(x) * 0x1p-11 + 0x1p-25;
    case DType::kBF16:
      return std::fabs(x) * 0x1p-8;
    case DType::kQ8_0:
      return m / 127 / 2 + half_scale + 127 * 0x1p-25;
    // One step m/8; the far end of the range (+8) is clamped to 7: a whole step.
    case DType::kQ4_0:
      return m / 8 + half_scale + 8 * 0x1p-25;
    case DType::kQ5_0:
      return m / 16 + half_scale + 16 * 0x1p-25;
    // Half of a step between the ends, which are at most 2 m apart; the offset and the scale are rounded too.
    case DType::kQ4_1:
      return m / 15 + 3 * half_scale + 15 * 0x1p-25;
    case DType::kQ5_1:
      return m / 31 + 3 * half_scale + 31 * 0x1p-25;
    // The same, with scales rounded to 1/63 of the largest and minima too (half of that each, times the
    // code).
    case DType::kQ4_K:
      return m / 15 + 1.5 * m / 63 + 4 * half_scale + 16 * 0x1p-18;
    case DType::kQ5_K:
      return m / 31 + 1.5 * m / 63 + 4 * half_scale + 32 * 0x1p-18;
    // One step m/32 at the clamped end, and the scale rounded to 1/128 of the largest.
    case DType::kQ6_K:
      return m / 32 + 0.5 * m / 128 + 2 * half_scale + 32 * 0x1p-18;
    // The same with steps of m/4, and scales rounded to 1/32.
    case DType::kQ3_K:
      return m / 4 + 0.5 * m / 32 + 2 * half_scale + 4 * 0x1p-18;
    // Values are at most 24 of 127 apart; the far end of the range, 113, is clamped.
    case DType::kIQ4_NL:
      return m * 14 / 127 + half_scale + 127 * 0x1p-25;
    // Scale 2^k with m in [4, 8) of it: codes are at most 2 apart (error 1), and 6 stands for up to 8 (error
    // 2).
    case DType::kMXFP4:
      return m / 4 * 2;
    // The block scale is within 1/16 of m/6 (or half of the smallest step, 2^-10): then the same spacing, and
    // clipping.
    case DType::kNVFP4:
      return (m / 6 * (1 + 1.0 / 16) + 0x1p-10) + m / 16 + 6 * 0x1p-10;
    default:
      return -1;
  }
}

TEST(RoundTrip, ErrorsStayWithinTheBoundOfEveryElement) {
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  for (const DType type : kEncodable) {
    ASSERT_TRUE(can_encode(type) && can_decode(type)) << dtype_name(type);
    const int block = type == DType::kNVFP4 ? 16 : dtype_info(type).block_elems;
    int row = 0;
    for (const Row& x : rows(512)) {
      const Row y = decode(type, encode(type, x), x.size());
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double m = largest(&x[i / static_cast<size_t>(block) * static_cast<size_t>(block)], block);
        const double error = std::fabs(static_cast<double>(y[i]) - x[i]), allowed = bound(type, x[i], m);
        ASSERT_LE(error, allowed * (1 + 1e-5))
            << dtype_name(type) << " row " << row << " element " << i << " of " << x[i];
        worst = std::max(worst, error);
      }
      if (row == 0) {
        EXPECT_EQ(worst > 0, type != DType::kF32) << dtype_name(type);
      }
      ++row;
    }
  }
}

// What a decoder can produce, its encoder keeps: exactly where the largest code is used, else within the
// bound.
TEST(RoundTrip, EncodingDecodedValuesIsStable) {
  for (const DType type : kEncodable) {
    if (dtype_info(type).block_elems == 256) continue;  // the largest sub-scale need not come out again
    int row = 0;
    for (const Row& x : rows(512)) {
      const Row once = decode(type, encode(type, x), x.size());
      const Row twice = decode(type, encode(type, once), x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        // Scales are recomputed from multiples of the stored one and may move by a bit of the half.
        const bool moves = type == DType::kQ8_0 || type == DType::kQ4_1 || type == DType::kQ5_1;
        const double m = largest(&once[i / 32 * 32], 32);
        const double slack = moves ? m * 0x1p-10 : 0;
        ASSERT_NEAR(twice[i], once[i], slack) << dtype_name(type) << " row " << row << " element " << i;
      }
      ++row;
    }
  }
}

// Random bytes are blocks too: decoders read any of them, and values are what the scales allow.
TEST(RoundTrip, DecodersTakeAnyBytes) {
  std::mt19937 random(kSeed);
  for (int id = 0; id < 64; ++id) {
    const auto info = find_dtype(static_cast<uint32_t>(id));
    if (!info || !can_decode(info->type)) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(info->block_bytes) * 100);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    const Row y = decode(info->type, bytes, static_cast<size_t>(info->block_elems) * 100);
    const Row again = decode(info->type, bytes, y.size());
    EXPECT_EQ(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)), 0) << info->name;
  }
}

TEST(Nvfp4Scaled, ScaleOfZerosAndOfBadValues) {
  Row x(64, 0.0f);
  EXPECT_EQ(nvfp4_tensor_scale(x.data(), 64).value(), 1.0f);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    x[7] = bad;
    const auto s = nvfp4_tensor_scale(x.data(), 64);
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.error().fault, Fault::kRequest);
    EXPECT_NE(s.error().message.find("element 7 is"), std::string::npos);
  }
  const Row zeros(64, 0.0f);
  std::vector<std::byte> bytes(36, std::byte{0xff});
  encode_row(DType::kNVFP4, zeros.data(), 64, {.search = Search::kBest}, bytes.data());
  EXPECT_EQ(decode(DType::kNVFP4, bytes, 64), zeros);
}

}  // namespace
}  // namespace quire::quant
