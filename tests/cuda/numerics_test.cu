// The bits that this GPU computes are those of the table, if it knows the kind (tests/eval/numerics_test.cpp).
#include <gtest/gtest.h>

#include <cstdio>

#include "core/cuda/device.h"
#include "support/numerics_rows.h"

namespace quire::cuda_test {
namespace {

TEST(Numerics, BitsAreThoseOfTheTable) {
  const auto limits = cuda::device_limits();
  ASSERT_TRUE(limits.ok());
  const auto rows = test::numerics_rows(
      Device::kCuda, fmt::format("cuda+sm_{}{}{}", limits->major, limits->minor, limits->wgmma ? "" : "+mma.sync"),
      limits->wgmma);
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  if (test::print_hashes_of_flag) {
    for (const test::NumericsRow& row : *rows) std::fputs(row.line().c_str(), stdout);
    return;
  }
  const test::NumericsDifference d = test::differences(*rows);
  EXPECT_EQ(d.changed, "") << "Bits have changed. Undo that, or raise kNumericsVersion (src/engine/engine.cpp) and put "
                              "the new rows of every machine into tests/data/numerics/hashes.txt: cuda_checks "
                              "--gtest_filter='Numerics.*' --print-hashes prints this one's.";
  if (!d.unknown.empty()) GTEST_SKIP() << "not in tests/data/numerics/hashes.txt:\n" << d.unknown;
}

}  // namespace
}  // namespace quire::cuda_test
