// What a tower must know of a batch of images besides their patches: everything follows from the images' grids.
//
// The interpolation of learned positions is split in two. Which rows of the table a patch mixes, and with which
// weights, is worked out here, on the host: a few numbers for each patch, which depend on the grid alone. The sums are
// an operator's (ops/mix_rows), because the table is a weight, and lies where the device has it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "ops/vision_attention/vision_attention.h"
#include "vision/config.h"

namespace quire {

// Patches of an image: a still image has one frame (of two equal ones, where a patch covers two in time).
struct ImageGrid {
  int64_t frames = 1, rows = 0, columns = 0;

  int64_t patches() const { return frames * rows * columns; }
  friend bool operator==(const ImageGrid&, const ImageGrid&) = default;
};

// The same as arrays, in the memory of whatever computes.
struct VisionArrays {
  Tensor positions;             // [patches, 2] i32: row and column; of Gemma 4 column and row
  Tensor mixed, mix_weights;    // [patches, 1, 2 or 4] i32, f32: of the table of positions
  Tensor pooled, pool_weights;  // [tokens, merge * merge] i32, f32: patches of a token; empty where nothing is pooled
  RowSpans spans;               // one for each frame of each image
  int64_t patches = 0, tokens = 0;
  int32_t side = 0;  // rows and columns are below
};

// Patches of all images follow each other, frame by frame. Within a frame they come in blocks of merge x merge, which
// make a token each: block by block along rows, and within a block row by row.
class VisionBatch {
 public:
  static constexpr int64_t kMaxPatches = int64_t{1} << 20;  // of a batch

  // An error if a grid cannot be computed: sides that are no multiple of merge, another size than a tower's only one,
  // too many patches.
  static Result<VisionBatch> make(const VisionConfig& config, std::span<const ImageGrid> grids);

  int64_t patches() const { return std::ssize(positions_) / 2; }
  int64_t tokens() const { return first_token_.back(); }
  // Of image i: its rows among the batch's patches and tokens.
  int64_t first_token(size_t i) const { return first_token_[i]; }
  int64_t first_patch(size_t i) const { return first_token_[i] * merge_ * merge_; }
  // Views of this object's memory.
  VisionArrays arrays() const;

 private:
  void add_frame(const VisionConfig& config, const ImageGrid& grid);
  void add_patch(const VisionConfig& config, const ImageGrid& grid, int64_t row, int64_t column);

  int64_t merge_ = 1, mixes_ = 1;
  bool pools_ = false;
  std::vector<int64_t> first_token_{0};
  std::vector<int32_t> positions_, mixed_, pooled_;
  std::vector<float> mix_weights_, pool_weights_;
  std::vector<RowSpan> spans_;
  RowSpans bounds_;  // what is said of spans_
  int32_t side_ = 0;
};

}  // namespace quire
