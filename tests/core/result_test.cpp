#include "core/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace quire {
namespace {

Result<int> parse(int x) {
  if (x < 0) return request_error("{} is negative", x);
  return x;
}
Result<std::string> twice(int x) {
  QUIRE_TRY(const int y, parse(x));
  return std::to_string(2 * y);
}
Status both(int a, int b) {
  QUIRE_CHECKED(twice(a));
  QUIRE_CHECKED(twice(b));
  return {};
}

TEST(Result, CarriesAValueOrAnError) {
  EXPECT_TRUE(parse(3).ok());
  EXPECT_EQ(*parse(3), 3);
  EXPECT_FALSE(parse(-3).ok());
  EXPECT_EQ(parse(-3).error().message, "-3 is negative");
  EXPECT_EQ(parse(-3).error().fault, Fault::kRequest);
  EXPECT_EQ(file_error("x").fault, Fault::kModelFile);
  EXPECT_EQ(capacity_error("x").fault, Fault::kCapacity);
}

TEST(Result, TryReturnsTheErrorOrGoesOn) {
  EXPECT_EQ(*twice(21), "42");
  EXPECT_EQ(twice(-1).error().message, "-1 is negative");
  EXPECT_TRUE(both(1, 2).ok());
  EXPECT_EQ(both(1, -2).error().message, "-2 is negative");
  EXPECT_EQ(both(-1, -2).error().message, "-1 is negative");
}

TEST(Result, ContextGrowsFromTheInsideOut) {
  const auto r = parse(-1).context("token 3").context("loading m.gguf");
  EXPECT_EQ(r.error().message, "loading m.gguf: token 3: -1 is negative");
  EXPECT_EQ(*parse(1).context("unused"), 1);
  EXPECT_EQ(both(-1, 0).context("both").error().message, "both: -1 is negative");
}

TEST(Result, HoldsWhatCanOnlyBeMoved) {
  const auto make = [](int x) -> Result<std::unique_ptr<int>> {
    QUIRE_TRY(const int y, parse(x));
    return std::make_unique<int>(y);
  };
  const std::unique_ptr<int> p = make(5).value();
  EXPECT_EQ(*p, 5);
  EXPECT_FALSE(make(-5).ok());
}

// An Error is also a possible value's neighbour: the index decides, not the type.
TEST(Result, OfABool) {
  EXPECT_TRUE(Result<bool>(false).ok());
  EXPECT_FALSE(*Result<bool>(false));
}

TEST(CheckDeathTest, PrintsTheConditionAndTheMessage) {
  EXPECT_DEATH(QUIRE_CHECK(1 + 1 == 3, "sum of {}", 7), "check failed: 1 \\+ 1 == 3: sum of 7");
  QUIRE_CHECK(true, "not reached");
}

}  // namespace
}  // namespace quire
