// How large a unit of a pool of caches is.
#pragma once

#include <string_view>

#include "cache/storage.h"

namespace quire::test {

// Of the pool of this name; 0 if there is none.
inline int64_t unit_bytes(const CacheShape& shape, std::string_view pool) {
  const CachePools pools = shape.pools().value();
  for (const CachePoolSpec& p : pools)
    if (p.name == pool) return p.bytes;
  return 0;
}

}  // namespace quire::test
