// Every test program's main: GoogleTest's own flags, and --cpu to run the kernels of an older CPU on this
// one. A run that finds nothing to test fails.
#include <gmock/gmock.h>

#include <cstdio>
#include <string_view>

#include "core/cpu.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kCpu = "--cpu=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const quire::Status known =
        argument.starts_with(kCpu)
            ? quire::limit_cpu(argument.substr(kCpu.size()))
            : quire::request_error("unknown argument '{}'; there are GoogleTest's and --cpu=LEVEL", argument);
    if (known.ok()) continue;
    std::fprintf(stderr, "%s: %s\n", argv[0], known.error().message.c_str());
    return 2;
  }
  const int failed = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() > 0) return failed;
  std::fprintf(stderr, "%s: the filter matches no test\n", argv[0]);
  return 2;
}
