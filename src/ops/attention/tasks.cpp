// Planning of the fast paged_attention kernels: which rows make a task, and where its scratch lies.
#include "ops/attention/kernels.h"

namespace quire::attention {
namespace {

// Rows of a task. More rows share one copy of a value block (and its way through the caches); fewer give more
// threads something to do. No row's bits depend on it.
constexpr int64_t kMostTaskRows = 256;
// With fewer rows in all than this, tasks of so many would be too few.
constexpr int64_t least_for(int64_t rows, int threads) {
  return rows * threads * 4;
}
int64_t rows_per_task(int64_t total_rows, int threads) {
  int64_t rows = kMostTaskRows;
  while (rows > kMaxTileRows && total_rows < least_for(rows, threads)) rows /= 2;
  return rows;
}
int64_t tokens_per_task(int64_t rows, const Heads& n) {
  return std::max<int64_t>(1, rows / n.group());
}

// At least as many tasks as a call of so many tokens or fewer, in so many segments or fewer, is cut into: memory for
// the largest step serves all others.
int64_t most_tasks(int64_t tokens, int64_t segments, const Heads& n, int threads) {
  int64_t most = tokens / tokens_per_task(kMostTaskRows, n);
  for (int64_t rows = kMostTaskRows / 2; 2 * rows > kMaxTileRows; rows /= 2)
    most = std::max(most, std::min(tokens, least_for(2 * rows, threads) / n.q_heads) / tokens_per_task(rows, n));
  return (most + segments) * n.kv_heads;
}

template <class T>
T* at_head(const Tensor& t, int64_t row, int64_t head) {
  return static_cast<T*>(t.data) + row * t.stride[0] + head * t.stride[1];
}

struct Chunk {
  const Segment* segment;
  int32_t first, tokens, kv_head;
};

RowTask make_task(const PagedAttentionArgs& a, const Heads& n, const Chunk& c) {
  const Segment& s = *c.segment;
  const int64_t row = s.row + c.first, kv_head = c.kv_head, head = kv_head * n.group();
  RowTask t;
  t.q = at_head<const bf16>(a.q, row, head);
  t.q_token = a.q.stride[0];
  t.q_head = a.q.stride[1];
  if (!a.gate.empty()) {
    t.gate = at_head<const bf16>(a.gate, row, head);
    t.gate_token = a.gate.stride[0];
    t.gate_head = a.gate.stride[1];
  }
  t.out = static_cast<bf16*>(a.out.data) + row * a.out.stride[0] + head * n.d;
  t.out_token = a.out.stride[0];
  if (a.kv.k.dtype == DType::kF8E4M3) {
    t.narrow = {.k = at_head<const e4m3>(a.kv.k, 0, kv_head),
                .v = at_head<const e4m3>(a.kv.v, 0, kv_head),
                .k_block = a.kv.k.stride[0],
                .v_block = a.kv.v.stride[0],
                .blocks = a.segments.table(s)};
  } else {
    t.k = at_head<const bf16>(a.kv.k, 0, kv_head);
    t.v = at_head<const bf16>(a.kv.v, 0, kv_head);
    t.k_block = a.kv.k.stride[0];
    t.v_block = a.kv.v.stride[0];
    t.blocks = a.segments.table(s);
  }
  t.position = s.position + c.first;
  t.tokens = c.tokens;
  t.group = n.group();
  t.d = n.d;
  t.scale = a.scale;
  t.window = a.window;
  if (!a.sinks.empty()) t.sinks = a.sinks.as<float>() + head;
  if (!a.ends.empty()) t.ends = a.ends.as<int32_t>() + row;
  return t;
}

// An E4M3 call's: bf16 copies of a task's staged keys and values, per thread, and where in them each block of a
// sequence is, the same for all.
class WideBlocks {
 public:
  WideBlocks(const OpContext& ctx, const PagedAttentionArgs& a, Workspace::Scope& scope)
      : elems_(kStagedKeys * a.q.dim(2)) {
    if (a.kv.k.dtype != DType::kF8E4M3) return;
    int32_t blocks = 0;
    for (const Segment& s : a.segments) blocks = std::max(blocks, (s.position + s.count) / kBlockTokens + 1);
    int32_t* const places = scope.take<int32_t>(blocks);
    for (int32_t i = 0; i < blocks; ++i) places[i] = i % static_cast<int32_t>(kStagedKeys / kBlockTokens);
    places_ = places;
    memory_ = scope.take<bf16>(2 * elems_ * ctx.pool.size());
  }
  void place(RowTask& t, int thread) const {
    if (t.narrow.k == nullptr) return;
    t.k = t.narrow.wide_k = memory_ + 2 * elems_ * thread;
    t.v = t.narrow.wide_v = t.narrow.wide_k + elems_;
    t.k_block = t.v_block = kBlockTokens * t.d;
    t.blocks = places_;
  }

 private:
  int64_t elems_;
  const int32_t* places_ = nullptr;
  bf16* memory_ = nullptr;
};

}  // namespace

void run_tasks(const OpContext& ctx, const PagedAttentionArgs& a,
               void (*task)(const RowTask& t, const TaskScratch& s)) {
  const Heads n = heads_of(a);
  int64_t tokens = 0;
  for (const Segment& s : a.segments) tokens += s.count;
  if (tokens == 0) return;
  const int64_t step = tokens_per_task(rows_per_task(tokens * n.q_heads, ctx.pool.size()), n);

  Workspace::Scope scope(ctx.workspace);
  int64_t widest = 0;
  for (const Segment& s : a.segments) widest = std::max(widest, std::min<int64_t>(s.count, step));
  const int64_t most = most_tasks(tokens, a.segments.count, n, ctx.pool.size());
  Chunk* chunks = scope.take<Chunk>(most);
  int64_t filled = 0;
  // A head's chunks follow each other, because they read the same keys. The last one sees the most of them:
  // handing it out first keeps the threads' finish together.
  for (const Segment& s : a.segments)
    for (int64_t head = 0; head < n.kv_heads; ++head)
      for (int64_t i = (s.count + step - 1) / step - 1; i >= 0; --i)
        chunks[filled++] = {&s, static_cast<int32_t>(i * step),
                            static_cast<int32_t>(std::min(step, s.count - i * step)), static_cast<int32_t>(head)};
  QUIRE_CHECK(filled <= most, "{} tasks of at most {}", filled, most);

  const int64_t rows = widest * n.group(), pitch = (n.d + 31) / 32 * 32, padded_rows = (rows + 31) / 16 * 16;
  const int64_t per_thread = 2 * rows * pitch + kMaxTileRows * kGroupKeys + 2 * padded_rows + kStagedKeys * pitch / 2 +
                             1024;  // floats; the last term keeps threads' pages apart
  float* memory = scope.take<float>(per_thread * ctx.pool.size());
  const auto scratch_of = [&](int thread) {
    TaskScratch s;
    s.pitch = pitch;
    s.sums = memory + thread * per_thread;
    s.queries = s.sums + rows * pitch;
    s.scores = s.queries + rows * pitch;
    s.values = reinterpret_cast<bf16*>(s.scores + kMaxTileRows * kGroupKeys);
    s.max = s.scores + kMaxTileRows * kGroupKeys + kStagedKeys * pitch / 2;
    s.total = s.max + padded_rows;
    return s;
  };
  const WideBlocks wide(ctx, a, scope);
  ctx.pool.parallel_for(filled, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      RowTask t = make_task(a, n, chunks[i]);
      wide.place(t, thread);
      task(t, scratch_of(thread));
    }
  });
}

}  // namespace quire::attention
