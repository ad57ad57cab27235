#include "core/descriptors.h"

#include <sys/resource.h>

#include <filesystem>

namespace quire {

int64_t descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX) return INT32_MAX;
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  return descriptor_limit();
}

int64_t open_descriptors() {
  std::error_code failed;
  int64_t count = 0;
  for (std::filesystem::directory_iterator i("/proc/self/fd", failed), end; !failed && i != end; i.increment(failed))
    ++count;
  return count > 0 ? count - 1 : 0;  // one was the folder's
}

}  // namespace quire
