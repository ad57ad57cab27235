// What a backend computes of pictures: a vision tower's pass over some of them, a slice of blocks with each step.
#pragma once

#include <memory>
#include <vector>

#include "engine/plan.h"
#include "image/prepare.h"
#include "vision/tower.h"

namespace quire {

struct LoadedVision;

// Pictures that the tower takes together. In the host's memory, constant while a backend has it.
struct EncoderBatch {
  static constexpr size_t kMostPictures = 16;  // each is a copy to the device

  std::vector<std::shared_ptr<const image::Patches>> pictures;
  VisionBatch batch;
  int64_t first_row = 0;  // of the rows that are kept: what is put out begins there
};

struct EncoderSlice {
  std::shared_ptr<const EncoderBatch> batch;  // null: nothing is encoded
  VisionSlice blocks;
};

// A device's memory for pictures: what the host copies there, the residual stream of a pass, and the rows that are
// kept. Where it is too large to be counted, it has no bytes.
class EncoderMemory {
 public:
  EncoderMemory() = default;
  EncoderMemory(const VisionConfig& config, const EncoderRoom& room);

  int64_t bytes() const { return bytes_; }
  // Of memory that begins at `base`.
  Tensor patches(std::byte* base, int64_t count) const { return of(base, patches_, DType::kI8, count, patch_bytes_); }
  Tensor stream(std::byte* base, int64_t count) const { return of(base, stream_, DType::kF32, count, width_); }
  // What is kept: rows that take the place of tokens, and in the first layers, a level each, what is added to them.
  Tensor rows(std::byte* base) const { return of(base, rows_, DType::kF32, room_.tokens, out_width_); }
  Tensor deepstack(std::byte* base) const;  // [levels, tokens, out width]; empty: there are none
  // Of that the rows [first, first + count).
  VisionOutput output(std::byte* base, int64_t first, int64_t count) const;
  // The same arrays as the host's, there.
  VisionArrays arrays(std::byte* base, const VisionArrays& host) const;

 private:
  static Tensor of(std::byte* base, int64_t at, DType type, int64_t rows, int64_t width) {
    return make_tensor(base + at, type, {rows, width});
  }
  EncoderRoom room_;
  int64_t patch_bytes_ = 0, width_ = 0, out_width_ = 0, levels_ = 0;
  int64_t patches_ = 0, positions_ = 0, mixed_ = 0, weights_ = 0, pooled_ = 0, pool_weights_ = 0, spans_ = 0,
          stream_ = 0, rows_ = 0, bytes_ = 0;
};

// What the largest pictures that a model takes need: one that is encoded, and as many that are kept as a few prompts
// wait for. None without a tower.
EncoderRoom encoder_room(const LoadedVision& vision);

}  // namespace quire
