// What parts are given when a step runs through them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "core/tensor.h"
#include "ops/gemm/token_rounding.h"
#include "ops/op.h"

namespace quire {

// Sees named intermediates of a step, to compare two implementations layer by layer. Layer -1: outside the
// blocks.
using LayerProbe = std::function<void(std::string_view name, int layer, const Tensor& value)>;

class RankSums;  // parts/rank_sums.h

// What is the same for all parts of a layer.
struct LayerPass {
  const OpContext& ctx;
  float eps = 0;             // of norms
  int64_t latency_rows = 0;  // the first rows, in the arithmetic for latency
  RoundedTokens rounded;     // the last rows, for weights of few bits
  int layer = -1;            // -1: outside the blocks
  bool caches_only = false;  // nothing is wanted of the layer but what it leaves in the caches
  const LayerProbe* probe = nullptr;
  RankSums* ranks = nullptr;  // not null: this rank has some of every part, and what parts put out is partial

  void show(std::string_view name, const Tensor& value) const {
    if (probe != nullptr) (*probe)(name, layer, value);
  }
};

// Where a part's last projection goes: it is added to the residual stream, or written to where it is normalised.
struct PartOutput {
  Tensor x;  // [T, D] f32
  bool add = true;
};

}  // namespace quire
