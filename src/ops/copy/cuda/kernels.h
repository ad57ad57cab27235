// The CUDA kernel in the table of copy_slots.
#pragma once

#include "ops/copy/copy.h"

namespace quire::cuda {

bool copy_slots_fits(const Machine& m, const CopySlotsArgs& a);
void copy_slots(const OpContext& ctx, const CopySlotsArgs& a);

inline constexpr std::string_view kCopySlotsTakes = "slots of a multiple of 16 bytes, as far apart";

}  // namespace quire::cuda
