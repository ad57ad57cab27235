#include "core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

namespace quire {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr double kNoQuota = std::numeric_limits<double>::infinity();

// The folder `top` + "/a/b", and those above it up to `top`.
void add_with_parents(const std::string& top, std::string path, std::vector<std::string>& folders) {
  while (path.ends_with('/')) path.pop_back();
  for (;; path.resize(path.rfind('/'))) {
    folders.push_back(top + path);
    if (path.empty()) return;
  }
}

bool lists(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

// Lines are "0::/a/b" for version 2 and "4:cpu,cpuacct:/a/b" for version 1, whose folder a container has without /a/b.
std::vector<std::string> folders_of(const ControlGroups& groups, std::string_view controller) {
  std::vector<std::string> folders;
  std::ifstream membership(groups.membership);
  for (std::string line; std::getline(membership, line);) {
    const size_t first = line.find(':'), second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string names = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (names.empty()) add_with_parents(groups.root, path, folders);
    if (lists(names, controller)) add_with_parents(groups.root + "/" + std::string(controller), path, folders);
  }
  folders.push_back(groups.root + "/" + std::string(controller));
  return folders;
}

template <class T>
bool read_from(const std::string& path, T& first) {
  return static_cast<bool>(std::ifstream(path) >> first);  // "max" is no number
}

// Bytes of a group that are no page cache. Version 1 counts what groups below it use as "total_...", without the
// kernel's.
int64_t unreclaimable(const std::string& folder) {
  int64_t sum = 0, bytes = 0;
  std::ifstream stat(folder + "/memory.stat");
  for (std::string key; stat >> key >> bytes;)
    for (const char* const counted : {"anon", "shmem", "kernel", "sock", "total_rss", "total_shmem"})
      if (key == counted) sum += bytes;
  return sum;
}

}  // namespace

int64_t group_memory_left(const ControlGroups& groups) {
  int64_t left = kNoLimit, limit = 0;
  for (const std::string& folder : folders_of(groups, "memory"))
    for (const char* const file : {"/memory.max", "/memory.limit_in_bytes"})
      if (read_from(folder + file, limit)) left = std::min(left, std::max<int64_t>(0, limit - unreclaimable(folder)));
  return left;
}

int64_t group_memory_limit(const ControlGroups& groups) {
  int64_t limit = kNoLimit, bytes = 0;
  for (const std::string& folder : folders_of(groups, "memory"))
    for (const char* const file : {"/memory.max", "/memory.limit_in_bytes"})
      if (read_from(folder + file, bytes)) limit = std::min(limit, bytes);
  return limit;
}

double group_cpu_quota(const ControlGroups& groups) {
  double quota = kNoQuota, microseconds = 0, period = 0;
  for (const std::string& folder : folders_of(groups, "cpu")) {
    std::ifstream max(folder + "/cpu.max");  // "150000 100000", "max 100000"
    const bool limited =
        (max >> microseconds >> period) || (read_from(folder + "/cpu.cfs_quota_us", microseconds) &&  // -1: none
                                            read_from(folder + "/cpu.cfs_period_us", period));
    if (limited && microseconds > 0 && period > 0) quota = std::min(quota, microseconds / period);
  }
  return quota;
}

}  // namespace quire
