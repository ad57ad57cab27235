// The ranks of a process whose GPUs read each other's memory: what of it they share, and where they meet. Plain peer
// access alone: memory that NVLink multicasts is never asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/cuda/memory.h"
#include "ops/all_reduce/cuda/all_reduce.h"
#include "ops/all_reduce/ranks.h"

namespace quire::cuda {

// Of one rank. What it shows the others lies in its exchange memory, at the same place on all ranks.
class PeerLink final : public RankLink {
 public:
  PeerLink(const Meeting& meeting, const Places& memory, int64_t bytes)
      : RankLink(meeting.rank, meeting.of), meeting_(meeting), memory_(memory), bytes_(bytes) {}
  Places meet(std::byte* mine) override;
  const Meeting& meeting() const { return meeting_; }
  std::span<std::byte> memory() const { return {memory_[static_cast<size_t>(rank())], static_cast<size_t>(bytes_)}; }

 private:
  Meeting meeting_;
  Places memory_;
  int64_t bytes_;
};

class Peers {
 public:
  // devices[r] is the GPU of rank r; several ranks may have the same one, for tests. Each rank has `exchange_bytes` of
  // exchange memory. Errors: two of the GPUs cannot read each other's memory, or there is too little.
  static Result<std::unique_ptr<Peers>> create(std::span<const int> devices, int64_t exchange_bytes,
                                               double patience_seconds = 2.0);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  PeerLink& link(int32_t rank) const { return *links_[static_cast<size_t>(rank)]; }
  // Whether all meetings so far have taken place: where one has not, results are nonsense, and none will any more.
  Status status() const;

 private:
  Peers() = default;
  Status connect(std::span<const int> devices);
  Status allocate(std::span<const int> devices, int64_t exchange_bytes);

  struct Rank {
    int device = 0;
    Memory exchange, flags, meetings;
  };
  std::vector<Rank> ranks_;
  Memory error_;  // pinned
  std::vector<std::unique_ptr<PeerLink>> links_;
};

}  // namespace quire::cuda
