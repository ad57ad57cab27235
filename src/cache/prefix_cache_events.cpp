// What a prefix cache tells others: which chunks a prompt that begins with them saves.
#include <algorithm>
#include <utility>

#include "cache/prefix_cache.h"

namespace quire {
namespace {

// Hashes are told by their lower half.
KvEvent removed(const Hash128& hash) {
  return {.kind = KvEvent::Kind::kRemoved, .hash = hash.low};
}

}  // namespace

void PrefixCache::tell(std::shared_ptr<KvEventSink> sink, std::optional<std::vector<Hash128>> open) {
  telling_ = std::make_unique<Telling>();
  telling_->sink = std::move(sink);
  telling_->open = std::move(open);
  telling_->reasons.resize(nodes_.size());
  telling_->resumes.resize(nodes_.size());
  telling_->closed.resize(nodes_.size());
  telling_->handed_out.resize(windows_.size());
  telling_->events.push_back({.kind = KvEvent::Kind::kCleared});
  for (int32_t i = newest_; i >= 0; i = use(i).older) note(i);
}

void PrefixCache::note(int32_t i) {
  if (telling_ != nullptr && i > kRoot) set_resumes(i, may_resume(i));
}

void PrefixCache::set_resumes(int32_t i, bool resumes) {
  if (telling_ == nullptr || (telling_->resumes[static_cast<size_t>(i)] != 0) == resumes) return;
  Telling& t = *telling_;
  t.resumes[static_cast<size_t>(i)] = resumes;
  if (has_windows() && resumes) t.watched.push_back(i);
  if (has_windows() && !resumes) std::erase(t.watched, i);
  t.path.clear();
  for (int32_t n = i; n != kRoot; n = at(n).parent) {
    int32_t& reasons = t.reasons[static_cast<size_t>(n)];
    const bool before = reasons > 0;
    reasons += resumes ? 1 : -1;
    if (before == (reasons > 0)) break;
    if (resumes)
      t.path.push_back(n);
    else if (!t.lost && t.closed[static_cast<size_t>(n)] == 0)
      t.events.push_back(removed(at(n).hash));
  }
  for (auto n = t.path.rbegin(); n != t.path.rend(); ++n) tell_stored(*n);
}

void PrefixCache::tell_stored(int32_t i) {
  Telling& t = *telling_;
  const Node& n = at(i);
  bool closed = n.parent != kRoot && t.closed[static_cast<size_t>(n.parent)] != 0;
  if (t.open) closed = closed || !(n.pictures == Hash128{}) || std::ranges::find(*t.open, n.salt) == t.open->end();
  t.closed[static_cast<size_t>(i)] = closed;
  if (closed || t.lost) return;
  KvEvent& e = t.events.emplace_back();
  e.kind = KvEvent::Kind::kStored;
  e.hash = n.hash.low;
  if (n.parent != kRoot) e.parent = at(n.parent).hash.low;
  e.has_tokens = t.open.has_value();
  if (e.has_tokens) e.tokens = n.tokens;
}

// An ancestor is newer than what hangs below it.
void PrefixCache::tell_all() {
  Telling& t = *telling_;
  t.events.assign(1, {.kind = KvEvent::Kind::kCleared});
  for (int32_t i = newest_; i >= 0; i = use(i).older)
    if (t.reasons[static_cast<size_t>(i)] > 0) tell_stored(i);
}

// Where a pool of windows had to hand out what was kept, somebody cannot be gone on from any more.
void PrefixCache::look_at_windows() {
  Telling& t = *telling_;
  bool changed = false;
  for (size_t w = 0; w < windows_.size(); ++w)
    if (const int64_t now = windows_[w].blocks->cached_handed_out(); std::exchange(t.handed_out[w], now) != now)
      changed = true;
  for (size_t i = t.watched.size(); changed && i-- > 0;) note(t.watched[i]);
}

void PrefixCache::send_events() {
  if (telling_ == nullptr) return;
  Telling& t = *telling_;
  look_at_windows();
  if (t.lost) {
    if (!t.sink->none_waits()) return;
    t.lost = false;
    tell_all();
  }
  if (t.events.empty()) return;
  t.lost = !t.sink->put(std::move(t.events));
  t.events.clear();
}

// That reasons are those that there are; of windows, that nobody else than those that are watched is told of.
Status PrefixCache::check_events() const {
  if (telling_ == nullptr) return {};
  const Telling& t = *telling_;
  std::vector<int32_t> reasons(nodes_.size());
  for (int32_t i = oldest_; i >= 0; i = use(i).newer) {
    const auto n = static_cast<size_t>(i);
    if (!has_windows() && (t.resumes[n] != 0) != may_resume(i))
      return Error{Fault::kBug, fmt::format("node {} is wrongly told of", i)};
    reasons[n] += t.resumes[n];
    if (reasons[n] != t.reasons[n])
      return Error{Fault::kBug, fmt::format("node {} has {} reasons, and counts {}", i, reasons[n], t.reasons[n])};
    if (reasons[n] > 0) ++reasons[static_cast<size_t>(at(i).parent)];
  }
  return {};
}

}  // namespace quire
