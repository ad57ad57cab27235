#include "core/count.h"

#include <gtest/gtest.h>

#include <limits>

namespace quire {
namespace {

int64_t count(std::string_view text) {
  int64_t value = 0;
  EXPECT_EQ(parse_count(text, value), CountError::kNone) << text;
  return value;
}

CountError error(std::string_view text) {
  int64_t value = 77;
  const CountError e = parse_count(text, value);
  EXPECT_EQ(value, 77) << text;
  return e;
}

TEST(Count, Numbers) {
  EXPECT_EQ(count("0"), 0);
  EXPECT_EQ(count("-1"), -1);
  EXPECT_EQ(count("010"), 10);
  EXPECT_EQ(count("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(error("9223372036854775808"), CountError::kOutOfRange);
  uint64_t large = 0;
  EXPECT_EQ(parse_count("18446744073709551615", large), CountError::kNone);
  EXPECT_EQ(large, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_count("-1", large), CountError::kNotWhole);
}

TEST(Count, Letters) {
  EXPECT_EQ(count("8k"), 8000);
  EXPECT_EQ(count("8K"), 8192);
  EXPECT_EQ(count("1m"), 1'000'000);
  EXPECT_EQ(count("1M"), 1 << 20);
  EXPECT_EQ(count("3g"), 3'000'000'000);
  EXPECT_EQ(count("1G"), 1 << 30);
  EXPECT_EQ(count("2t"), 2'000'000'000'000);
  EXPECT_EQ(count("2T"), int64_t{2} << 40);
  EXPECT_EQ(count("-2k"), -2000);
  EXPECT_EQ(count("9223372036854775k"), 9223372036854775000);
  EXPECT_EQ(error("9223372036854776k"), CountError::kOutOfRange);
  EXPECT_EQ(error("99999999999999999999k"), CountError::kOutOfRange);
}

TEST(Count, Fractions) {
  EXPECT_EQ(count("25.6k"), 25600);
  EXPECT_EQ(count("-1.5k"), -1500);
  EXPECT_EQ(count("0.0010m"), 1000);
  EXPECT_EQ(count("1.000000000001t"), 1'000'000'000'001);
  for (const char* const bad : {"1.5", "1.5K", "1.2345k", "1.k", ".5k", "1.5.5k", "1.-5k", "1. 5k"})
    EXPECT_EQ(error(bad), CountError::kNotWhole) << bad;
}

TEST(Count, WhatIsNone) {
  for (const char* const bad : {"", "k", "x", "8kb", "8 k", " 8", "8x", "+8", "0x10", "1e3", "--1", "8kk", "1_000"})
    EXPECT_EQ(error(bad), CountError::kNotWhole) << bad;
}

}  // namespace
}  // namespace quire
