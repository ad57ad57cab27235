#include "vision/batch.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

// Where `at` of `size` places falls on an axis of `side` learned ones, whose ends meet: in float32, as the models were
// made.
struct Mixed {
  int64_t first, second;
  float first_weight, second_weight;
};
Mixed interpolate(int64_t at, int64_t size, int64_t side) {
  const float place = static_cast<float>(at * (side - 1)) / static_cast<float>(std::max<int64_t>(size - 1, 1));
  const float floor = std::floor(place);
  const auto first = static_cast<int64_t>(floor);
  const float second_weight = place - floor;
  return {first, std::min(first + 1, side - 1), 1.0f - second_weight, second_weight};
}

Status check_grid(const VisionConfig& c, const ImageGrid& g) {
  if (g.frames < 1 || g.rows < 1 || g.columns < 1)
    return request_error("an image of {} x {} x {} patches", g.frames, g.rows, g.columns);
  if (c.fixed_size() && g != ImageGrid{1, c.side(), c.side()})
    return request_error("an image of {} x {} x {} patches, but this tower takes 1 x {} x {}", g.frames, g.rows,
                         g.columns, c.side(), c.side());
  if (c.family == VisionFamily::kGemma4 && std::max(g.rows, g.columns) > c.positions)
    return request_error("an image of {} x {} patches, but this tower has positions for {} in a row", g.rows, g.columns,
                         c.positions);
  if (g.rows % c.merge != 0 || g.columns % c.merge != 0)
    return request_error("an image of {} x {} patches, which are no blocks of {} x {}", g.rows, g.columns, c.merge,
                         c.merge);
  // Each factor is checked before they are multiplied.
  constexpr int64_t kMost = VisionBatch::kMaxPatches;
  if (g.frames > kMost || g.rows > kMost || g.columns > kMost || g.rows * g.columns > kMost ||
      g.rows * g.columns * g.frames > kMost)
    return request_error("an image of {} x {} x {} patches; at most {} are possible", g.frames, g.rows, g.columns,
                         kMost);
  return {};
}

}  // namespace

Result<VisionBatch> VisionBatch::make(const VisionConfig& config, std::span<const ImageGrid> grids) {
  VisionBatch b;
  b.merge_ = config.merge;
  b.mixes_ = config.fixed_size() ? 1 : config.family == VisionFamily::kGemma4 ? 2 : 4;
  b.pools_ = config.pools();
  for (size_t i = 0; i < grids.size(); ++i) {
    const ImageGrid& g = grids[i];
    QUIRE_CHECKED(check_grid(config, g).context(fmt::format("image {}", i)));
    if (b.patches() + g.patches() > kMaxPatches)
      return request_error("images of {} patches and more in one batch; at most {} are possible",
                           b.patches() + g.patches(), kMaxPatches);
    b.side_ = std::max({b.side_, static_cast<int32_t>(g.rows), static_cast<int32_t>(g.columns)});
    for (int64_t f = 0; f < g.frames; ++f) b.add_frame(config, g);
    b.first_token_.push_back(b.patches() / (b.merge_ * b.merge_));
  }
  if (!b.pools_) return b;
  const int64_t of_token = b.merge_ * b.merge_;
  for (int64_t i = 0; i < b.patches(); ++i) b.pooled_.push_back(static_cast<int32_t>(i));
  // The mean; Gemma 4 multiplies it by the root of the width.
  const float scale = config.family == VisionFamily::kGemma4 ? std::sqrt(static_cast<float>(config.width)) : 1.0f;
  b.pool_weights_.assign(b.pooled_.size(), scale / static_cast<float>(of_token));
  return b;
}

void VisionBatch::add_frame(const VisionConfig& config, const ImageGrid& grid) {
  const auto count = static_cast<int32_t>(grid.rows * grid.columns);
  spans_.push_back({static_cast<int32_t>(patches()), count});
  bounds_.most_rows = std::max(bounds_.most_rows, count);
  bounds_.pairs += int64_t{count} * count;
  for (int64_t row = 0; row < grid.rows; row += merge_)
    for (int64_t column = 0; column < grid.columns; column += merge_)
      for (int64_t i = 0; i < merge_ * merge_; ++i) add_patch(config, grid, row + i / merge_, column + i % merge_);
}

void VisionBatch::add_patch(const VisionConfig& config, const ImageGrid& grid, int64_t row, int64_t column) {
  const auto r32 = static_cast<int32_t>(row), c32 = static_cast<int32_t>(column);
  if (config.family == VisionFamily::kGemma4) {  // a table for each axis, that of columns first
    positions_.insert(positions_.end(), {c32, r32});
    mixed_.insert(mixed_.end(), {c32, static_cast<int32_t>(config.positions) + r32});
    mix_weights_.insert(mix_weights_.end(), {1.0f, 1.0f});
    return;
  }
  const int64_t side = config.side();
  positions_.insert(positions_.end(), {r32, c32});
  const auto mix = [&](int64_t r, int64_t c, float weight) {
    mixed_.push_back(static_cast<int32_t>(r * side + c));
    mix_weights_.push_back(weight);
  };
  if (mixes_ == 1) return mix(row, column, 1.0f);
  const Mixed r = interpolate(row, grid.rows, side), c = interpolate(column, grid.columns, side);
  mix(r.first, c.first, r.first_weight * c.first_weight);
  mix(r.first, c.second, r.first_weight * c.second_weight);
  mix(r.second, c.first, r.second_weight * c.first_weight);
  mix(r.second, c.second, r.second_weight * c.second_weight);
}

VisionArrays VisionBatch::arrays() const {
  VisionArrays a;
  a.patches = patches();
  a.tokens = tokens();
  a.side = side_;
  a.positions = make_tensor(positions_.data(), {a.patches, 2});
  a.mixed = make_tensor(mixed_.data(), {a.patches, mixes_});
  a.mix_weights = make_tensor(mix_weights_.data(), {a.patches, mixes_});
  if (pools_) {
    a.pooled = make_tensor(pooled_.data(), {a.tokens, merge_ * merge_});
    a.pool_weights = make_tensor(pool_weights_.data(), {a.tokens, merge_ * merge_});
  }
  a.spans = bounds_;
  a.spans.data = spans_.data();
  a.spans.count = static_cast<int32_t>(spans_.size());
  return a;
}

}  // namespace quire
