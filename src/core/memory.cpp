#include "core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

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

}  // namespace

int64_t available_memory() {
  // What the group uses is left out: most of it may be page cache, which makes room.
  return std::min(system_memory(), group_memory_limit());
}

}  // namespace quire
