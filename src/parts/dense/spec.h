// A dense feed-forward: what a model's is, read from metadata.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "core/result.h"
#include "ops/gemm/activation.h"

namespace quire {

struct DenseSpec {
  int64_t d_ff = 0;             // of the widest layer
  std::vector<int64_t> widths;  // the same of each layer, where they differ
  GateActivation activation = GateActivation::kSilu;

  int64_t width(int64_t block) const { return block < std::ssize(widths) ? widths[static_cast<size_t>(block)] : d_ff; }
};

struct Architecture;
class ModelKeys;

// What gates of all feed-forwards of a model go through.
Result<GateActivation> read_gate_activation(const ModelKeys& k, const Architecture& row);
// `everywhere`: all layers have one, which may be of different widths. Elsewhere 0 is legal.
Result<DenseSpec> read_dense(const ModelKeys& k, const Architecture& row, bool everywhere);

}  // namespace quire
