// Ranks that are threads of one process: a barrier, and a board on which they write where their results lie.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/all_reduce/ranks.h"

namespace quire {

class CpuRanks {
 public:
  explicit CpuRanks(int32_t of);
  CpuRanks(const CpuRanks&) = delete;
  CpuRanks& operator=(const CpuRanks&) = delete;
  ~CpuRanks();

  int32_t of() const { return of_; }
  RankLink& link(int32_t rank) const;

 private:
  class Link;
  void wait();

  const int32_t of_;
  // Two boards: a rank may have left a meeting for the next one while another still reads the first one's.
  RankLink::Places boards_[2] = {};
  std::vector<std::unique_ptr<Link>> links_;
  alignas(64) std::atomic<int32_t> here_{0};       // how many have come to the meeting under way
  alignas(64) std::atomic<uint32_t> meetings_{0};  // that are over: what the ranks wait for
};

}  // namespace quire
