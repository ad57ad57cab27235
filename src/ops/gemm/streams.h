// What the cores for few tokens prefetch while they multiply: weights come in groups of 16 rows, each one run
// of memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "ops/gemm/core.h"

namespace quire::gemm {
namespace {

// Up to four groups to come, in four ascending streams, a little at a time. The streams lie far apart: memory
// answers up to twice as fast as for one stream, or for several within one group (docs/kernels-cpu.md).
class PrefetchStreams {
 public:
  static constexpr int kCount = 4;

  PrefetchStreams() = default;
  // `count` groups, prefetched while `now` others are multiplied.
  PrefetchStreams(const std::byte* const* groups, int64_t count, int64_t group_bytes, int64_t now) {
    if (count == 0) return;
    const int pieces = count == 1 ? 4 : count == 2 ? 2 : 1;  // of a group, a stream each
    const int64_t lines = group_bytes / 64 / pieces;
    for (int i = 0; i < kCount; ++i) {
      const int64_t group = std::min<int64_t>(i / pieces, count - 1);
      at_[i] = groups[group] + i % pieces * lines * 64;
    }
    left_ = lines;
    lines_of_group_ = (lines + now - 1) / now;
  }
  // A share, in one of a group's `turns` turns.
  void issue(int64_t share) {
    const int64_t lines = std::min(left_, share);
    left_ -= lines;
    for (int64_t i = 0; i < lines; ++i)
      for (const std::byte*& at : at_) {
        __builtin_prefetch(at, 0, 2);  // into the second-level cache
        at += 64;
      }
  }
  int64_t share(int64_t turns) const { return (lines_of_group_ + turns - 1) / turns; }

 private:
  const std::byte* at_[kCount] = {};
  int64_t left_ = 0, lines_of_group_ = 0;  // lines of a stream
};

// Spreads a group's share evenly over `turns` turns, where those are more than there are lines of a stream,
// or no whole multiple: prefetches in a row wait for each other, and what is computed beside them with them.
class PrefetchPace {
 public:
  PrefetchPace() = default;
  PrefetchPace(const PrefetchStreams& streams, int64_t turns) : rate_((streams.share(1) * kOne + turns - 1) / turns) {}
  void turn(PrefetchStreams& streams) {
    due_ += rate_;
    streams.issue(due_ / kOne);
    due_ %= kOne;
  }

 private:
  static constexpr int64_t kOne = 256;
  int64_t rate_ = 0, due_ = 0;
};

// What is prefetched while rows are decoded; nothing by default.
class PrefetchAhead {
 public:
  PrefetchAhead() = default;
  PrefetchAhead(PrefetchStreams* streams, int64_t turns) : streams_(streams) {
    if (streams != nullptr) pace_ = PrefetchPace(*streams, turns);
  }
  void turn() {
    if (streams_ != nullptr) pace_.turn(*streams_);
  }

 private:
  PrefetchStreams* streams_ = nullptr;
  PrefetchPace pace_;
};

// The groups of a job in the order in which they are multiplied, those of up to two matrices in turns, and
// what comes after them.
class GroupOrder {
 public:
  GroupOrder() = default;
  GroupOrder(std::initializer_list<const std::byte*> first, int64_t count, int64_t group_bytes, const Prefetch& next)
      : matrices_(static_cast<int64_t>(first.size())), count_(count), group_bytes_(group_bytes), next_(&next) {
    std::copy(first.begin(), first.end(), first_);
  }
  const std::byte* at(int64_t i) const { return first_[i % matrices_] + i / matrices_ * group_bytes_; }

  // What is prefetched while group i is multiplied. All groups in ascending order: while four are multiplied,
  // the next four are prefetched.
  PrefetchStreams* prefetch_beside(int64_t i) {
    if (i % PrefetchStreams::kCount == 0) streams_ = after(i);
    return &streams_;
  }

 private:
  PrefetchStreams after(int64_t i) const {
    const int64_t now = std::min<int64_t>(PrefetchStreams::kCount, count_ - i);
    const std::byte* groups[PrefetchStreams::kCount];
    int64_t n = 0;
    if (i + now < count_)
      for (; n < PrefetchStreams::kCount && i + now + n < count_; ++n) groups[n] = at(i + now + n);
    else
      for (; n < PrefetchStreams::kCount && n < next_->groups; ++n)
        groups[n] = next_->rows[n % 2] + n / 2 * next_->group_stride;
    return {groups, n, group_bytes_, now};
  }

  int64_t matrices_ = 1, count_ = 0, group_bytes_ = 0;
  const Prefetch* next_ = nullptr;
  const std::byte* first_[2] = {};
  PrefetchStreams streams_;
};

}  // namespace
}  // namespace quire::gemm
