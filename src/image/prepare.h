// From pixels to what a vision tower takes: patches of normalised float32 values.
#pragma once

#include <memory>
#include <span>

#include "image/pixels.h"
#include "image/spec.h"

namespace quire::image {

struct Patches {
  ImagePlan plan;
  int64_t length = 0;  // of one patch, in values
  std::unique_ptr<float[]> memory;

  int64_t count() const { return plan.rows * plan.columns; }
  std::span<const float> values() const { return {memory.get(), static_cast<size_t>(count() * length)}; }
};

// Resizes, normalises, and cuts into patches in the order of spec.layout.
Result<Patches> prepare(const Pixels& pixels, const ImageSpec& spec);

}  // namespace quire::image
