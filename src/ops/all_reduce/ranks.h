// The ranks that compute a step of one model together, each with its share of the weights, and how one of them finds
// what the others have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire {

// One for each rank. All ranks call it equally often, in the same order.
class RankLink {
 public:
  static constexpr int32_t kMost = 8;
  using Places = std::array<std::byte*, kMost>;

  RankLink(int32_t rank, int32_t of) : rank_(rank), of_(of) {}
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;
  virtual ~RankLink() = default;

  int32_t rank() const { return rank_; }
  int32_t of() const { return of_; }

  // Where each rank has what this one has at `mine`, which the others may read from here on. On a CPU it returns when
  // all ranks are here, and what they wrote before can be read. On a GPU it returns at once: the kernels that get the
  // places wait for each other (ops/all_reduce/cuda/peers.h).
  //
  // `mine` may be written again when the next meeting is over, since everybody comes to that with what he read before
  // behind him: so ranks alternate between two memories.
  virtual Places meet(std::byte* mine) = 0;

 private:
  int32_t rank_, of_;
};

}  // namespace quire
