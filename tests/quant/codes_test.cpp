// Every code of the small floating-point formats, against their definition.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quant/fp4.h"

namespace quire::quant {
namespace {

// E4M3FN from its definition, in double: bits 6..3 exponent (bias 7), 2..0 mantissa. Bit 7 ignored, 0x7f
// decodes as 0.
double ue4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return 0;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

TEST(Ue4m3, All256CodesDecode) {
  for (int code = 0; code < 256; ++code)
    EXPECT_EQ(decode_ue4m3(static_cast<uint8_t>(code)), ue4m3(code)) << "code " << code;
  EXPECT_EQ(decode_ue4m3(0x7e), 448.0f);
  EXPECT_EQ(decode_ue4m3(0x38), 1.0f);
  EXPECT_EQ(decode_ue4m3(0x07), 0.013671875f);
  EXPECT_EQ(decode_ue4m3(0x7f), 0.0f) << "NaN in E4M3FN";
  EXPECT_EQ(decode_ue4m3(0xff), 0.0f);
}

TEST(Ue4m3, EncodingIsTheInverseAndRoundsToNearestEven) {
  for (int code = 0; code <= 0x7e; ++code) EXPECT_EQ(encode_ue4m3(static_cast<float>(ue4m3(code))), code);
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((ue4m3(code) + ue4m3(code + 1)) / 2);
    EXPECT_EQ(encode_ue4m3(middle), code + code % 2) << "tie above code " << code;
    EXPECT_EQ(encode_ue4m3(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(encode_ue4m3(std::nextafter(middle, 1e9f)), code + 1);
  }
}

TEST(Ue4m3, EncodingClampsAndSurvivesAnything) {
  for (const float x : {448.0f, 449.0f, 1e30f, INFINITY}) EXPECT_EQ(encode_ue4m3(x), 0x7e) << x;
  for (const float x : {0.0f, -0.0f, -1.0f, -INFINITY, NAN, 1e-40f, 0x1p-10f}) EXPECT_EQ(encode_ue4m3(x), 0) << x;
  EXPECT_EQ(encode_ue4m3(std::nextafter(0x1p-10f, 1.0f)), 1) << "just above half of the smallest value";
}

TEST(E8m0, All256CodesDecode) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(decode_e8m0(static_cast<uint8_t>(code)), std::ldexp(1.0, code - 127)) << "code " << code;
  EXPECT_TRUE(std::isnan(decode_e8m0(255)));
}

TEST(E2m1, CodesAndTheirDoubles) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = code >> 1 & 3, mantissa = code & 1;
    const double magnitude = exponent == 0 ? mantissa * 0.5 : std::ldexp(2 + mantissa, exponent - 2);
    EXPECT_EQ(decode_e2m1(static_cast<uint8_t>(code)), code & 8 ? -magnitude : magnitude) << code;
    EXPECT_EQ(kE2m1Doubled[code], 2 * decode_e2m1(static_cast<uint8_t>(code))) << code;
  }
  EXPECT_TRUE(std::signbit(decode_e2m1(8)));
}

TEST(E2m1, EncodingTakesTheNearestAndTheSmallerOnTies) {
  for (int code = 0; code < 16; ++code) {
    const int want = code == 8 ? 0 : code;  // never -0
    EXPECT_EQ(encode_e2m1(decode_e2m1(static_cast<uint8_t>(code))), want);
  }
  const std::pair<float, float> ties[] = {{0.25f, 0}, {0.75f, 0.5f}, {1.25f, 1}, {1.75f, 1.5f},
                                          {2.5f, 2},  {3.5f, 3},     {5, 4}};
  for (const auto& [x, want] : ties) {
    EXPECT_EQ(decode_e2m1(encode_e2m1(x)), want) << x;
    EXPECT_EQ(decode_e2m1(encode_e2m1(-x)), -want) << -x;
    EXPECT_GT(decode_e2m1(encode_e2m1(std::nextafter(x, 9.0f))), want) << "just above " << x;
  }
  EXPECT_EQ(encode_e2m1(-0.1f), 0) << "never -0";
  EXPECT_EQ(encode_e2m1(1e30f), 7);
  EXPECT_EQ(encode_e2m1(-INFINITY), 15);
  EXPECT_EQ(encode_e2m1(NAN), 0);
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-8, 8);
  for (int i = 0; i < 10000; ++i) {
    const float x = values(random), got = decode_e2m1(encode_e2m1(x));
    for (const float other : kE2m1) EXPECT_LE(std::fabs(x - got), std::fabs(x - other)) << x << " (seed 1)";
  }
}

}  // namespace
}  // namespace quire::quant
