#include "engine/encoder_cache.h"

#include <algorithm>

namespace quire {

std::vector<EncoderCache::Entry>::iterator EncoderCache::at(int64_t begin) {
  return std::ranges::lower_bound(entries_, begin, {}, &Entry::begin);
}

std::optional<int64_t> EncoderCache::find(const Hash128& key, bool touch) {
  const auto found = begins_.find(key);
  if (found == begins_.end()) return std::nullopt;
  if (touch) at(found->second)->used = ++clock_;
  return found->second;
}

std::optional<int64_t> EncoderCache::gap(int64_t rows) const {
  int64_t begin = 0;
  for (const Entry& e : entries_) {
    if (e.begin - begin >= rows) return begin;
    begin = e.begin + e.rows;
  }
  return rows_ - begin >= rows ? std::optional(begin) : std::nullopt;
}

std::optional<int64_t> EncoderCache::add(std::span<const Picture> pictures,
                                         const std::function<bool(const Hash128&)>& is_kept) {
  int64_t rows = 0;
  for (const Picture& p : pictures) rows += p.rows;
  if (rows > rows_ || pictures.size() > kMostPictures) return std::nullopt;
  std::optional<int64_t> begin = gap(rows);
  while (!begin || entries_.size() + pictures.size() > kMostPictures) {
    auto oldest = entries_.end();
    for (auto e = entries_.begin(); e != entries_.end(); ++e)
      if (!is_kept(e->key) && (oldest == entries_.end() || e->used < oldest->used)) oldest = e;
    if (oldest == entries_.end()) return std::nullopt;
    begins_.erase(oldest->key);
    entries_.erase(oldest);
    begin = gap(rows);
  }
  int64_t next = *begin;
  for (const Picture& p : pictures) {
    entries_.insert(at(next), {p.key, next, p.rows, ++clock_});
    begins_[p.key] = next;
    next += p.rows;
  }
  return begin;
}

int64_t EncoderCache::used() const {
  int64_t sum = 0;
  for (const Entry& e : entries_) sum += e.rows;
  return sum;
}

}  // namespace quire
