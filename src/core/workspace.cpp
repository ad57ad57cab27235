#include "core/workspace.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace quire {
namespace {

constexpr size_t kHuge = size_t{2} << 20;

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

}  // namespace

void Workspace::Free::operator()(std::byte* p) const {
  std::free(p);
}

void* Workspace::take(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), 64);
  if (pieces_.empty() || used_ + bytes > pieces_.back().begin + pieces_.back().size) {
    Piece p;
    p.begin = used_;
    p.size = round_up(std::max(bytes, pieces_.empty() ? kHuge : pieces_.back().size), kHuge);
    p.data.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, p.size)));
    if (!p.data) throw std::bad_alloc();
    madvise(p.data.get(), p.size, MADV_HUGEPAGE);  // advice only: scratch is walked at full speed
    pieces_.push_back(std::move(p));
  }
  Piece& p = pieces_.back();
  std::byte* at = p.data.get() + (used_ - p.begin);
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return at;
}

void Workspace::release(size_t used) {
  used_ = used;
  if (used > 0) {
    while (pieces_.size() > 1 && pieces_.back().begin >= used) pieces_.pop_back();
    return;
  }
  if (pieces_.size() > 1) {  // several pieces were needed: next time one of the full size
    const size_t all = high_water_;
    pieces_.clear();
    Scope grow(*this);
    grow.take<std::byte>(static_cast<int64_t>(all));
  }
}

}  // namespace quire
