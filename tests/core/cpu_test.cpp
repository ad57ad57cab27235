// Levels of a CPU, and hiding what lies above one.
#include "core/cpu.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kAvx2, CpuLevel::kAvxVnni, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16,
                                CpuLevel::kAmx};

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
    EXPECT_EXIT(expect_limited_to(level), testing::ExitedWithCode(0), "avx2") << cpu_level_name(level);
  }
}

// As a CPU with AVX-512 that lacks AVX-VNNI.
TEST(CpuDeathTest, FeaturesHideAllOthers) {
  std::string named = "avx2";
  for (const auto& [name, there] :
       {std::pair{"+avx512", cpu_features().avx512}, std::pair{"+avx512_bf16", cpu_features().avx512_bf16}})
    if (there) named += name;
  if (named == "avx2") named += '+';
  const auto limit = [&] {
    const bool right = limit_cpu(named).ok() && !cpu_features().avx_vnni && !cpu_features().amx_bf16;
    std::fprintf(stderr, "now %s", describe(cpu_features()).c_str());
    std::exit(right ? 0 : 1);
  };
  EXPECT_EXIT(limit(), testing::ExitedWithCode(0), "now avx2");
}

TEST(Cpu, FeaturesThatAreNotThereAreRefused) {
  for (const char* const names : {"avx2+sse9", "+avx2", "avx_vnni+", "avx2++"}) {
    const Status refused = limit_cpu(names);
    ASSERT_FALSE(refused.ok()) << names;
    EXPECT_NE(refused.error().message.find(std::string("cannot run as '") + names), std::string::npos);
  }
}

TEST(Cpu, ALevelThatIsNotThereIsRefused) {
  const Status unknown = limit_cpu("sse9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("cannot run as 'sse9'; it can as avx2"), std::string::npos)
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
    EXPECT_TRUE(below || !reaches(cpu_features(), level)) << cpu_level_name(level);
    below = reaches(cpu_features(), level);
  }
}

}  // namespace
}  // namespace quire
