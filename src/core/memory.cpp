#include "core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace quire {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

int64_t read_number(const std::string& path) {
  int64_t bytes = 0;
  return std::ifstream(path) >> bytes ? bytes : kUnknown;  // "max" is no number
}

// "MemAvailable:   123 kB"
int64_t system_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key;
  for (int64_t kib = 0; info >> key; info.ignore(256, '\n'))
    if (key == "MemAvailable:") return info >> kib ? kib << 10 : kUnknown;
  return kUnknown;
}

// The smallest limit of this process's control group and those above it: version 2, where "0::/a/b" names the
// group, and version 1 as a container sees it.
int64_t group_limit() {
  const std::string root = "/sys/fs/cgroup";
  int64_t limit = read_number(root + "/memory/memory.limit_in_bytes");
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      limit = std::min(limit, read_number(root + path + "/memory.max"));
      if (path.empty()) break;
    }
  }
  return limit;
}

}  // namespace

int64_t available_memory() {
  // What the group uses is left out: most of it may be page cache, which makes room.
  return std::min(system_memory(), group_limit());
}

}  // namespace quire
