#include "ops/gated_delta/cuda/slots.h"

namespace quire::cuda {
namespace {

template <class T>
bool usable(const SlotView<T>& v) {
  return v.stride_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(v.base) % 16 == 0;
}

}  // namespace

Status check_delta(const DeltaShape& n) {
  if (n.Hk <= 0 || n.Hv <= 0 || n.Hv % n.Hk != 0 || n.Hv > 65535)
    return Error{Fault::kBug, fmt::format("delta net: {} value heads on {} key heads", n.Hv, n.Hk)};
  return {};
}

Status check_delta(const DeltaSlots& s) {
  if (!usable(s.state) || !usable(s.pending_k) || !usable(s.pending_u) || !usable(s.pending_g) || !usable(s.conv))
    return Error{Fault::kBug, "delta net: a member of the slots is not aligned to 16 bytes"};
  if (s.pending < kPendingTokens || s.pending > kDeltaMaxPending)
    return Error{Fault::kBug, fmt::format("delta net: {} pending tokens, not {} to {}", s.pending, kPendingTokens,
                                          kDeltaMaxPending)};
  if (s.ring < kDeltaTaps || (s.ring & (s.ring - 1)) != 0)
    return Error{Fault::kBug,
                 fmt::format("delta net: a ring of {} tokens, not a power of two from {} up", s.ring, kDeltaTaps)};
  return {};
}

}  // namespace quire::cuda
