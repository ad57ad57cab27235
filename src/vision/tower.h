// A vision tower: from patches of images to the rows that a text model takes in place of image tokens.
#pragma once

#include <memory>

#include "parts/activations.h"
#include "parts/pass.h"
#include "parts/weight_visitor.h"
#include "vision/batch.h"
#include "vision/config.h"
#include "vision/weights.h"

namespace quire {

// Where results go: float32, written as a whole.
struct VisionOutput {
  Tensor rows;       // [tokens, out_width]
  Tensor deepstack;  // [levels, tokens, out_width], levels as far apart as wanted: what is added to the text model's
                     // residual stream behind its first layers, one level for each of VisionConfig::deepstack; empty
                     // where there are none
};

// The intermediates of one pass.
struct VisionActivations {
  Tensor x;    // [patches, width] f32: the residual stream
  Tensor h;    // [patches, width]: normalised rows, and what attention puts out
  Tensor qkv;  // [patches, 3 width]; of Gemma 4 [3 patches, width]
  // Feed-forwards, mergers and patches' products go through these a slice of rows at a time.
  Tensor inner;           // [slice, widest feed-forward]
  Tensor wide;            // Gemma 4: [slice, the widest of three widths and two feed-forwards] f32
  Tensor bounded;         // Gemma 4: [slice, width], between bounds
  Tensor patch;           // [slice, patch_columns]: as they are multiplied
  Tensor exact;           // the same in f32, where numbers are to be rounded
  Tensor pooled, normed;  // [tokens, width] f32 and the activations' type; of towers that pool
};
// `patches`: DType::kI8 or kF32, as forward() has them. `x`: the stream's memory, where the caller has it.
VisionActivations lay_out(const VisionConfig& config, ActivationMemory& mem, int64_t tokens, int64_t slice_rows,
                          DType patches, const Tensor& x = {});

// Blocks [begin, end) of a pass. A slice that begins with block 0 begins with the patches, one that ends with the last
// block puts out rows.
struct VisionSlice {
  int64_t begin = 0, end = 0;
};

// Immutable: shared by threads.
class VisionTower {
 public:
  // Reads, finds and checks everything. The file must outlive the tower: weights stay in its mapping.
  static Result<std::unique_ptr<const VisionTower>> load(const gguf::File& file);
  VisionTower(const VisionTower&) = delete;
  VisionTower& operator=(const VisionTower&) = delete;

  const VisionConfig& config() const { return config_; }
  void visit(WeightVisitor& v) const { VisionWeights::visit(weights_, v); }
  // The same tower with its weights where a backend wants them, which must be alive as long as it is.
  std::unique_ptr<const VisionTower> placed(WeightPlacer& v) const;
  int64_t owned_bytes() const { return arena_.bytes; }  // converted out of the mapping

  // One pass over a batch. `patches` are still pictures, as image::prepare() cuts them: [batch.patches, patch_bytes] i8
  // (bytes of 0 to 255). Or they are numbers: [batch.patches, patch_width] f32, of each patch its colours, of a colour
  // the frames that the patch covers, of a frame the pixels row by row. Both are rounded to the activations' type.
  // A row of the output has the same bits whatever else is in the batch, and on any number of threads.
  // `probe`, if it is given, sees the residual stream behind each block.
  void forward(const OpContext& ctx, const Tensor& patches, const VisionArrays& batch, const VisionOutput& out,
               const LayerProbe* probe = nullptr) const;

  // A part of that pass: all parts one after the other give the same bits. `x` [batch.patches, width] f32, the residual
  // stream, is the caller's from the first part to the last; the first alone reads patches, the last alone writes rows.
  // Blocks of config.deepstack write their level of out.deepstack.
  void forward_slice(const OpContext& ctx, const VisionSlice& slice, const Tensor& patches, const VisionArrays& batch,
                     const Tensor& x, const VisionOutput& out) const;

  // Bytes of a context's workspace that forward() takes for such a batch, whose patches are of this type. `gpu`: the
  // context's, of Device::kCuda.
  int64_t scratch_bytes(Machine machine, ThreadPool& pool, const VisionBatch& batch, DType patches,
                        GpuContext* gpu = nullptr) const;

 private:
  explicit VisionTower(VisionConfig config) : config_(std::move(config)) {}

  VisionConfig config_;
  WeightLoader::Arena arena_;
  VisionWeights weights_;
};

}  // namespace quire
