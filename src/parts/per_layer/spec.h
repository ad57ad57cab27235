// Embeddings of tokens that each layer has of its own: what a model's are, read from metadata.
#pragma once

#include <cstdint>

#include "core/result.h"
#include "ops/gemm/activation.h"

namespace quire {

struct PerLayerSpec {
  int64_t width = 0;   // P, of one layer's; 0: there are none
  int64_t layers = 0;  // L
  GateActivation activation = GateActivation::kSilu;

  int64_t all() const { return layers * width; }
};

struct Architecture;
class ModelKeys;

Result<PerLayerSpec> read_per_layer(const ModelKeys& k, const Architecture& row);

}  // namespace quire
