// What the control groups of this process allow it, as containers and services are limited.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

// Where Linux says so; tests have files of their own.
struct ControlGroups {
  std::string root = "/sys/fs/cgroup";
  std::string membership = "/proc/self/cgroup";
};

// The smallest memory limit, in bytes, of the process's group and those above it: version 2, and version 1 as a
// container sees it. INT64_MAX if there is none.
int64_t group_memory_limit(const ControlGroups& groups = {});

// What the groups leave: the smallest difference of a limit and what cannot make room in that group (its processes'
// memory, shared memory and the kernel's; memory.stat), never negative. INT64_MAX if there is no limit.
int64_t group_memory_left(const ControlGroups& groups = {});

// The smallest CPU quota likewise (cpu.max; cpu.cfs_quota_us), in CPUs: 1.5 for 150 ms of every 100. Infinite if there
// is none.
double group_cpu_quota(const ControlGroups& groups = {});

}  // namespace quire
