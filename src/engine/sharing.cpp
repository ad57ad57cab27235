#include "engine/sharing.h"

#include <algorithm>

namespace quire {

bool must_wait(const Sequence& waiting, Sequence& earlier, const ResumeNeeds& needs) {
  if (earlier.finished() || earlier.memory.swapped_out()) return false;
  const int64_t usable = waiting.prefix.match.usable;
  // Most do not have the next chunk in common: that is one comparison.
  const auto next_chunk = static_cast<size_t>(usable / kChunkTokens);
  const std::vector<Hash128>&mine = waiting.prefix.hashes.at, &its = earlier.prefix.hashes.at;
  if (next_chunk >= std::min(mine.size(), its.size()) || !(mine[next_chunk] == its[next_chunk])) return false;
  // As far as both may come from a cache or lie in it whole.
  const int64_t common =
      std::min(waiting.prefix.hashes.common(earlier.prefix.hashes), longest_prefix(waiting.prompt_tokens()));
  if (common <= usable) return false;
  const int64_t part = std::min(common, longest_prefix(earlier.prompt_tokens()));
  if (needs.windows && part > earlier.prefix.published) earlier.prefix.checkpoints.add(part);
  if (!needs.states) return earlier.prefix.published < common;
  // Of an earlier one that is not admitted yet, `planned` is 0, and it will begin after what it finds itself.
  const int64_t from =
      std::max(earlier.planned, earlier.stage == Sequence::Stage::kWaiting ? earlier.prefix.match.usable : 0);
  if (part > from && part > usable) earlier.prefix.checkpoints.add(part);
  const int64_t next = earlier.prefix.checkpoints.next(std::max(from, usable));
  const auto helps = [&](int64_t at) { return at > usable && at <= common; };
  return helps(next) || helps(earlier.prefix.unsaved) || helps(earlier.prefix.saving);
}

}  // namespace quire
