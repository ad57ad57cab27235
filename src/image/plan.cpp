#include <algorithm>
#include <cmath>

#include "image/spec.h"

namespace quire::image {

namespace {

constexpr double kMaxAspect = 200;

struct Size {
  int64_t width = 0, height = 0;
};

// To the nearest multiple; halves go to the even one.
int64_t nearest_multiple(int64_t n, int64_t of) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(n) / static_cast<double>(of))) * of;
}

// The order of the operations is that of the processors: a multiple may hang on the last bit.
Result<Size> within_pixel_range(const ImageSpec& s, int64_t width, int64_t height) {
  const int64_t side = s.patch * s.merge;
  const double w = static_cast<double>(width), h = static_cast<double>(height);
  const double f = static_cast<double>(side);
  if (std::max(w, h) / std::min(w, h) > kMaxAspect)
    return request_error("an image of {} x {} is too long: one side may be {} times the other", width, height,
                         kMaxAspect);
  Size to{nearest_multiple(width, side), nearest_multiple(height, side)};
  if (to.width * to.height > s.max_pixels) {
    const double beta = std::sqrt(w * h / static_cast<double>(s.max_pixels));
    to.width = std::max(side, static_cast<int64_t>(std::floor(w / beta / f)) * side);
    to.height = std::max(side, static_cast<int64_t>(std::floor(h / beta / f)) * side);
  } else if (to.width * to.height < s.min_pixels) {
    const double beta = std::sqrt(static_cast<double>(s.min_pixels) / (w * h));
    to.width = static_cast<int64_t>(std::ceil(w * beta / f)) * side;
    to.height = static_cast<int64_t>(std::ceil(h * beta / f)) * side;
  }
  return to;
}

// Both sides times the root that makes the budget full, rounded down; a side that would vanish is one block.
Result<Size> within_budget(const ImageSpec& s, int64_t width, int64_t height) {
  const int64_t side = s.patch * s.merge, budget = s.max_tokens * side * side;
  const double factor = std::sqrt(static_cast<double>(budget) / static_cast<double>(width * height));
  const auto rounded = [&](int64_t n) {
    return static_cast<int64_t>(std::floor(factor * static_cast<double>(n) / static_cast<double>(side))) * side;
  };
  Size to{rounded(width), rounded(height)};
  const int64_t longest = s.max_tokens * side;
  if (to.height == 0) to = {std::min(width / height * side, longest), side};
  if (to.width == 0) to = {side, std::min(height / width * side, longest)};
  if (to.width * to.height > budget)
    return request_error("an image of {} x {} does not fit {} tokens", width, height, s.max_tokens);
  return to;
}

Result<Size> size_of(const ImageSpec& s, int64_t width, int64_t height) {
  switch (s.size_rule) {
    case SizeRule::kPixelRange:
      return within_pixel_range(s, width, height);
    case SizeRule::kFixed:
      return Size{s.width, s.height};
    case SizeRule::kPatchBudget:
      return within_budget(s, width, height);
  }
  return Error{Fault::kBug, "no such rule of sizes"};
}

}  // namespace

std::vector<Crop> views_of(const ImageSpec& spec, int64_t width, int64_t height) {
  std::vector<Crop> views(1);
  const PanAndScan& p = spec.pan_and_scan;
  if (!p.on || width <= 0 || height <= 0) return views;
  const int64_t longer = std::max(width, height), shorter = std::min(width, height);
  const double ratio = static_cast<double>(longer) / static_cast<double>(shorter);
  // As float32, which the least ratio is in: it decides as the number in a configuration, 1.2 for example.
  if (static_cast<float>(ratio) < p.min_ratio) return views;
  const auto wanted = std::min(static_cast<int64_t>(std::floor(ratio + 0.5)), longer / p.min_crop);
  const int64_t count = std::min(std::max<int64_t>(wanted, 2), p.max_crops);
  const int64_t step = (longer + count - 1) / count;
  if (std::min(step, shorter) < p.min_crop) return views;
  // Steps are rounded up: the last piece may be narrower.
  for (int64_t at = 0; at < longer; at += step) {
    const int64_t size = std::min(step, longer - at);
    views.push_back(width >= height ? Crop{at, 0, size, height} : Crop{0, at, width, size});
  }
  return views;
}

Result<ImagePlan> plan_image(const ImageSpec& spec, int64_t width, int64_t height) {
  if (width <= 0 || height <= 0) return request_error("an image of {} x {} has no pixels", width, height);
  QUIRE_TRY(const Size to, size_of(spec, width, height));
  ImagePlan plan{to.width, to.height, to.height / spec.patch, to.width / spec.patch};
  plan.tokens = (plan.rows / spec.merge) * (plan.columns / spec.merge);
  return plan;
}

}  // namespace quire::image
