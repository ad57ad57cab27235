// What one step did and what it found: for metrics and traces.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/scheduler.h"

namespace quire {

// Why requests that wait were not admitted by a step.
enum class Deferral {
  kSharedPrefix,  // another one computes what they can use
  kHistory,       // penalties: one step tells only so much of what the cache had
  kHostMoves,     // one step brings only so much back from the host
  kPictures,      // a picture that it needs is not encoded
  kRunning,       // the rest, as AdmissionStop says
  kPlaces,
  kBlocks,
  kBudget,
};
inline constexpr int kDeferrals = 8;
std::string_view deferral_name(Deferral d);  // "shared_prefix", "penalty_history", "host_moves", "pictures", ...

// What becomes of a pool's units: used by sequences, kept to be found by later prompts, or neither.
struct PoolUse {
  std::string_view name;  // CachePoolSpec::name, for as long as the engine is there
  int32_t free = 0, cached = 0, used = 0;
  int32_t total() const { return free + cached + used; }
};
// Of each pool, in their order.
class PoolUses {
 public:
  void add(const PoolUse& use) { all_[count_++] = use; }
  const PoolUse* begin() const { return all_.data(); }
  const PoolUse* end() const { return all_.data() + count_; }
  const PoolUse& operator[](int pool) const { return all_[static_cast<size_t>(pool)]; }

 private:
  std::array<PoolUse, kMostPools> all_{};
  size_t count_ = 0;
};

struct StepRecord {
  int64_t step = 0;                                // from 1 on
  double time = 0.0;                               // when it was planned: seconds since 1970
  int32_t decode_rows = 0, prompt_rows = 0;        // generated tokens with their drafts; of prompts
  int32_t drafts = 0, accepted = 0;                // of the former; of these, those that were right
  int32_t masks = 0;                               // rows whose token was constrained, and
  double mask_seconds = 0.0;                       // what computing them took
  int32_t slow_masks = 0;                          // those that were waited for before the step
  bool waited_for_masks = false;                   // the device had computed everything else
  int32_t running = 0, waiting = 0, admitted = 0;  // requests; after admission
  int32_t queued = 0;                              // of those that wait: too far behind to be looked at
  std::array<int32_t, kDeferrals> deferred{};      // those that wait by why
  bool first_tokens = false;                       // prompts went before generated tokens,
  int32_t skipped = 0;                             // of which so many were left out
  PoolUses pools;                                  // once the step was laid out
  int32_t swapped_out = 0, swapped_in = 0;         // blocks of sequences
  int32_t host_stored = 0, host_loaded = 0;        // pages of the prefix cache
  double host_seconds = 0.0;                       // planning, laying out and committing it
  double device_seconds = 0.0;                     // computing it
};

}  // namespace quire
