#include "engine/encoder_batch.h"

#include <algorithm>

#include "engine/loaded_vision.h"

namespace quire {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kKeptPictures = 4;  // of the largest

}  // namespace

EncoderMemory::EncoderMemory(const VisionConfig& c, const EncoderRoom& room)
    : room_(room),
      patch_bytes_(c.patch_bytes()),
      width_(c.width),
      out_width_(c.out_width),
      levels_(std::ssize(c.deepstack)) {
  if (!room.any()) return;
  int64_t at = 0;
  const auto take = [&](int64_t elements) {
    const int64_t begin = at;
    at = (at + elements * 4 + kAlign - 1) / kAlign * kAlign;
    return begin;
  };
  patches_ = take((room.patches * patch_bytes_ + 3) / 4);
  positions_ = take(room.patches * 2);
  mixed_ = take(room.patches * 4);
  weights_ = take(room.patches * 4);
  const int64_t pooled = c.pools() ? room.patches : 0;
  pooled_ = take(pooled);
  pool_weights_ = take(pooled);
  spans_ = take(static_cast<int64_t>(EncoderBatch::kMostPictures * sizeof(RowSpan)) / 4);
  stream_ = take(room.patches * width_);
  rows_ = take((1 + levels_) * room.tokens * out_width_);
  bytes_ = at;
}

Tensor EncoderMemory::deepstack(std::byte* base) const {
  if (levels_ == 0) return {};
  std::byte* const first = base + rows_ + room_.tokens * out_width_ * 4;
  return make_tensor(first, DType::kF32, {levels_, room_.tokens, out_width_});
}

VisionOutput EncoderMemory::output(std::byte* base, int64_t first, int64_t count) const {
  VisionOutput out{.rows = rows(base).rows(first, count), .deepstack = deepstack(base)};
  if (levels_ == 0) return out;
  out.deepstack.data = out.deepstack.bytes_at(first * out_width_);
  out.deepstack.shape[1] = count;
  return out;
}

VisionArrays EncoderMemory::arrays(std::byte* base, const VisionArrays& host) const {
  VisionArrays a = host;
  a.positions.data = base + positions_;
  a.mixed.data = base + mixed_;
  a.mix_weights.data = base + weights_;
  if (!a.pooled.empty()) a.pooled.data = base + pooled_, a.pool_weights.data = base + pool_weights_;
  a.spans.data = reinterpret_cast<const RowSpan*>(base + spans_);
  return a;
}

EncoderRoom encoder_room(const LoadedVision& vision) {
  const VisionConfig& c = vision.tower->config();
  const image::ImageSpec& spec = vision.spec;
  const int64_t pixels = spec.size_rule == image::SizeRule::kFixed ? spec.width * spec.height : spec.max_pixels;
  const int64_t patches = pixels / (spec.patch * spec.patch);
  const int64_t tokens = patches / (c.merge * c.merge);
  return {.patches = patches,
          .tokens = kKeptPictures * tokens,
          .whole = vision.both_ways ? static_cast<int32_t>(tokens) : 0};
}

}  // namespace quire
