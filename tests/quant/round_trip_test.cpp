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
constexpr DType kEncodable[] = {DType::kF32,  DType::kF16,   DType::kBF16, DType::kQ8_0,
                                DType::kQ4_0, DType::kMXFP4, DType::kNVFP4};

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
  const double half_scale =
      m * 0x1p-11 + 0x1p-25;  // what rounding the scale to half can move the largest element by
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
    int row = 0;
    for (const Row& x : rows(512)) {
      const Row once = decode(type, encode(type, x), x.size());
      const Row twice = decode(type, encode(type, once), x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        // Q8_0's scale is recomputed from 127 times the stored one and may move by a bit of the half.
        const double slack = type == DType::kQ8_0 ? std::fabs(once[i]) * 0x1p-10 : 0;
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

TEST(RoundTrip, EncodersSurviveNanAndInfinity) {
  for (const DType type : kEncodable)
    for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f, 1e-40f}) {
      Row x(64, 1.0f);
      x[3] = bad;
      const auto bytes = encode(type, x);
      EXPECT_EQ(bytes.size(), static_cast<size_t>(dtype_bytes(type, 64)));
    }
}

double rms_error(const Row& x, const Row& y, float scale) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(x[i] - static_cast<double>(y[i]) * scale, 2);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

TEST(Nvfp4Scaled, IsMuchBetterOnWeightsThanOneLevel) {
  Row x(4096);
  std::mt19937 random(kSeed);
  std::normal_distribution<float> weights(0, 0.02f);
  for (float& v : x) v = weights(random);
  const float s = nvfp4_tensor_scale(x.data(), 4096).value();
  EXPECT_FLOAT_EQ(s, largest(x.data(), 4096) / (6 * 448));
  std::vector<std::byte> bytes(4096 / 64 * 36);
  encode_nvfp4_scaled(x.data(), 4096, s, bytes.data());
  const double two_level = rms_error(x, decode(DType::kNVFP4, bytes, x.size()), s);
  const double one_level = rms_error(x, decode(DType::kNVFP4, encode(DType::kNVFP4, x), x.size()), 1);
  EXPECT_LT(two_level, 0.1 * 0.02) << "about 9% of the standard deviation";
  EXPECT_LT(two_level, 0.9 * one_level);
}

// The search around the nearest scale code may only improve on it, and finds the best of the five.
TEST(Nvfp4Scaled, TheScaleSearchFindsTheLeastErrorOfFiveCodes) {
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  for (const Row& x : rows(512)) {
    const float s = nvfp4_tensor_scale(x.data(), 512).value();
    std::vector<std::byte> bytes(512 / 64 * 36);
    encode_nvfp4_scaled(x.data(), 512, s, bytes.data());
    const Row y = decode(DType::kNVFP4, bytes, x.size());
    for (size_t sub = 0; sub < 512 / 16; ++sub) {
      auto error_with = [&](uint8_t code) {
        const float scale = decode_ue4m3(code) * s;
        double sum = 0;
        for (size_t i = sub * 16; i < sub * 16 + 16; ++i)
          sum += std::pow(
              x[i] - static_cast<double>(scale > 0 ? decode_e2m1(encode_e2m1(x[i] / scale)) * scale : 0), 2);
        return sum;
      };
      double got = 0;
      for (size_t i = sub * 16; i < sub * 16 + 16; ++i)
        got += std::pow(x[i] - static_cast<double>(y[i]) * s, 2);
      const int nearest = encode_ue4m3(largest(&x[sub * 16], 16) / (6 * s));
      double best = error_with(static_cast<uint8_t>(nearest));
      for (int c = std::max(0, nearest - 2); c <= std::min(0x7e, nearest + 2); ++c)
        best = std::min(best, error_with(static_cast<uint8_t>(c)));
      ASSERT_NEAR(got, best, 1e-5 * best + 1e-12) << "sub-block " << sub;
    }
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
  encode_nvfp4_scaled(zeros.data(), 64, 1.0f, bytes.data());
  EXPECT_EQ(decode(DType::kNVFP4, bytes, 64), zeros);
}

}  // namespace
}  // namespace quire::quant
