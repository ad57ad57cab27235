// Every conformance suite as one test, so that ctest runs what `quire test-ops` runs.
#include <gtest/gtest.h>

#include <ostream>

#include "ops/conformance/conformance.h"
#include "ops/registry.h"

namespace quire {

// Without it a test's listed name holds the entry's bytes, which differ from run to run.
void PrintTo(const OperatorInfo& op, std::ostream* out) {
  *out << op.name;
}

namespace conformance {
namespace {

class OpsConformance : public testing::TestWithParam<OperatorInfo> {};

TEST_P(OpsConformance, Passes) {
  const Suite suite = run_suite(GetParam(), {});
  EXPECT_GT(suite.passed(), 0) << "the suite checked nothing";
  EXPECT_EQ(suite.failed(), 0);
  for (const std::string& f : suite.failures()) ADD_FAILURE() << f;
  for (const Suite::Count& c : suite.counts())
    if (!c.skipped.empty())
      std::printf("%s %s skipped: %s\n", std::string(GetParam().name).c_str(), c.kernel.c_str(), c.skipped.c_str());
}

// For sanitizers, which take too long for all cases.
TEST_P(OpsConformance, PassesOneCaseOnThreeThreads) {
  Options options;
  options.one_case = true;
  options.threads = 3;
  const Suite suite = run_suite(GetParam(), options);
  EXPECT_GT(suite.passed(), 0);
  EXPECT_EQ(suite.failed(), 0);
  for (const std::string& f : suite.failures()) ADD_FAILURE() << f;
}

INSTANTIATE_TEST_SUITE_P(Suites, OpsConformance, testing::ValuesIn(operators().begin(), operators().end()),
                         [](const auto& op) { return std::string(op.param.name); });

}  // namespace
}  // namespace conformance
}  // namespace quire
