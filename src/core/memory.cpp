#include "core/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/cgroup.h"

namespace quire {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// "MemAvailable:   123 kB"
int64_t system_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key;
  for (int64_t kib = 0; info >> key; info.ignore(256, '\n'))
    if (key == "MemAvailable:") return info >> kib ? kib << 10 : kUnknown;
  return kUnknown;
}

// What a limit leaves of what the process has, which /proc/self/statm counts in pages: all addresses first, data sixth.
int64_t below_limit(__rlimit_resource resource, int field) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(kUnknown)) return kUnknown;
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  for (int i = 0; i <= field; ++i) statm >> pages;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

}  // namespace

int64_t available_memory() {
  return std::min({system_memory(), group_memory_left(), below_limit(RLIMIT_AS, 0), below_limit(RLIMIT_DATA, 5)});
}

void give_back_pages(std::span<const std::byte> range) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(range.data()), last = first + range.size();
  const uintptr_t begin = (first + page - 1) / page * page, end = last / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_PAGEOUT);
}

int64_t resident_memory(std::span<std::byte> pages) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> in((pages.size() + page - 1) / page);
  if (pages.empty() || mincore(pages.data(), pages.size(), in.data()) != 0) return 0;
  return static_cast<int64_t>(page) * std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1) != 0; });
}

}  // namespace quire
