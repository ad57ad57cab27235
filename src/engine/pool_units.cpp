#include "engine/pool_units.h"

#include <algorithm>

#include "engine/byte_counts.h"
#include "engine/step_cost.h"

namespace quire {

UnitsWithin units_within(const EnginePlan& plan, const CachePools& pools, int64_t bytes) {
  UnitsWithin u{.counts = plan.wanted_units(pools)};
  const int64_t block = pools[kKvPool].bytes;
  bytes -= sequence_bytes(pools) * plan.max_sequences;
  if (const int pool = state_pool(pools); pool >= 0) {
    const int64_t state = state_bytes(pools);
    int32_t& states = u.counts[static_cast<size_t>(pool)];
    const int32_t own = std::min(states, plan.max_sequences);
    const int32_t saved = saved_states(states - own, bytes, state, block * blocks_of(plan.context));
    states = own + saved;
    bytes -= state * saved;
  }
  u.least_tokens = (plan.kv_is_bound ? blocks_of(plan.context) : plan.kv_blocks()) * kBlockTokens;
  const int64_t others = block * blocks_of(u.least_tokens);
  u.least_bytes = others;
  const auto running = [&](const CachePoolSpec& pool) {
    const WindowNeeds n = plan.window_needs(pool);
    return times(int64_t{n.sequence} * plan.max_sequences + n.steps, pool.bytes);
  };
  int64_t of_all = 0, left = bytes;
  for (const CachePoolSpec& pool : pools) of_all = capped(of_all + running(pool));
  u.fits = true;
  for (size_t i = kKvPool + 1; i < static_cast<size_t>(block_pools(pools)); ++i) {
    if (pools[i].bytes == 0) continue;  // a part of the model that has no such layers
    const WindowNeeds needs = plan.window_needs(pools[i]);
    const double part = of_all == 0 ? 1.0 : static_cast<double>(running(pools[i])) / static_cast<double>(of_all);
    const auto share = [part](int64_t n) {
      return part == 1.0 ? n : static_cast<int64_t>(static_cast<double>(n) * part);
    };
    u.counts[i] = window_pool(needs, plan.max_sequences, plan.prefix_cache ? plan.state_checkpoints : 0, share(bytes),
                              pools[i].bytes, share(others));
    u.fits = u.fits && u.counts[i] >= needs.least();
    u.least_bytes += pools[i].bytes * needs.least();
    if (u.counts[i] > 0) left -= (int64_t{u.counts[i]} + 1) * pools[i].bytes;
  }
  u.fits = u.fits && left >= others;
  u.counts[kKvPool] = static_cast<int32_t>(std::min<int64_t>(plan.kv_blocks(), block == 0 ? INT32_MAX : left / block));
  return u;
}

int32_t window_pool(const WindowNeeds& needs, int64_t sequences, int64_t places, int64_t left, int64_t block_bytes,
                    int64_t others) {
  if (needs.least() == 0 || block_bytes <= 0) return 0;
  const int64_t most = std::max<int64_t>(left - others, 0) / block_bytes - 1, least = needs.least();
  if (most < least) return 0;
  const int64_t wanted = needs.sequence * sequences + needs.steps,
                running = std::min({wanted, std::max(left / 2 / block_bytes, least), most}),
                kept = std::min({needs.place * places, left / 4 / block_bytes, most - running});
  return static_cast<int32_t>(std::min<int64_t>(running + kept, INT32_MAX - 1));
}

int32_t saved_states(int64_t wanted, int64_t left, int64_t state_bytes, int64_t context_bytes) {
  if (state_bytes <= 0 || wanted <= 0) return 0;
  const int64_t fitting = std::min(left / 4, left - context_bytes) / state_bytes;
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, 0, wanted));
}

}  // namespace quire
