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

struct NamedFeature {
  std::string_view name;
  bool CpuFeatures::*there;
};
constexpr NamedFeature kFeatures[] = {{"avx2", &CpuFeatures::avx2},
                                      {"avx_vnni", &CpuFeatures::avx_vnni},
                                      {"avx512", &CpuFeatures::avx512},
                                      {"avx512_bf16", &CpuFeatures::avx512_bf16},
                                      {"avx512_fp16", &CpuFeatures::avx512_fp16},
                                      {"amx_bf16", &CpuFeatures::amx_bf16}};

// "avx2+avx512": those and no others.
Status limit_to_features(std::string_view names) {
  CpuFeatures only;
  for (std::string_view rest = names; !rest.empty();) {
    const size_t end = std::min(rest.find('+'), rest.size());
    const std::string_view name = rest.substr(0, end);
    const auto* const f =
        std::find_if(std::begin(kFeatures), std::end(kFeatures), [&](const NamedFeature& k) { return k.name == name; });
    if (f == std::end(kFeatures) || !(cpu_features().*f->there))
      return request_error("this CPU cannot run as '{}': it is '{}'", names, describe(cpu_features()));
    only.*f->there = true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!only.avx2) return request_error("this CPU cannot run as '{}': all kernels need avx2", names);
  shown_features() = only;
  return {};
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
  if (level.find('+') != level.npos) return limit_to_features(level);
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
  for (const NamedFeature& k : kFeatures)
    if (f.*k.there) s += fmt::format("{}{}", s.empty() ? "" : " ", k.name);
  return s.empty() ? "none" : s;
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
