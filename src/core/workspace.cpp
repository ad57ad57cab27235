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

// The piece that the next `bytes` come from: the current one, or the next, which no scope uses yet.
Workspace::Piece& Workspace::piece_for(size_t bytes) {
  const auto fits = [&](const Piece& p) { return used_ + bytes <= p.begin + p.size; };
  if (current_ < pieces_.size() && fits(pieces_[current_])) return pieces_[current_];
  if (!pieces_.empty()) ++current_;
  if (current_ < pieces_.size()) {
    Piece& p = pieces_[current_];
    p.begin = used_;
    if (fits(p)) return p;
    pieces_.resize(current_);  // too small ones make place for a larger one
  }
  Piece p;
  p.begin = used_;
  p.size = round_up(std::max(bytes, pieces_.empty() ? kHuge : pieces_.back().size), kHuge);
  p.data.reset(static_cast<std::byte*>(std::aligned_alloc(kHuge, p.size)));
  if (!p.data) throw std::bad_alloc();
  madvise(p.data.get(), p.size, MADV_HUGEPAGE);  // advice only: scratch is walked at full speed
  pieces_.push_back(std::move(p));
  return pieces_.back();
}

void* Workspace::take(size_t bytes) {
  bytes = round_up(std::max<size_t>(bytes, 1), 64);
  Piece& p = piece_for(bytes);
  std::byte* at = p.data.get() + (used_ - p.begin);
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return at;
}

void Workspace::release(size_t used) {
  used_ = used;
  while (current_ > 0 && pieces_[current_].begin >= used) --current_;
  if (used > 0 || pieces_.size() <= 1) return;
  // Several pieces were needed: next time one of the full size.
  const size_t all = high_water_;
  pieces_.clear();
  Scope grow(*this);
  grow.take<std::byte>(static_cast<int64_t>(all));
}

}  // namespace quire
