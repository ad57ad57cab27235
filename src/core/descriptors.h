// How many files and sockets this process may have open at a time.
#pragma once

#include <cstdint>

namespace quire {

// Raises what the process may have to what the system lets it have (RLIMIT_NOFILE, soft and hard), which is that number
// from then on. The soft limit is low on many systems for the sake of programs that use select(), which Quire does not.
int64_t raise_descriptor_limit();
int64_t descriptor_limit();
// Of this process, now; 0 where that cannot be told.
int64_t open_descriptors();

}  // namespace quire
