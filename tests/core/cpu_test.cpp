// Levels of a CPU, and hiding what lies above one.
#include "core/cpu.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/cpu_capacity.h"

namespace quire {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kBase, CpuLevel::kAvxVnni, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16,
                                CpuLevel::kAmx,  CpuLevel::kDotProd, CpuLevel::kI8mm,   CpuLevel::kBf16};
const std::string kBase(kBaseLevel);

// In a process of its own: limits cannot be taken back.
void expect_limited_to(CpuLevel level) {
  const CpuFeatures all = cpu_features();
  const Status limited = limit_cpu(cpu_level_name(level));
  bool right = limited.ok();
  for (const CpuLevel l : kLevels) right = right && reaches(cpu_features(), l) == (l <= level && reaches(all, l));
  right = right && (level >= CpuLevel::kAmx || !cpu_features().avx512_fp16);
  std::fprintf(stderr, "%s", describe(cpu_features()).c_str());
  std::exit(right ? 0 : 1);
}

TEST(CpuDeathTest, ALimitHidesWhatLiesAboveIt) {
  for (const CpuLevel level : kLevels) {
    if (!reaches(cpu_features(), level)) continue;
    EXPECT_EXIT(expect_limited_to(level), testing::ExitedWithCode(0), kBase) << cpu_level_name(level);
  }
}

// As a CPU with AVX-512 that lacks AVX-VNNI.
TEST(CpuDeathTest, FeaturesHideAllOthers) {
  std::string named = kBase;
  for (const auto& [name, there] :
       {std::pair{"+avx512", cpu_features().avx512}, std::pair{"+avx512_bf16", cpu_features().avx512_bf16},
        std::pair{"+dotprod", cpu_features().dotprod}})
    if (there) named += name;
  if (named == kBase) named += '+';
  const auto limit = [&] {
    const bool right = limit_cpu(named).ok() && !cpu_features().avx_vnni && !cpu_features().amx_bf16 &&
                       !cpu_features().i8mm && !cpu_features().bf16;
    std::fprintf(stderr, "now %s", describe(cpu_features()).c_str());
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(limit(), testing::ExitedWithCode(0), "now " + kBase);
}

TEST(Cpu, FeaturesThatAreNotThereAreRefused) {
  for (const std::string& names : {kBase + "+sse9", "+" + kBase, std::string("avx_vnni+"), kBase + "++"}) {
    const Status refused = limit_cpu(names);
    ASSERT_FALSE(refused.ok()) << names;
    EXPECT_NE(refused.error().message.find("cannot run as '" + names), std::string::npos);
  }
}

TEST(Cpu, SlowOnesGetNoThread) {
  const auto worth = [](std::vector<int> capacities) { return worth_a_thread(capacities); };
  EXPECT_EQ(worth({}), 0);
  EXPECT_EQ(worth({1024, 1024}), 2);
  EXPECT_EQ(worth({1024, 1024, 718, 718}), 4);           // Cortex-X925 and A725
  EXPECT_EQ(worth({446, 446, 446, 446, 1024, 871}), 2);  // Cortex-A55 beside A76
  EXPECT_EQ(worth({512, 1024, 511}), 2);
  EXPECT_EQ(worth({0, 1024, 0}), 3) << "unknown";
  EXPECT_GE(available_cpus(), 1);
}

TEST(Cpu, ALevelThatIsNotThereIsRefused) {
  const Status unknown = limit_cpu("sse9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("cannot run as 'sse9'; it can as " + kBase), std::string::npos)
      << unknown.error().message;
  for (const CpuLevel level : kLevels) {
    if (reaches(cpu_features(), level)) continue;
    EXPECT_FALSE(limit_cpu(cpu_level_name(level)).ok()) << cpu_level_name(level);
  }
}

TEST(Cpu, EveryLevelHasAllBeforeIt) {
  bool below = true;
  for (const CpuLevel level : kLevels) {
    if (level == CpuLevel::kAvxVnni) continue;  // not every CPU with AVX-512 has it
    if (level == CpuLevel::kDotProd) below = reaches(cpu_features(), CpuLevel::kBase);  // those of ARM
    EXPECT_TRUE(below || !reaches(cpu_features(), level)) << cpu_level_name(level);
    below = reaches(cpu_features(), level);
  }
}

}  // namespace
}  // namespace quire
