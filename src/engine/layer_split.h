// Which device has which layers, where several have those of one model (--pipeline-parallel-size).
#pragma once

#include <span>
#include <vector>

#include "gguf/reader.h"
#include "model/config.h"
#include "model/layer_range.h"

namespace quire {

// Bytes of weights as the file has them: of each layer, and of what the first and the last device have besides.
struct LayerBytes {
  std::vector<int64_t> layers;
  int64_t before = 0, behind = 0;

  int64_t of(LayerRange range) const;
};
// `drafts`: with the file's block for multi-token prediction, which reads the embedding as well.
LayerBytes layer_bytes(const gguf::File& file, const ModelConfig& model, bool drafts);

// Whether a device may begin with this layer: what attends to the keys and values of another layer is where that is,
// and the first `deepstack` layers, to which pictures are added, are where the pictures are.
bool may_begin_with(const ModelConfig& model, int32_t layer, int64_t deepstack);

// As many ranges as there are shares, so that the largest part of a share, in weights by its size, is as small as it
// can be. Fault::kRequest where the layers cannot be cut into as many.
Result<std::vector<LayerRange>> split_layers(const ModelConfig& model, const LayerBytes& bytes, int64_t deepstack,
                                             std::span<const double> shares);

}  // namespace quire
