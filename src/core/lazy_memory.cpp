#include "core/lazy_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace quire {

Result<LazyMemory> LazyMemory::reserve(size_t bytes, std::string_view what) {
  LazyMemory m;
  if (bytes == 0) return m;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return capacity_error("cannot reserve {} MiB for {}: {}", bytes >> 20, what, std::strerror(errno));
  m.bytes_ = {static_cast<std::byte*>(at), bytes};
  return m;
}

void LazyMemory::prefer_huge_pages() const {
  if (!bytes_.empty()) madvise(bytes_.data(), bytes_.size(), MADV_HUGEPAGE);
}

LazyMemory::~LazyMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

}  // namespace quire
