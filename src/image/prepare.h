// From pixels to what a vision tower takes: patches of bytes, which the tower normalises itself.
#pragma once

#include <memory>
#include <span>

#include "image/pixels.h"
#include "image/spec.h"

namespace quire::image {

// One frame of each patch: a still picture's others are the same. Bytes, because numbers would be eight times as many
// bytes to keep and to copy to a GPU.
struct Patches {
  ImagePlan plan;
  int64_t length = 0;  // of one patch, in bytes
  std::unique_ptr<uint8_t[]> memory;

  int64_t count() const { return plan.rows * plan.columns; }
  std::span<const uint8_t> bytes() const { return {memory.get(), static_cast<size_t>(count() * length)}; }
};

// Resizes a picture, or the part of it, and cuts it into patches in the order of spec.layout: planes of colours, or
// pixels.
Result<Patches> prepare(const Pixels& pixels, const ImageSpec& spec, const Crop& crop = {});

}  // namespace quire::image
