#include "cache/block_pool.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace quire {

BlockPool::BlockPool(int32_t total, uint64_t shuffle_seed) : blocks_(static_cast<size_t>(total)) {
  std::vector<int32_t> order(static_cast<size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  if (shuffle_seed != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(shuffle_seed));
  for (int32_t i : order) push_back(free_, i);
}

const BlockPool::Block& BlockPool::at(BlockId b) const {
  QUIRE_CHECK(b.v >= 0 && b.v < total(), "block {} of {}", b.v, total());
  return blocks_[static_cast<size_t>(b.v)];
}

void BlockPool::push_back(List& l, int32_t i) {
  Block& b = blocks_[static_cast<size_t>(i)];
  b.prev = l.tail;
  b.next = -1;
  (l.tail < 0 ? l.head : blocks_[static_cast<size_t>(l.tail)].next) = i;
  l.tail = i;
  ++l.count;
}

void BlockPool::push_front(List& l, int32_t i) {
  Block& b = blocks_[static_cast<size_t>(i)];
  b.prev = -1;
  b.next = l.head;
  (l.head < 0 ? l.tail : blocks_[static_cast<size_t>(l.head)].prev) = i;
  l.head = i;
  ++l.count;
}

void BlockPool::remove(List& l, int32_t i) {
  Block& b = blocks_[static_cast<size_t>(i)];
  (b.prev < 0 ? l.head : blocks_[static_cast<size_t>(b.prev)].next) = b.next;
  (b.next < 0 ? l.tail : blocks_[static_cast<size_t>(b.next)].prev) = b.prev;
  b.prev = b.next = -1;
  --l.count;
}

BlockId BlockPool::allocate() {
  List& l = free_.count > 0 ? free_ : cached_;
  if (l.count == 0) return {};
  const BlockId id{l.head};
  Block& b = at(id);
  remove(l, id.v);
  cached_handed_out_ += b.cached;
  b.refs = 1;
  b.cached = false;
  ++b.generation;
  ++used_;
  return id;
}

void BlockPool::retain(BlockId id) {
  Block& b = at(id);
  QUIRE_CHECK(b.refs > 0, "block {} is not in use", id.v);
  ++b.refs;
}

void BlockPool::release(BlockId id) {
  Block& b = at(id);
  QUIRE_CHECK(b.refs > 0, "block {} is not in use", id.v);
  if (--b.refs > 0) return;
  --used_;
  push_back(list_of(b), id.v);
}

void BlockPool::release_first(BlockId id) {
  Block& b = at(id);
  if (b.refs != 1) return release(id);
  b.refs = 0;
  --used_;
  push_front(list_of(b), id.v);
}

void BlockPool::set_cached(BlockId id, bool cached) {
  Block& b = at(id);
  if (b.cached == cached) return;
  if (b.refs == 0) remove(list_of(b), id.v);
  b.cached = cached;
  if (b.refs == 0) push_back(list_of(b), id.v);
}

bool BlockPool::revive(BlockId id, uint32_t generation) {
  Block& b = at(id);
  if (b.generation != generation) return false;
  if (b.refs == 0) {
    remove(list_of(b), id.v);
    ++used_;
  }
  ++b.refs;
  return true;
}

Status BlockPool::check_list(const List& l, bool cached, std::vector<bool>& seen) const {
  int32_t count = 0, prev = -1;
  for (int32_t i = l.head; i >= 0; prev = i, i = blocks_[static_cast<size_t>(i)].next) {
    const Block& b = blocks_[static_cast<size_t>(i)];
    const auto wrong = [&](const char* what) { return Error{Fault::kBug, fmt::format("block {} {}", i, what)}; };
    if (seen[static_cast<size_t>(i)]) return wrong("is listed twice");
    if (b.refs != 0) return wrong("is listed as unreferenced, but has references");
    if (b.cached != cached) return wrong("is in the wrong list");
    if (b.prev != prev) return wrong("has a broken back link");
    seen[static_cast<size_t>(i)] = true;
    if (++count > total()) return wrong("closes a loop");
  }
  if (count != l.count || l.tail != prev)
    return Error{Fault::kBug, fmt::format("list of {} blocks counts {}", count, l.count)};
  return {};
}

Status BlockPool::check() const {
  std::vector<bool> seen(blocks_.size());
  QUIRE_CHECKED(check_list(free_, false, seen));
  QUIRE_CHECKED(check_list(cached_, true, seen));
  int32_t used = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].refs < 0) return Error{Fault::kBug, fmt::format("block {} has {} references", i, blocks_[i].refs)};
    if ((blocks_[i].refs > 0) == seen[i])
      return Error{Fault::kBug, fmt::format("block {} is neither used nor listed, or both", i)};
    used += blocks_[i].refs > 0;
  }
  if (used != used_ || free_.count + cached_.count + used_ != total())
    return Error{Fault::kBug,
                 fmt::format("{} free + {} cached + {} used blocks of {}", free_.count, cached_.count, used_, total())};
  return {};
}

StatePool::StatePool(int32_t total) : used_(static_cast<size_t>(total)) {
  for (int32_t i = total - 1; i >= 0; --i) free_.push_back(i);
}

StateSlot StatePool::allocate() {
  if (free_.empty()) return {};
  const StateSlot s{free_.back()};
  free_.pop_back();
  used_[static_cast<size_t>(s.v)] = true;
  return s;
}

void StatePool::release(StateSlot s) {
  QUIRE_CHECK(s.v >= 0 && s.v < total() && used_[static_cast<size_t>(s.v)], "state slot {} is not in use", s.v);
  used_[static_cast<size_t>(s.v)] = false;
  free_.push_back(s.v);
}

Status StatePool::check() const {
  std::vector<bool> seen(used_.size());
  for (int32_t s : free_) {
    if (seen[static_cast<size_t>(s)]) return Error{Fault::kBug, fmt::format("state slot {} is free twice", s)};
    if (used_[static_cast<size_t>(s)]) return Error{Fault::kBug, fmt::format("state slot {} is free and used", s)};
    seen[static_cast<size_t>(s)] = true;
  }
  for (size_t s = 0; s < used_.size(); ++s)
    if (!used_[s] && !seen[s]) return Error{Fault::kBug, fmt::format("state slot {} is lost", s)};
  return {};
}

}  // namespace quire
