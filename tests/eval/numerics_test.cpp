// The bits that every level of CPUs computes are those of the table. Files of prefixes and whoever compares
// fingerprints rely on it: same fingerprint, same bits, also between two versions of the program.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/cpu.h"
#include "eval/logit_hash.h"
#include "support/numerics_rows.h"

namespace quire::test {
namespace {

// In a process of its own, because a level is for good.
Result<std::vector<NumericsRow>> rows_of(CpuLevel level) {
  int fds[2];
  QUIRE_CHECK(pipe(fds) == 0, "pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(fds[0]);
    FILE* const out = fdopen(fds[1], "w");
    const auto rows = [&]() -> Result<std::vector<NumericsRow>> {
      QUIRE_CHECKED(limit_cpu(cpu_level_name(level)));
      return numerics_rows(Device::kCpu, numerics_machine(Machine{}));
    }();
    if (!rows.ok()) std::fprintf(stderr, "%s\n", rows.error().message.c_str());
    if (rows.ok())
      for (const NumericsRow& row : *rows) std::fputs(row.line().c_str(), out);
    std::fclose(out);
    _exit(rows.ok() ? 0 : 1);
  }
  close(fds[1]);
  FILE* const in = fdopen(fds[0], "r");
  std::vector<NumericsRow> rows;
  char machine[100], arithmetic[100], kv[100], model[100], hash[20];
  while (std::fscanf(in, "%99s %99s %99s %99s %19s", machine, arithmetic, kv, model, hash) == 5)
    rows.push_back({machine, arithmetic, kv, model, std::stoull(hash, nullptr, 16)});
  std::fclose(in);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return request_error("{} has no rows: status {}", cpu_level_name(level), status);
  return rows;
}

// Whose rows are whose: levels of x86-64 have their own, ARM's up to i8mm those of AVX2, whose bits they give.
TEST(NumericsMachine, LevelsOfArmShareRows) {
  Machine machine{.device = Device::kCpu};
  machine.cpu = {.base = true};
  const std::string base = numerics_machine(machine);
  EXPECT_EQ(base, "avx2");
  machine.cpu.dotprod = machine.cpu.i8mm = kOnArm;
  machine.cpu.avx_vnni = kOnX86;
  EXPECT_EQ(numerics_machine(machine), kOnArm ? base : "avx2+avx_vnni");
  machine.cpu.bf16 = kOnArm;
  EXPECT_EQ(numerics_machine(machine), kOnArm ? "avx2+bfmmla" : "avx2+avx_vnni");
}

class Numerics : public testing::TestWithParam<CpuLevel> {};

TEST_P(Numerics, BitsAreThoseOfTheTable) {
  if (!reaches(cpu_features(), GetParam())) GTEST_SKIP() << "this CPU cannot run " << cpu_level_name(GetParam());
  const auto rows = rows_of(GetParam());
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  ASSERT_FALSE(rows->empty());
  if (print_hashes_of_flag) {
    for (const NumericsRow& row : *rows) std::fputs(row.line().c_str(), stdout);
    return;
  }
  const NumericsDifference d = differences(*rows);
  EXPECT_EQ(d.changed, "") << "Bits have changed. Undo that, or raise kNumericsVersion (src/engine/engine.cpp) and put "
                              "the new rows of every machine into tests/data/numerics/hashes.txt: test_eval "
                              "--gtest_filter='*Numerics*' --print-hashes prints this one's.";
  if (GetParam() == CpuLevel::kBase) {
    EXPECT_EQ(d.unknown, "") << "every machine runs these: they are in the table";
  } else if (!d.unknown.empty()) {
    GTEST_SKIP() << "not in tests/data/numerics/hashes.txt:\n" << d.unknown;
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Numerics,
                         testing::Values(CpuLevel::kBase, CpuLevel::kAvxVnni, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16,
                                         CpuLevel::kAmx, CpuLevel::kDotProd, CpuLevel::kI8mm, CpuLevel::kBf16),
                         [](const auto& level) { return std::string(cpu_level_name(level.param)); });

}  // namespace
}  // namespace quire::test
