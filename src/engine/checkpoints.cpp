#include "engine/checkpoints.h"

#include <algorithm>

#include "cache/prefix_hash.h"

namespace quire {
namespace {

constexpr int64_t kNear = 1024, kNearUntil = 8192, kFar = 4096;

int64_t boundary_at(int64_t position) {
  return std::max<int64_t>(0, position) / kChunkTokens * kChunkTokens;
}

}  // namespace

Checkpoints::Checkpoints(int64_t prompt_tokens, int64_t tail, std::span<const int64_t> asked)
    : last_(longest_prefix(prompt_tokens)), end_(std::min(last_, boundary_at(prompt_tokens - tail))) {
  for (const int64_t at : asked) add(boundary_at(at));
}

bool Checkpoints::add(int64_t at) {
  if (at <= 0 || at > last_ || at % kChunkTokens != 0) return false;
  if (contains(at)) return true;
  if (extras_ == kMostExtra) return false;
  extra_[extras_++] = at;
  return true;
}

int64_t Checkpoints::next(int64_t position) const {
  const int64_t step = position < kNearUntil ? kNear : kFar, regular = (position / step + 1) * step;
  int64_t best = regular <= last_ ? regular : 0;
  const auto consider = [&](int64_t at) {
    if (at > position && (best == 0 || at < best)) best = at;
  };
  consider(end_);
  for (size_t i = 0; i < extras_; ++i) consider(extra_[i]);
  return best;
}

}  // namespace quire
