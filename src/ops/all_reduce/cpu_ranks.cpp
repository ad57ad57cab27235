#include "ops/all_reduce/cpu_ranks.h"

#include "core/result.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

// Some tens of microseconds: ranks come to most meetings at about the same time. Whoever waits longer has no CPU to
// give away (core/thread_pool.h).
constexpr int kSpins = 2000;

void pause_a_little() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

class CpuRanks::Link final : public RankLink {
 public:
  Link(CpuRanks& group, int32_t rank) : RankLink(rank, group.of()), group_(group) {}
  Places meet(std::byte* mine) override {
    Places& board = group_.boards_[meeting_++ % 2];
    board[static_cast<size_t>(rank())] = mine;
    group_.wait();
    return board;
  }

 private:
  CpuRanks& group_;
  uint32_t meeting_ = 0;
};

CpuRanks::CpuRanks(int32_t of) : of_(of) {
  QUIRE_CHECK(of >= 1 && of <= RankLink::kMost, "{} ranks, 1 to {} are possible", of, RankLink::kMost);
  for (int32_t rank = 0; rank < of; ++rank) links_.push_back(std::make_unique<Link>(*this, rank));
}

CpuRanks::~CpuRanks() = default;

RankLink& CpuRanks::link(int32_t rank) const {
  return *links_[static_cast<size_t>(rank)];
}

void CpuRanks::wait() {
  const uint32_t before = meetings_.load(std::memory_order_acquire);
  if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == of_) {
    here_.store(0, std::memory_order_relaxed);
    meetings_.fetch_add(1, std::memory_order_acq_rel);
    meetings_.notify_all();
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (meetings_.load(std::memory_order_acquire) != before) return;
    pause_a_little();
  }
  while (meetings_.load(std::memory_order_acquire) == before) meetings_.wait(before, std::memory_order_acquire);
}

}  // namespace quire
