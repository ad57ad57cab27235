#include "engine/step_cost.h"

#include <algorithm>

#include "engine/byte_counts.h"
#include "model/memory.h"
#include "ops/sampling/history.h"

namespace quire {

int64_t StepCost::steps(const EnginePlan& o) const {
  return fixed + o.max_batch_tokens * row + o.sampled_rows() * sampled +
         times(o.max_sequences, sequence + times(o.context, table) / kBlockTokens) + times(o.decode_parts, part);
}

Result<StepCost> step_cost(const EnginePlan& o, const ModelConfig& c) {
  CacheShape shape = o.own_cache_shape(c);
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return file_error("keys and values, or recurrent states, of more bytes than can be counted");
  const bool gpu = o.device == Device::kCuda;
  StepCost cost{.fixed = (int64_t{gpu ? 384 : 16} << 20), .pools = *pools};
  shape.drafts = 0;
  cost.drafts = cost.state() - state_bytes(shape.pools().value_or(CachePools{}));
  // A third more than what is counted, for scratch memory of single operators.
  const ExpertsSpec& f = c.experts;
  const int64_t results = f.count > 0 ? (int64_t{f.top_k} + 1) * c.d_model * 2 + int64_t{f.count} * 4 : 0;
  cost.row = (activation_row_bytes(c) + results) * 4 / 3;
  cost.sampled = 3 * 4 * c.vocab + 2 * 8 * int64_t{o.max_logit_bias};
  if (!gpu) {
    // Entries of tables of each pool, and what the host keeps of a block: who has it, and its tokens.
    cost.table = int64_t{4} * block_pools(cost.pools);
    cost.block = 64 + 4 * kBlockTokens;
    return cost;
  }
  // A CPU's histories are touched where penalties ask for them, a GPU's are allocated.
  cost.sequence = token_history_bytes(1, c.vocab, std::min(c.vocab, c.context_length));
  // All rows of steps in flight, and the window that each sequence may come to hold.
  for (const CachePoolSpec& pool : cost.pools) {
    if (!pool.is_window()) continue;
    cost.row += o.steps_in_flight() * pool.bytes / kBlockTokens;
    cost.sequence += o.window_needs(pool).sequence * pool.bytes;
  }
  cost.table = kBlockTokens;
  // Rows of queries of a KV head's group come in eights.
  const AttentionSpec& a = c.attention;
  for (const Mixer m : {Mixer::kAttention, Mixer::kWindowAttention}) {
    const HeadShape heads = a.heads_of(m);
    const int64_t group = heads.kv_heads == 0 ? 0 : (a.heads / heads.kv_heads + 7) / 8 * 8;
    if (c.attention_layers() > 0)
      cost.part = std::max(cost.part, heads.kv_heads * group * (int64_t{heads.head_dim} + 2) * 4);
  }
  return cost;
}

}  // namespace quire
