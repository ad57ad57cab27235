#include "core/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace quire {
namespace {

constexpr int64_t kHuge = int64_t{2} << 20;

int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

Workspace::Workspace() : measured_(false) {
  for (int64_t bytes = int64_t{64} << 30; bytes >= kHuge; bytes /= 2)
    if (reserve(bytes)) return;
  throw std::bad_alloc();
}

Result<Workspace> Workspace::create(int64_t bytes) {
  Workspace w{Nothing{}};
  if (!w.reserve(round_up(std::max<int64_t>(bytes, 1), kHuge)))
    return capacity_error("cannot reserve {} MiB of scratch memory ({}); use fewer --batch-tokens",
                          (bytes + (1 << 20) - 1) >> 20, std::strerror(errno));
  return w;
}

Workspace Workspace::over(std::span<std::byte> memory) {
  Workspace w{Nothing{}};
  w.base_ = memory.data();
  w.size_ = std::ssize(memory);
  w.owned_ = false;
  return w;
}

Workspace::~Workspace() {
  if (base_ != nullptr && owned_) munmap(base_, static_cast<size_t>(size_));
}

bool Workspace::reserve(int64_t bytes) {
  void* const p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return false;
  madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // advice only: scratch is walked at full speed
  base_ = static_cast<std::byte*>(p);
  size_ = bytes;
  return true;
}

std::byte* Workspace::take(int64_t bytes) {
  bytes = round_up(std::max<int64_t>(bytes, 1), 64);
  if (bytes > size_ - used_ && !measured_) throw std::bad_alloc();
  QUIRE_CHECK(bytes <= size_ - used_, "{} bytes of scratch memory: {} of {} are in use", bytes, used_, size_);
  std::byte* const at = base_ + used_;
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return at;
}

}  // namespace quire
