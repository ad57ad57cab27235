// What a step moves between the caches and the host's pages, as copies between addresses.
#pragma once

#include <span>
#include <vector>

#include "cache/storage.h"
#include "engine/compute_step.h"
#include "engine/step_use.h"

namespace quire {

// One copy between the device's caches and the host's pages.
struct DeviceMove {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  int64_t bytes = 0;
  bool out = false;      // to the host
  bool delayed = false;  // a step before reads or writes what this one does: it comes after their end
};

// Adds those to the host (`out`) or from it, in their order. What follows piece by piece on both sides is one copy: a
// state mostly is. `pages`: the host's first page, each of so many bytes. `before`: what the steps before do.
void add_moves(std::span<const HostMove> moves, bool out, const CacheViews& cache, std::byte* pages, int64_t page_bytes,
               const StepUse& before, std::vector<DeviceMove>& to);

}  // namespace quire
