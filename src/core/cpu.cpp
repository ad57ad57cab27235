#include "core/cpu.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "core/cgroup.h"
#include "core/cpu_capacity.h"
#include "core/cpu_detect.h"

namespace quire {
namespace {

struct NamedLevel {
  CpuLevel level;
  std::string_view name;
  bool CpuFeatures::*there;
};
constexpr NamedLevel kLevels[] = {{CpuLevel::kBase, kBaseLevel, &CpuFeatures::base},
                                  {CpuLevel::kAvxVnni, "avx_vnni", &CpuFeatures::avx_vnni},
                                  {CpuLevel::kAvx512, "avx512", &CpuFeatures::avx512},
                                  {CpuLevel::kAvx512Bf16, "avx512_bf16", &CpuFeatures::avx512_bf16},
                                  {CpuLevel::kAmx, "amx", &CpuFeatures::amx_bf16},
                                  {CpuLevel::kDotProd, "dotprod", &CpuFeatures::dotprod},
                                  {CpuLevel::kI8mm, "i8mm", &CpuFeatures::i8mm},
                                  {CpuLevel::kBf16, "bf16", &CpuFeatures::bf16}};

const NamedLevel* find(CpuLevel level) {
  const auto* const at =
      std::find_if(std::begin(kLevels), std::end(kLevels), [&](const NamedLevel& l) { return l.level == level; });
  return at == std::end(kLevels) ? nullptr : at;
}

struct NamedFeature {
  std::string_view name;
  bool CpuFeatures::*there;
  CpuLevel level;  // the first that has it
};
constexpr NamedFeature kFeatures[] = {{kBaseLevel, &CpuFeatures::base, CpuLevel::kBase},
                                      {"avx_vnni", &CpuFeatures::avx_vnni, CpuLevel::kAvxVnni},
                                      {"avx512", &CpuFeatures::avx512, CpuLevel::kAvx512},
                                      {"avx512_bf16", &CpuFeatures::avx512_bf16, CpuLevel::kAvx512Bf16},
                                      {"avx512_fp16", &CpuFeatures::avx512_fp16, CpuLevel::kAmx},
                                      {"amx_bf16", &CpuFeatures::amx_bf16, CpuLevel::kAmx},
                                      {"dotprod", &CpuFeatures::dotprod, CpuLevel::kDotProd},
                                      {"i8mm", &CpuFeatures::i8mm, CpuLevel::kI8mm},
                                      {"bf16", &CpuFeatures::bf16, CpuLevel::kBf16}};

CpuFeatures& shown_features() {
  static CpuFeatures f = detect_cpu_features();
  return f;
}

CpuFeatures without_what_is_above(CpuLevel level, CpuFeatures f) {
  for (const NamedFeature& k : kFeatures)
    if (k.level > level) f.*k.there = false;
  return f;
}

int capacity_of(int cpu) {
  int capacity = 0;
  std::ifstream(fmt::format("/sys/devices/system/cpu/cpu{}/cpu_capacity", cpu)) >> capacity;
  return capacity;
}

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
  if (!only.base) return request_error("this CPU cannot run as '{}': all kernels need {}", names, kBaseLevel);
  shown_features() = only;
  return {};
}

}  // namespace

std::string_view cpu_level_name(CpuLevel level) {
  const NamedLevel* const named = find(level);
  return named == nullptr ? "unknown" : named->name;
}

bool reaches(const CpuFeatures& f, CpuLevel level) {
  const NamedLevel* const named = find(level);
  return named != nullptr && f.*named->there;
}

const CpuFeatures& cpu_features() {
  return shown_features();
}

Status limit_cpu(std::string_view level) {
  std::string there;
  if (level.find('+') != level.npos) return limit_to_features(level);
  for (const NamedLevel& l : kLevels) {
    if (!(cpu_features().*l.there)) continue;
    if (l.name == level) {
      shown_features() = without_what_is_above(l.level, cpu_features());
      return {};
    }
    there += fmt::format("{}{}", there.empty() ? "" : ", ", l.name);
  }
  return request_error("this CPU cannot run as '{}'; it can as {}", level, there);
}

std::string describe(const CpuFeatures& f) {
  std::string s;
  for (const NamedFeature& k : kFeatures)
    if (f.*k.there) s += fmt::format("{}{}", s.empty() ? "" : " ", k.name);
  return s.empty() ? "none" : s;
}

int worth_a_thread(std::span<const int> capacities) {
  const auto [least, most] = std::minmax_element(capacities.begin(), capacities.end());
  if (capacities.empty() || *least <= 0) return static_cast<int>(capacities.size());
  return static_cast<int>(std::count_if(capacities.begin(), capacities.end(), [&](int c) { return 2 * c >= *most; }));
}

int available_cpus() {
  cpu_set_t set;
  int cpus = 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::vector<int> capacities;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) capacities.push_back(capacity_of(cpu));
    cpus = std::max(cpus, worth_a_thread(capacities));
  }
  // Rounded down: a thread more than the quota pays for is stopped in the middle of its work, and the others wait for
  // it.
  return static_cast<int>(std::clamp(group_cpu_quota(), 1.0, static_cast<double>(cpus)));
}

}  // namespace quire
