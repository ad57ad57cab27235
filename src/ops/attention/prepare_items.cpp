// Planning of the fast attention_prepare kernels: which tokens make an item, and where its scratch lies.
#include "ops/attention/kernels.h"

namespace quire::attention {

void run_items(const OpContext& ctx, const AttentionPrepareArgs& a,
               void (*item)(const AttentionPrepareArgs& a, const PrepareScratch& s, const PrepareItem& i)) {
  const int64_t d = heads_of(a).d;
  Workspace::Scope scope(ctx.workspace);
  int64_t most = 0;
  for (const Segment& s : a.segments) most += s.count / kBlockTokens + 2;
  PrepareItem* items = scope.take<PrepareItem>(most);
  int64_t filled = 0;
  for (const Segment& s : a.segments)
    for (int32_t first = 0; first < s.count;) {
      const int32_t count = std::min(s.count - first, kBlockTokens - (s.position + first) % kBlockTokens);
      items[filled++] = {&s, first, count};
      first += count;
    }

  const auto whole_lines = [](int64_t floats) { return (floats + 15) / 16 * 16; };
  const int64_t pairs = whole_lines(a.rope.n_rot / 2), table = kBlockTokens * pairs, head = whole_lines(d);
  const int64_t per_thread = 2 * table + head + kBlockTokens * d / 2 + 64;  // the last keeps threads apart
  float* memory = scope.take<float>(per_thread * ctx.pool.size());
  ctx.pool.parallel_for(filled, 1, [&](int64_t begin, int64_t end, int thread) {
    float* const mine = memory + per_thread * thread;
    const PrepareScratch s{pairs, mine, mine + table, mine + 2 * table,
                           reinterpret_cast<bf16*>(mine + 2 * table + head)};
    for (int64_t i = begin; i < end; ++i) item(a, s, items[i]);
  });
}

}  // namespace quire::attention
