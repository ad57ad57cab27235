// The worked examples of the block formats: bytes in, values out (and, for the encoders, values in, bytes
// out).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "quant/format.h"
#include "support/bytes.h"

namespace quire::quant {
namespace {

using test::from_hex;

struct DecodeCase {
  DType type;
  std::string hex;
  std::vector<std::pair<int, float>> values;  // element, value
};

// All elements from a list.
std::vector<std::pair<int, float>> all(std::vector<float> values) {
  std::vector<std::pair<int, float>> out;
  for (size_t i = 0; i < values.size(); ++i) out.emplace_back(static_cast<int>(i), values[i]);
  return out;
}

// first, first + step, ... (count values), then the same backwards if mirrored.
std::vector<float> ramp(float first, float step, int count, bool mirrored) {
  std::vector<float> out;
  for (int i = 0; i < count; ++i) out.push_back(first + step * static_cast<float>(i));
  if (mirrored) out.insert(out.end(), out.rbegin(), out.rend());
  return out;
}

std::string repeat(const std::string& s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

std::vector<float> times(std::vector<float> v, float f) {
  for (float& x : v) x *= f;
  return v;
}
std::vector<float> join(std::vector<std::vector<float>> parts) {
  std::vector<float> out;
  for (const auto& p : parts) out.insert(out.end(), p.begin(), p.end());
  return out;
}

const std::string kNibbles = "f0e1d2c3b4a5968778695a4b3c2d1e0f";  // low nibbles count up, high nibbles count down
const std::string kScales = "4182c37fc0450abf00111204";
// 64 bytes of codes in which all four of a byte differ by turns.
const std::string kMixed =
    "0b30557a9fc4e90e33587da2c7ec11365b80a5caef14395e83a8cdf2173c6186"
    "abd0f51a3f6489aed3f81d42678cb1d6fb20456a8fb4d9fe23486d92b7dc0126";
// The 32 values of IQ4_NL's codes in kNibbles.
const std::vector<float> kIq4Line = {-127, -104, -83, -65, -49, -35, -22, -10, 1,    13,  25,
                                     38,   53,   69,  89,  113, 113, 89,  69,  53,   38,  25,
                                     13,   1,    -10, -22, -35, -49, -65, -83, -104, -127};
const std::vector<float> kE2m1Values = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};

std::vector<DecodeCase> decode_cases() {
  std::vector<float> backwards(kE2m1Values.rbegin(), kE2m1Values.rend());
  const std::vector<float> q5_0 = {-8,  .5, 1,    1.5, 2,    2.5, 3,    3.5, 4,    4.5, 5,    5.5, 6,    6.5, 7,    7.5,
                                   7.5, -1, -1.5, -2,  -2.5, -3,  -3.5, -4,  -4.5, -5,  -5.5, -6,  -6.5, -7,  -7.5, -8};
  const std::vector<float> q5_1 = {-4,   4.5, 5,   5.5, 6,   6.5, 7,  7.5, 8,   8.5, 9,    9.5, 10,   10.5, 11,   11.5,
                                   11.5, 3,   2.5, 2,   1.5, 1,   .5, 0,   -.5, -1,  -1.5, -2,  -2.5, -3,   -3.5, -4};
  return {
      {DType::kF32, "0000803f 000080bf", all({1, -1})},
      {DType::kF16, "003c 00c0 5535 0100 ff03 0004 ff7b 007c",
       all({1, -2, 0.333251953125f, 0x1p-24f, 6.097555160522461e-05f, 0x1p-14f, 65504, INFINITY})},
      {DType::kBF16, "803f 0040 00c0 807f", all({1, 2, -2, INFINITY})},
      {DType::kQ8_0, "002cf0f1f2f3f4f5f6f7f8f9fafbfcfdfeff000102030405060708090a0b0c0d0e0f",
       all(ramp(-1, 0.0625f, 32, false))},
      {DType::kQ4_0, "00b8" + kNibbles, all(join({ramp(4, -.5f, 16, false), ramp(-3.5f, .5f, 16, false)}))},
      {DType::kQ4_1, "003400bc" + kNibbles, all(ramp(-1, .25f, 16, true))},
      {DType::kQ5_0, "0038feff0100" + kNibbles, all(q5_0)},
      {DType::kQ5_1, "003800c4feff0100" + kNibbles, all(q5_1)},
      {DType::kQ4_K,
       "00300034" + kScales + repeat(kNibbles, 8),
       {{0, 0},
        {1, .125},
        {31, 1.875},
        {32, 2.5},
        {33, 2.25},
        {64, -2.5},
        {96, 102.375},
        {128, -12},
        {160, 57.625},
        {192, -.25},
        {224, 29.5},
        {255, -8}}},
      {DType::kQ5_K,
       "00300034" + kScales + repeat("a55a", 16) + repeat(kNibbles, 8),
       {{0, 2},
        {1, .125},
        {31, 1.875},
        {32, 2.5},
        {33, 6.25},
        {64, 3.5},
        {96, 102.375},
        {128, -12},
        {160, 123.625},
        {192, -.25},
        {224, 69.5},
        {255, -8}}},
      {DType::kQ6_K,
       repeat(kNibbles, 8) + repeat("e41b", 32) + "01ff02fe03fd04fc7f8005fb06fa07f9" + "002c",
       {{0, -2},
        {1, 1.0625},
        {15, 1.9375},
        {16, 2},
        {32, -2},
        {33, .125},
        {64, 2.8125},
        {65, -.375},
        {96, 7.75},
        {97, -4.5},
        {128, -254},
        {129, 134.9375},
        {144, 256},
        {160, -5},
        {192, 5.625},
        {224, 13.5625},
        {255, 14}}},
      // Scales 0 to 15 with minima 15 to 0; d = 0.125, dmin = 0.25.
      {DType::kQ2_K,
       "f0e1d2c3b4a5968778695a4b3c2d1e0f" + kMixed + "00300034",
       {{0, -3.75},   {15, -3.75}, {16, -3.125},  {31, -3.25}, {32, -2.75},  {47, -3},     {48, -2.25}, {64, -2.75},
        {80, -1.875}, {96, -2.25}, {112, -1.125}, {127, -.25}, {128, 1.25},  {144, 1.875}, {160, 1.25}, {175, 0},
        {176, 1.75},  {192, 2.25}, {208, 4.375},  {224, 3.25}, {240, 5.625}, {254, 0},     {255, 0}}},
      {DType::kQ3_K,
       "0560bb1671cc2782dd3893ee49a4ff5ab5106bc6217cd7328de8439ef954af0a" + kMixed + "c8115aa3ec357ec71059a2eb" +
           "00ac",
       {{0, 4.5},      {1, -6},     {2, 1.5},      {3, -3},     {15, -3},     {16, 2.8125}, {31, -1.875},
        {32, 1.25},    {47, -.625}, {48, 2.375},   {64, 0},     {80, -.3125}, {96, -4.5},   {112, 1.3125},
        {127, -.875},  {128, -.25}, {144, 2.8125}, {160, .625}, {175, .9375}, {176, -1.25}, {192, -2.25},
        {208, -.8125}, {224, .875}, {240, -5.25},  {254, 0},    {255, 7}}},
      {DType::kIQ4_NL, "002c" + kNibbles, all(times(kIq4Line, .0625f))},
      // Scales less 32 of 5, 4, ... in the order of the sub-blocks; d = 0.03125.
      {DType::kIQ4_XS, "0028a5c31f8e640b" + repeat(kNibbles, 8),
       all(join({times(kIq4Line, -1 * .03125f), times(kIq4Line, -15 * .03125f), times(kIq4Line, 14 * .03125f),
                 times(kIq4Line, 8 * .03125f), times(kIq4Line, 20 * .03125f), times(kIq4Line, -26 * .03125f),
                 times(kIq4Line, -21 * .03125f), times(kIq4Line, 16 * .03125f)}))},
      {DType::kMXFP4, "7e" + kNibbles, all(times(join({kE2m1Values, backwards}), .5f))},
      {DType::kNVFP4, "3840017e" + repeat("8091a2b3c4d5e6f7", 4),
       all(join({kE2m1Values, times(kE2m1Values, 2), times(kE2m1Values, 0x1p-9f), times(kE2m1Values, 448)}))},
  };
}

TEST(Vectors, EveryDecoderGivesTheWorkedExampleExactly) {
  int decodable = 0;
  for (const DecodeCase& c : decode_cases()) {
    const std::string name(dtype_name(c.type));
    const auto bytes = from_hex(c.hex);
    const DTypeInfo& info = dtype_info(c.type);
    ASSERT_EQ(bytes.size() % static_cast<size_t>(info.block_bytes), 0u) << name;
    const int64_t elems = static_cast<int64_t>(bytes.size()) / info.block_bytes * info.block_elems;
    // Preceded by one byte, so that every load is unaligned; followed by a guard that must not change.
    std::vector<std::byte> shifted(1);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    std::vector<float> y(static_cast<size_t>(elems) + 1, 12345.0f);
    ASSERT_TRUE(can_decode(c.type)) << name;
    decode_row(c.type, shifted.data() + 1, elems, y.data());
    for (const auto& [i, want] : c.values) EXPECT_EQ(y[static_cast<size_t>(i)], want) << name << " element " << i;
    EXPECT_EQ(y.back(), 12345.0f) << name;
    ++decodable;
  }
  EXPECT_EQ(decodable, 17);
}

TEST(Vectors, DecodersTakeSeveralBlocks) {
  for (const DecodeCase& c : decode_cases()) {
    const DTypeInfo& info = dtype_info(c.type);
    const auto once = from_hex(c.hex), twice = from_hex(c.hex + c.hex);
    const int64_t n = static_cast<int64_t>(once.size()) / info.block_bytes * info.block_elems;
    std::vector<float> a(static_cast<size_t>(n)), b(static_cast<size_t>(2 * n));
    decode_row(c.type, once.data(), n, a.data());
    decode_row(c.type, twice.data(), 2 * n, b.data());
    EXPECT_EQ(b, join({a, a})) << info.name;
  }
}

TEST(Vectors, OtherTypesCannotBeDecoded) {
  for (const DType t : {DType::kIQ2_XXS, DType::kIQ3_S, DType::kTQ2_0, DType::kI32, DType::kQ8_K, DType::kF64})
    EXPECT_FALSE(can_decode(t)) << dtype_name(t);
}

// 0, .1, -.2, .3, -.4, .5, -.6, .7, .8, -.9, 1, -1.1, 1.2, -1.3, 1.4, -1.5
std::vector<float> tenths(int repeats) {
  const std::vector<float> once = {0,   .1f,  -.2f, .3f,   -.4f, .5f,   -.6f, .7f,
                                   .8f, -.9f, 1.f,  -1.1f, 1.2f, -1.3f, 1.4f, -1.5f};
  std::vector<float> out;
  for (int i = 0; i < repeats; ++i) out.insert(out.end(), once.begin(), once.end());
  return out;
}

std::vector<std::byte> encode(DType type, const std::vector<float>& x) {
  std::vector<std::byte> out(static_cast<size_t>(dtype_bytes(type, static_cast<int64_t>(x.size()))));
  encode_row(type, x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

TEST(Vectors, Bf16RoundsToNearestEven) {
  for (const auto& [f32, bf16] : std::vector<std::pair<uint32_t, uint16_t>>{{0x3f800000, 0x3f80},
                                                                            {0x3f808000, 0x3f80},
                                                                            {0x3f818000, 0x3f82},
                                                                            {0x3f808001, 0x3f81},
                                                                            {0x7f7fffff, 0x7f80},
                                                                            {0x7f800001, 0x7fc0}}) {
    const auto got = encode(DType::kBF16, {std::bit_cast<float>(f32)});
    uint16_t bits;
    std::memcpy(&bits, got.data(), 2);
    EXPECT_EQ(bits, bf16) << std::hex << f32;
  }
}

TEST(Vectors, Q8_0Encoder) {
  const auto got = encode(DType::kQ8_0, tenths(2));
  EXPECT_EQ(got[0], std::byte{0x0c});
  EXPECT_EQ(got[1], std::byte{0x22});
  EXPECT_EQ(static_cast<int8_t>(got[2 + 1]), 8);
  EXPECT_EQ(static_cast<int8_t>(got[2 + 15]), -127);
  float y[32];
  decode_row(DType::kQ8_0, got.data(), 32, y);
  EXPECT_NEAR(y[1], 0.094482, 1e-6);
  EXPECT_NEAR(y[15], -1.499908, 1e-6);
}

TEST(Vectors, Q4_0EncoderPutsTheLargestOnMinusEight) {
  // Largest magnitude -1.5 -> d = 0.1875; x/d + 8.5 truncated.
  const auto got = encode(DType::kQ4_0, tenths(2));
  EXPECT_EQ(got, from_hex("0032 88 99 77 aa 66 bb 55 cc cc 33 dd 22 ee 11 ff 00"));
  // A positive largest gives a negative scale, and the mirrored codes below the 15 that 16 is clamped to.
  std::vector<float> x(32, 0.0f);
  x[3] = 2;
  x[20] = -2;
  EXPECT_EQ(encode(DType::kQ4_0, x), from_hex("00b4 88 88 88 80 f8 88 88 88 88 88 88 88 88 88 88 88"));
}

TEST(Vectors, Mxfp4Encoder) {
  EXPECT_EQ(encode(DType::kMXFP4, tenths(2)), from_hex("7d 0011aa22bb44cc5555ee66ee66ff77ff"));
}

TEST(Vectors, Nvfp4OneLevelEncoder) {
  const std::string codes = "50e16ae26bf47cf5";
  EXPECT_EQ(encode(DType::kNVFP4, tenths(4)), from_hex("28282828" + repeat(codes, 4)));
  std::vector<float> y(64);
  decode_row(DType::kNVFP4, encode(DType::kNVFP4, tenths(4)).data(), 64, y.data());
  EXPECT_THAT(std::vector<float>(y.begin(), y.begin() + 16),
              testing::ElementsAre(0, .125, -.25, .25, -.375, .5, -.5, .75, .75, -1, 1, -1, 1, -1.5, 1.5, -1.5));
}

TEST(Vectors, ZerosEncodeToZeros) {
  for (int id = 0; id < 64; ++id) {
    const auto info = find_dtype(static_cast<uint32_t>(id));
    if (!info || !can_encode(info->type)) continue;
    const std::vector<float> zeros(256, 0.0f);
    std::vector<float> y(256, 1.0f);
    decode_row(info->type, encode(info->type, zeros).data(), 256, y.data());
    EXPECT_EQ(y, zeros) << info->name;
  }
}

}  // namespace
}  // namespace quire::quant
