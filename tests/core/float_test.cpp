// Conversions of the narrower floats, exhaustively where that is possible, against the CPU's own and
// against arithmetic on doubles.
#include "core/float.h"

#include <gtest/gtest.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <limits>

namespace quire {
namespace {

float f32(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// The CPU's own conversions, to nearest even.
#ifdef __x86_64__
float cpu_float(uint16_t h) {
  return _cvtsh_ss(h);
}
uint16_t cpu_half(float x) {
  return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#else
float cpu_float(uint16_t h) {
  return std::bit_cast<__fp16>(h);
}
uint16_t cpu_half(float x) {
  return std::bit_cast<uint16_t>(static_cast<__fp16>(x));
}
#endif

TEST(Half, EveryValueDecodesAsTheCpuDoesAndComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const half x{static_cast<uint16_t>(h)};
    const float f = to_float(x), cpu = cpu_float(x.bits);
    if (std::isnan(cpu)) {
      ASSERT_TRUE(std::isnan(f)) << h;
      ASSERT_EQ(to_half(f).bits, (h & 0x8000) | 0x7e00) << "NaN is made quiet and keeps its sign";
      continue;
    }
    ASSERT_EQ(bits(f), bits(cpu)) << h;
    ASSERT_EQ(to_half(f), x) << h;
  }
}

TEST(Half, RoundsToNearestEvenAtEveryBorder) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const float low = to_float(half{static_cast<uint16_t>(h)});
    // Above the largest half, the neighbour that rounding has in mind is 65536.
    const float high = h == 0x7bff ? 65536.0f : to_float(half{static_cast<uint16_t>(h + 1)});
    const float middle = static_cast<float>((static_cast<double>(low) + high) / 2);  // exact
    for (const float x : {middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      ASSERT_EQ(to_half(x).bits, cpu_half(x)) << x;
      ASSERT_EQ(to_half(-x).bits, cpu_half(-x)) << -x;
    }
  }
}

TEST(Half, Vectors) {
  const struct {
    uint16_t half_bits;
    float value;
  } vectors[] = {{0x3c00, 1.0f},     {0xc000, -2.0f},           {0x3555, 0.333251953125f},
                 {0x0001, 0x1p-24f}, {0x03ff, 6.097555161e-5f}, {0x0400, 0x1p-14f},
                 {0x7bff, 65504.0f}, {0x7c00, INFINITY},        {0xfc00, -INFINITY}};
  for (const auto& v : vectors) {
    EXPECT_EQ(to_float(half{v.half_bits}), v.value);
    EXPECT_EQ(to_half(v.value).bits, v.half_bits);
  }
  EXPECT_EQ(to_half(65519.996f).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7c00) << "rounds above the largest: infinity";
  EXPECT_EQ(to_half(std::numeric_limits<float>::max()).bits, 0x7c00);
  EXPECT_EQ(to_half(0x1p-25f).bits, 0) << "a tie goes to even: zero";
  EXPECT_EQ(to_half(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(to_half(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_half(-0x1p-149f).bits, 0x8000);
}

TEST(Bf16, EveryValueComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const bf16 x{static_cast<uint16_t>(b)};
    const float f = to_float(x);
    ASSERT_EQ(bits(f), b << 16);
    if (std::isnan(f)) {
      ASSERT_EQ(to_bf16(f).bits, b | 0x40) << "NaN is made quiet";
      continue;
    }
    ASSERT_EQ(to_bf16(f), x) << b;
  }
}

TEST(Bf16, RoundsToNearestEvenAtEveryBorder) {
  for (uint32_t b = 0; b < 0x7f80; ++b) {
    const uint32_t low = b << 16;
    ASSERT_EQ(to_bf16(f32(low + 0x7fff)).bits, b);
    ASSERT_EQ(to_bf16(f32(low + 0x8000)).bits, b + (b & 1)) << "a tie goes to even";
    ASSERT_EQ(to_bf16(f32(low + 0x8001)).bits, b + 1);
    ASSERT_EQ(to_bf16(f32(0x80000000u | (low + 0x8001))).bits, 0x8000u | (b + 1));
  }
}

TEST(Bf16, Vectors) {
  const struct {
    uint32_t f32_bits;
    uint16_t bf16_bits;
  } vectors[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                 {0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fc0}, {0xff800001, 0xffc0}, {0xff800000, 0xff80}};
  for (const auto& v : vectors) EXPECT_EQ(to_bf16(f32(v.f32_bits)).bits, v.bf16_bits) << v.f32_bits;
}

TEST(E4m3, EveryValueComesBack) {
  for (uint32_t b = 0; b < 256; ++b) {
    const e4m3 x{static_cast<uint8_t>(b)};
    const int exponent = static_cast<int>(b >> 3 & 15), mantissa = static_cast<int>(b & 7);
    const float f = to_float(x);
    ASSERT_EQ(std::signbit(f), b >= 128) << b;
    if ((b & 0x7f) == 0x7f) {
      ASSERT_TRUE(std::isnan(f)) << b;
    } else {
      ASSERT_EQ(std::abs(f), exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
    }
    ASSERT_EQ(to_e4m3(f), x) << b;
  }
}

TEST(E4m3, RoundsToNearestEvenAtEveryBorderAndSaturates) {
  for (uint32_t b = 0; b < 0x7e; ++b) {
    const float low = to_float(e4m3{static_cast<uint8_t>(b)}), high = to_float(e4m3{static_cast<uint8_t>(b + 1)});
    const float middle = (low + high) / 2;
    ASSERT_EQ(to_e4m3(middle).bits, b + (b & 1)) << "a tie goes to even: " << middle;
    ASSERT_EQ(to_e4m3(std::nextafter(middle, low)).bits, b);
    ASSERT_EQ(to_e4m3(std::nextafter(middle, high)).bits, b + 1);
    ASSERT_EQ(to_e4m3(-std::nextafter(middle, high)).bits, 0x80 | (b + 1));
  }
  for (const float x : {448.0f, 449.0f, 480.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(to_e4m3(x).bits, 0x7e) << x;
    EXPECT_EQ(to_e4m3(-x).bits, 0xfe) << x;
  }
  EXPECT_EQ(to_e4m3(0x1p-149f).bits, 0);
}

}  // namespace
}  // namespace quire
