// A gated delta net: what a model's is, read from metadata, and the state that it keeps in the caches.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/shape.h"
#include "core/result.h"
#include "parts/mixer.h"

namespace quire {

struct DeltaSpec {
  int32_t conv_kernel = 0;  // Kc
  int32_t key_heads = 0, value_heads = 0;
  int32_t key_dim = 0, value_dim = 0;
  bool grouped = false;  // value heads of a key head follow each other; otherwise they go round the key heads

  int64_t conv_channels() const { return 2 * int64_t{key_heads} * key_dim + inner(); }
  int64_t inner() const { return int64_t{value_heads} * value_dim; }
  // Says what the layers of a model keep, if there are any of this kind.
  void keep(const Mixers& layers, const CacheUse& use, CacheShape& caches) const;
};

struct Architecture;
class ModelKeys;

// Which layers are gated delta nets.
Result<std::vector<bool>> read_delta_layers(const ModelKeys& k, const Architecture& row);
Result<DeltaSpec> read_delta(const ModelKeys& k, const Architecture& row);

}  // namespace quire
