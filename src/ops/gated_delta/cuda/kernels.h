// The CUDA kernels in the table of gated_delta_net. Generated tokens are one kernel, which does all of it; prompt
// chunks are prepared, multiplied, scanned in slabs of value columns, and normed by gated_rms_norm.
#pragma once

#include "ops/gated_delta/gated_delta.h"

namespace quire::cuda {

bool gated_delta_net_fits(const Machine& m, const GatedDeltaNetArgs& a);
// Slabs of 64 columns, and of 32. The bits are the same.
bool wide_scan_fits(const Machine& m, const GatedDeltaNetArgs& a);
bool wide_scan_preferred(const Machine& m, const GatedDeltaNetArgs& a);
void gated_delta_net_wide(const OpContext& ctx, const GatedDeltaNetArgs& a);
void gated_delta_net_narrow(const OpContext& ctx, const GatedDeltaNetArgs& a);

inline constexpr std::string_view kGatedDeltaNetTakes =
    "bf16, heads of 128, 4 taps, key heads that value heads share evenly";
inline constexpr std::string_view kWideScanTakes = "the same, on cards with shared memory for wide slabs";

}  // namespace quire::cuda
