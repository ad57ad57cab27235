#include "core/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/log.h"

namespace quire {
namespace {

using Unit = Progress::Unit;
using testing::HasSubstr;
using testing::Not;

TEST(ProgressLine, ShowsShareRateAndEstimate) {
  EXPECT_EQ(progress_line("loading", 0, 10, Unit::kItems, 0.0), "loading [>                       ]   0%  0 of 10");
  EXPECT_EQ(progress_line("packing", 5, 10, Unit::kItems, 2.0),
            "packing [============>           ]  50%  5 of 10  2 s left");
  EXPECT_EQ(progress_line("loading", 3'000'000'000, 12'000'000'000, Unit::kBytes, 1.5),
            "loading [======>                 ]  25%  3.0 GB of 12.0 GB  2.0 GB/s  5 s left");
  EXPECT_THAT(progress_line("x", 1, 1000, Unit::kItems, 1.0), HasSubstr("16:39 min left"));
  EXPECT_THAT(progress_line("x", 1, 10000, Unit::kItems, 1.0), HasSubstr("2:46 h left"));
  EXPECT_THAT(progress_line("x", 5, 10, Unit::kItems, 0.01), Not(HasSubstr("left"))) << "too early to tell";
}

TEST(ProgressLine, BearsNonsense) {
  EXPECT_THAT(progress_line("x", 20, 10, Unit::kItems, 1.0), HasSubstr("100%"));
  EXPECT_THAT(progress_line("x", 0, 0, Unit::kBytes, 1.0), HasSubstr("100%"));
  EXPECT_THAT(progress_line("x", -5, 10, Unit::kItems, 1.0), HasSubstr("  0%"));
}

TEST(Progress, DrawsRarelyAndCleansUp) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
  ASSERT_NE(file, nullptr);
  {
    Progress p("working", 100000, Unit::kItems, file.get());
    for (int i = 0; i < 100000; ++i) p.add(1);
  }
  std::string text(static_cast<size_t>(std::ftell(file.get())), '\0');
  std::rewind(file.get());
  ASSERT_EQ(std::fread(text.data(), 1, text.size(), file.get()), text.size());
  EXPECT_THAT(text, testing::StartsWith("\rworking ["));
  EXPECT_LT(std::count(text.begin(), text.end(), '['), 1000) << "drawn by the clock, not by the call";
  EXPECT_EQ(text.back(), '\r') << "the line is blank again";
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Log, KnowsItsLevels) {
  EXPECT_TRUE(set_up_logging("warning").ok());
  const Status s = set_up_logging("loud");
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().fault, Fault::kRequest);
  EXPECT_EQ(s.error().message, "no log level 'loud'; there are trace, debug, info, warning, error, off");
}

}  // namespace
}  // namespace quire
