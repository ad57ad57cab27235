// Every test program's main: GoogleTest's own flags, --cpu to run the kernels of an older CPU on this one, and --seeds
// for those tests that draw at random, --print-hashes to print rows of a table instead of comparing with it. A run that
// finds nothing to test fails.
#include <gmock/gmock.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "commands.h"
#include "core/cpu.h"
#include "numerics_rows.h"
#include "seeds.h"

namespace {

quire::Status take_seeds(std::string_view text) {
  quire::test::Seeds& seeds = quire::test::seeds_of_flag;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, seeds.last);
  if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-') {
    seeds.first = seeds.last;
    read = std::from_chars(read.ptr + 1, end, seeds.last);
  }
  if (read.ec == std::errc{} && read.ptr == end && seeds.first > 0 && seeds.count() > 0) return {};
  return quire::request_error("--seeds '{}': must be a number from 1 on, or two, the first and the last", text);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto& all = quire::test::commands(); argc == 2 && all.contains(argv[1])) return all.at(argv[1])();
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kCpu = "--cpu=", kSeeds = "--seeds=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--print-hashes") {
      quire::test::print_hashes_of_flag = true;
      continue;
    }
    const quire::Status known = argument.starts_with(kCpu) ? quire::limit_cpu(argument.substr(kCpu.size()))
                                : argument.starts_with(kSeeds)
                                    ? take_seeds(argument.substr(kSeeds.size()))
                                    : quire::request_error(
                                          "unknown argument '{}'; there are GoogleTest's, --cpu=LEVEL, "
                                          "--print-hashes and --seeds=N or A-B",
                                          argument);
    if (known.ok()) continue;
    std::fprintf(stderr, "%s: %s\n", argv[0], known.error().message.c_str());
    return 2;
  }
  const int failed = RUN_ALL_TESTS();
  if (testing::UnitTest::GetInstance()->test_to_run_count() > 0) return failed;
  std::fprintf(stderr, "%s: the filter matches no test\n", argv[0]);
  return 2;
}
