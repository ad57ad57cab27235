// Sizes of a gated-delta-net call, read from the views and checked by name. Used by every kernel's launcher.
#pragma once

#include "ops/gated_delta/gated_delta.h"

namespace quire::gdn {

struct PrepareSizes {
  int64_t T, C, Kc, R, Hk, Dk, Hv, Dv, slots;
};
PrepareSizes check(const GdnPrepareArgs& a);

struct DeltaSizes {
  int64_t T, Hk, Dk, Hv, Dv, slots, W;  // W: of decode calls only
  // The key head of value head h.
  int64_t key_head(HeadMap map, int64_t h) const { return map == HeadMap::kTiled ? h % Hk : h / (Hv / Hk); }
};
// `decode`: the kind of segments that the operator handles; only those are checked, and pending tokens only for
// decode segments.
DeltaSizes check(const GatedDeltaArgs& a, bool decode);

// The kernels behind the tables; reference.cpp.
void prepare_reference(const OpContext& ctx, const GdnPrepareArgs& a);
void chunked_reference(const OpContext& ctx, const GatedDeltaArgs& a);
void recurrent_reference(const OpContext& ctx, const GatedDeltaArgs& a);

}  // namespace quire::gdn
