#include "core/cpu.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/cgroup.h"

namespace quire {
namespace {

constexpr int kArchReqXcompPerm = 0x1023;  // asm/prctl.h
constexpr int kXfeatureXtiledata = 18;

CpuFeatures detect() {
  CpuFeatures f;
  // The compiler's check covers the operating system's side (saved ymm and zmm state) too.
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const bool amx_tile = d & (1u << 24), amx_bf16 = d & (1u << 22);
  f.avx512_fp16 = f.avx512 && (d & (1u << 23));
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
    f.avx_vnni = f.avx2 && (a & (1u << 4));
    f.avx512_bf16 = f.avx512 && (a & (1u << 5));
  }
  if (f.avx512_bf16 && f.avx512_fp16 && amx_tile && amx_bf16)
    f.amx_bf16 = syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
  return f;
}

constexpr CpuLevel kLevels[] = {CpuLevel::kAvx2, CpuLevel::kAvxVnni, CpuLevel::kAvx512, CpuLevel::kAvx512Bf16,
                                CpuLevel::kAmx};

CpuFeatures& shown_features() {
  static CpuFeatures f = detect();
  return f;
}

CpuFeatures without_what_is_above(CpuLevel level, CpuFeatures f) {
  if (level < CpuLevel::kAvxVnni) f.avx_vnni = false;
  if (level < CpuLevel::kAvx512) f.avx512 = false;
  if (level < CpuLevel::kAvx512Bf16) f.avx512_bf16 = false;
  if (level < CpuLevel::kAmx) f.avx512_fp16 = f.amx_bf16 = false;
  return f;
}

}  // namespace

std::string_view cpu_level_name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvxVnni:
      return "avx_vnni";
    case CpuLevel::kAvx512:
      return "avx512";
    case CpuLevel::kAvx512Bf16:
      return "avx512_bf16";
    case CpuLevel::kAmx:
      return "amx";
  }
  return "unknown";
}

bool reaches(const CpuFeatures& f, CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2:
      return f.avx2;
    case CpuLevel::kAvxVnni:
      return f.avx_vnni;
    case CpuLevel::kAvx512:
      return f.avx512;
    case CpuLevel::kAvx512Bf16:
      return f.avx512_bf16;
    case CpuLevel::kAmx:
      return f.amx_bf16;
  }
  return false;
}

const CpuFeatures& cpu_features() {
  return shown_features();
}

Status limit_cpu(std::string_view level) {
  std::string there;
  for (const CpuLevel l : kLevels) {
    if (!reaches(cpu_features(), l)) continue;
    if (cpu_level_name(l) == level) {
      shown_features() = without_what_is_above(l, cpu_features());
      return {};
    }
    there += fmt::format("{}{}", there.empty() ? "" : ", ", cpu_level_name(l));
  }
  return request_error("this CPU cannot run as '{}'; it can as {}", level, there);
}

std::string describe(const CpuFeatures& f) {
  std::string s;
  const auto add = [&](bool on, const char* name) {
    if (!on) return;
    if (!s.empty()) s += ' ';
    s += name;
  };
  add(f.avx2, "avx2");
  add(f.avx_vnni, "avx_vnni");
  add(f.avx512, "avx512");
  add(f.avx512_bf16, "avx512_bf16");
  add(f.avx512_fp16, "avx512_fp16");
  add(f.amx_bf16, "amx_bf16");
  if (s.empty()) s = "none";
  return s;
}

int available_cpus() {
  cpu_set_t set;
  int cpus = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = std::max(cpus, CPU_COUNT(&set));
  // Rounded down: a thread more than the quota pays for is stopped in the middle of its work, and the others wait for
  // it.
  return static_cast<int>(std::clamp(group_cpu_quota(), 1.0, static_cast<double>(cpus)));
}

}  // namespace quire
