// The file of limits: every key is read into its option, and what is wrong is told by name.
#include "server/limits_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/program.h"

namespace quire::test {
namespace {

using server::Limit;
using server::ServeOptions;
using testing::HasSubstr;

class LimitsFile : public ProgramTest {
 protected:
  Status read(const std::string& text, ServeOptions& to) const {
    return server::read_limits(write("limits.json", text), to);
  }
  std::string refusal(const std::string& text) const {
    ServeOptions o;
    const Status s = read(text, o);
    return s.ok() ? "none" : s.error().message;
  }
};

TEST_F(LimitsFile, EveryKeyIsReadIntoItsOwnOption) {
  const ServeOptions defaults;
  for (const Limit& l : server::limits()) {
    SCOPED_TRACE(l.name);
    const double value = l.get(defaults) + 1;
    ASSERT_TRUE(value >= l.least && value <= l.most);
    ServeOptions o;
    const Status s = read(fmt::format("{{\"{}\": {}}}", l.name, value), o);
    ASSERT_TRUE(s.ok()) << s.error().message;
    for (const Limit& other : server::limits())
      EXPECT_EQ(other.get(o), other.get(defaults) + (&other == &l ? 1 : 0)) << other.name;
  }
}

TEST_F(LimitsFile, DefaultsAreWithinTheirRanges) {
  const ServeOptions defaults;
  for (const Limit& l : server::limits()) {
    EXPECT_GE(l.get(defaults), l.least) << l.name;
    EXPECT_LE(l.get(defaults), l.most) << l.name;
  }
}

TEST_F(LimitsFile, SecondsMayHaveFractions) {
  ServeOptions o;
  ASSERT_TRUE(read(R"({"idle_timeout": 0.25, "max_n": 3.0})", o).ok());
  EXPECT_EQ(o.http.session.idle_timeout.count(), 250);
  EXPECT_EQ(o.limits.max_n, 3);
  EXPECT_THAT(refusal(R"({"max_n": 2.5})"), HasSubstr("'max_n' must be a whole number from 1 to 1024, not 2.5"));
}

TEST_F(LimitsFile, SaysWhatIsWrong) {
  EXPECT_THAT(refusal(R"({"max_m": 3})"), HasSubstr("there is no limit 'max_m'; there are header_timeout, "));
  EXPECT_THAT(refusal(R"({"body_timeout": "60"})"),
              HasSubstr("'body_timeout' must be a number from 0.001 to 1000000 seconds, not \"60\""));
  EXPECT_THAT(refusal(R"({"max_header_bytes": 1023})"),
              HasSubstr("'max_header_bytes' must be a whole number from 1024 to 1048576 bytes, not 1023"));
  EXPECT_THAT(refusal(R"({"max_n": null})"), HasSubstr("'max_n' must be"));
  EXPECT_THAT(refusal(R"({"max_n": 1e300})"), HasSubstr("'max_n' must be"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("limits.json"));
  EXPECT_THAT(refusal("{\"max_n\": 1, \"max_n\": 2}"), HasSubstr("limits.json"));
  EXPECT_THAT(refusal("{\"a\\u001b[31m\": 1}"), HasSubstr("there is no limit 'a\\u001b[31m'"));
  ServeOptions o;
  EXPECT_THAT(server::read_limits("/nonexistent/limits", o).error().message, HasSubstr("/nonexistent/limits"));
}

}  // namespace
}  // namespace quire::test
