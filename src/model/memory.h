// Memory that running a model takes, from its shape alone.
#pragma once

#include <algorithm>
#include <string_view>

#include "cache/shape.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "model/layer_range.h"

namespace quire {

// The caches of a model: what each of its parts keeps.
CacheShape cache_shape(const ModelConfig& c, DType activations, KvCacheType kv = KvCacheType::kAuto,
                       const CacheUse& use = {});

// What a step reads of `cache`: a layer that attends to the keys and values of another counts as if it had its own.
CacheShape cache_reads(const ModelConfig& c, CacheShape cache);

// What of such caches these layers have: the same pools, whose units may have no bytes. The last layers have whatever
// is behind them.
CacheShape cache_part(const ModelConfig& c, CacheShape shape, LayerRange layers);

// The window of the pool that layers with a window have their blocks in, where sequences are of so many positions at
// most. 0: in that of all other layers, since sequences that lie within the window would never give anything back.
int64_t pool_window(const ModelConfig& c, int64_t context);
// The most window blocks that a sequence holds: those of the positions that its next token looks back on, wherever it
// stands, of `behind` more, and one that the rows of steps in flight, whose blocks are counted for all sequences
// together, may begin or end within.
constexpr int64_t most_window_blocks(int64_t window, int64_t behind) {
  return (window + behind + 2 * kBlockTokens - 3) / kBlockTokens + 1;
}

// Bytes of one token's intermediates in a step, in bf16 where they are not in float32: what is laid out for all layers,
// and the most that a part takes while it runs. Logits and kernels' scratch are not in it.
int64_t activation_row_bytes(const ModelConfig& c);

struct MemoryEstimate {
  int64_t weights = 0;   // mapped: page cache, shared between processes
  int64_t repacked = 0;  // copies of weights, in engines for few sequences; the caller fills this in
  struct Pool {
    CachePoolSpec spec;
    int64_t bytes = 0;  // of all sequences; of windows with what a step adds
  };
  std::vector<Pool> caches;
  // Of the pool of this name; 0 if there is none.
  int64_t of(std::string_view pool) const {
    const auto found = std::ranges::find(caches, pool, [](const Pool& p) -> std::string_view { return p.spec.name; });
    return found == caches.end() ? 0 : found->bytes;
  }
  int64_t activations = 0;  // of one step, logits included, kernels' scratch not
  int64_t total() const {
    int64_t sum = weights + repacked + activations;
    for (const Pool& pool : caches) sum += pool.bytes;
    return sum;
  }
};

// `sequences` sequences of `context` positions each, all full, in steps of at most `batch_tokens` rows, on
// the CPU. An error if that does not fit in 64 bits.
Result<MemoryEstimate> estimate_memory(const gguf::File& file, const ModelConfig& c, int64_t context, int64_t sequences,
                                       int64_t batch_tokens);

}  // namespace quire
