#include "engine/device_moves.h"

namespace quire {

void add_moves(std::span<const HostMove> moves, bool out, const CacheViews& cache, std::byte* pages, int64_t page_bytes,
               const StepUse& before, std::vector<DeviceMove>& to) {
  const MoveUnits units{.block = cache.pools()[kKvPool].bytes, .state = state_bytes(cache.pools()), .page = page_bytes};
  const size_t first = to.size();
  for (const HostMove& m : moves) {
    const MoveBytes at = bytes_of(m, units);
    if (at.count == 0) continue;
    const Tensor pool = at.state ? cache.states() : cache.units(kKvPool);
    const DeviceMove move{.device = pool.bytes_at(0) + at.device_offset,
                          .host = pages + at.host_offset,
                          .bytes = at.count,
                          .out = out,
                          .delayed = out ? before.delays_out(m) : before.delays_in(m)};
    DeviceMove* const last = to.size() > first ? &to.back() : nullptr;
    if (last != nullptr && last->device + last->bytes == move.device && last->host + last->bytes == move.host) {
      last->bytes += move.bytes;
      last->delayed |= move.delayed;
    } else {
      to.push_back(move);
    }
  }
}

}  // namespace quire
