#include "engine/lookup_drafter.h"

#include <algorithm>
#include <bit>

#include "core/result.h"

namespace quire {

// Of the kLeastMatch tokens before `end`.
size_t LookupDrafter::bucket_of(size_t end) const {
  uint64_t hash = 0;
  for (size_t i = end - kLeastMatch; i < end; ++i)
    hash = (std::rotl(hash, 23) ^ static_cast<uint32_t>(tokens_[i])) * 0x9e3779b97f4a7c15;
  return (hash ^ hash >> 32) & (head_.size() - 1);
}

void LookupDrafter::enter(size_t end) {
  int32_t& head = head_[bucket_of(end)];
  before_[end - 1] = head;
  head = static_cast<int32_t>(end);
}

void LookupDrafter::grow(size_t tokens) {
  if (tokens <= head_.size()) return;
  const size_t room = std::bit_ceil(std::max<size_t>(tokens, 1024));
  tokens_.reserve(room);
  before_.reserve(room);
  head_.assign(room, 0);
  for (size_t end = kLeastMatch; end <= tokens_.size(); ++end) enter(end);
}

void LookupDrafter::append(std::span<const int32_t> tokens) {
  QUIRE_CHECK(tokens.size() <= static_cast<size_t>(INT32_MAX) - tokens_.size(), "{} tokens after {} are too many",
              tokens.size(), tokens_.size());
  grow(tokens_.size() + tokens.size());
  for (const int32_t token : tokens) {
    if (followed_ > 0) followed_ = tokens_[static_cast<size_t>(followed_)] == token ? followed_ + 1 : 0;
    tokens_.push_back(token);
    before_.push_back(0);
    if (tokens_.size() >= kLeastMatch) enter(tokens_.size());
  }
}

int32_t LookupDrafter::match_before(int32_t end) const {
  const int32_t most = std::min(end, kMostCompared);
  const int32_t* const there = tokens_.data() + end;
  const int32_t* const here = tokens_.data() + tokens_.size();
  int32_t n = 0;
  while (n < most && there[-1 - n] == here[-1 - n]) ++n;
  return n;
}

LookupDrafter::Draft LookupDrafter::propose(std::span<int32_t> draft) {
  const size_t size = tokens_.size();
  if (size <= kLeastMatch || draft.empty()) return {};
  int32_t best = 0, longest = kLeastMatch - 1;
  const auto consider = [&](int32_t end) {
    const int32_t n = match_before(end);
    if (n > longest || (n == longest && n >= kLeastMatch && end > best)) best = end, longest = n;
  };
  int32_t end = before_[size - 1];  // the text's own end is the latest of its bucket
  for (int32_t i = 0; i < kCandidates && end > 0; ++i, end = before_[static_cast<size_t>(end) - 1]) consider(end);
  if (followed_ > 0) consider(followed_);
  followed_ = best;
  if (best == 0) return {};
  for (size_t i = 0; i < draft.size(); ++i) {
    const size_t from = static_cast<size_t>(best) + i;
    draft[i] = from < size ? tokens_[from] : draft[from - size];
  }
  return {static_cast<int32_t>(draft.size()), longest};
}

int64_t LookupDrafter::bytes() const {
  return static_cast<int64_t>((tokens_.capacity() + before_.capacity() + head_.capacity()) * sizeof(int32_t));
}

}  // namespace quire
