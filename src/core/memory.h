// How much memory there is.
#pragma once

#include <cstdint>

namespace quire {

// Bytes that this process may still take without swapping, as Linux estimates it: free memory and page cache, and no
// more than its control groups (core/cgroup.h) and its limits of addresses and data (setrlimit) leave. INT64_MAX if the
// system does not say.
int64_t available_memory();

}  // namespace quire
