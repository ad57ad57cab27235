// vision_attention on a CPU: keys and values into blocks, then tasks of query rows for the kernels of paged_attention.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "ops/vision_attention/kernels.h"

namespace quire::vision_attention_detail {
namespace {

using attention::kGroupKeys;
using attention::kMaxTileRows;
using attention::kStagedKeys;
using attention::RowTask;
using attention::TaskScratch;

// Rows of a task at most: more share one way of the keys through the caches, fewer give more threads something to do.
// No row's bits depend on it.
constexpr int64_t kMostTaskRows = 256;

int64_t rows_per_task(int64_t rows, int threads) {
  int64_t each = kMostTaskRows;
  while (each > kMaxTileRows && rows < each * threads * 4) each /= 2;
  return each;
}

// A span with what lies before it: blocks of 16 keys, and tasks of one head.
struct Part {
  RowSpan span;
  int64_t first_block, first_task;
};

// Everything that one call needs, in memory of its scope.
class Call {
 public:
  Call(const OpContext& ctx, const VisionAttentionArgs& a, int64_t multiple)
      : ctx_(ctx),
        a_(a),
        scope_(ctx.workspace),
        heads_(a.q.dim(1)),
        d_(a.q.dim(2)),
        padded_((d_ + multiple - 1) / multiple * multiple),
        task_rows_(rows_per_task(a.q.dim(0) * heads_, ctx.pool.size())),
        most_blocks_(a.q.dim(0) / kBlockTokens + a.spans.count) {
    turns_ = scope_.take<float>(turns_size(a.rotation, d_));
    parts_ = scope_.take<Part>(a.spans.count + 1);
    table_ = scope_.take<int32_t>(a.spans.most_rows / kBlockTokens + 1);
    keys_ = scope_.take<bf16>(heads_ * most_blocks_ * block_elems());
    values_ = scope_.take<bf16>(heads_ * most_blocks_ * block_elems());
    tokens_ = scope_.take<float>(tokens_size() * ctx.pool.size());
    memory_ = scope_.take<float>(task_size() * ctx.pool.size());
  }

  void run(void (*task)(const RowTask&, const TaskScratch&)) {
    if (ctx_.pool.dry()) return;
    plan();
    if (!a_.rotation.positions.empty()) fill_turns(ctx_, a_.rotation, d_ / 4, turns_);
    const Part& all = parts_[a_.spans.count];
    ctx_.pool.parallel_for(all.first_block, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t b = begin; b < end; ++b) pack_block(b, tokens_ + tokens_size() * thread);
    });
    // The tasks of a head follow each other, because they read the same keys.
    ctx_.pool.parallel_for(all.first_task * heads_, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) run_task(i, memory_ + task_size() * thread, task);
    });
  }

 private:
  int64_t block_elems() const { return kBlockTokens * padded_; }
  int64_t pitch() const { return (padded_ + 31) / 32 * 32; }
  // A block's tokens of one head, in float32.
  int64_t tokens_size() const { return (kBlockTokens * padded_ + 31) / 16 * 16; }
  // Floats of a task's scratch; the last ones keep threads' pages apart.
  int64_t task_size() const {
    return 3 * task_rows_ * pitch() + kMaxTileRows * kGroupKeys + kStagedKeys * pitch() / 2 + 2 * (task_rows_ + 16) +
           1024;
  }
  static int64_t tasks(int64_t rows, int64_t each) { return (rows + each - 1) / each; }

  void plan() {
    Part at{{}, 0, 0};
    for (int32_t i = 0; i < a_.spans.count; ++i) {
      at.span = a_.spans.data[i];
      QUIRE_CHECK(at.span.row >= 0 && at.span.count >= 0 && at.span.count <= a_.spans.most_rows &&
                      at.span.row + int64_t{at.span.count} <= a_.q.dim(0),
                  "vision_attention: span {} has {} rows from {} on", i, at.span.count, at.span.row);
      parts_[i] = at;
      at.first_block += (at.span.count + kBlockTokens - 1) / kBlockTokens;
      at.first_task += tasks(at.span.count, task_rows_);
    }
    QUIRE_CHECK(at.first_block <= most_blocks_, "vision_attention: spans overlap");
    parts_[a_.spans.count] = at;
    std::iota(table_, table_ + a_.spans.most_rows / kBlockTokens + 1, 0);
  }
  // The last part that begins at or before `i`: no empty one, as long as there is such a block or task.
  const Part& part_of(int64_t Part::*first, int64_t i) const {
    const Part *const begin = parts_, *const end = parts_ + a_.spans.count;
    return *(std::upper_bound(begin, end, i, [&](int64_t x, const Part& p) { return x < p.*first; }) - 1);
  }

  bf16* block_at(bf16* of, int64_t head, int64_t block) const {
    return of + (head * most_blocks_ + block) * block_elems();
  }

  // A head of row t in float32, rotated where that is wanted, and zeros to its padded width.
  void load_head(const Tensor& from, bool rotates, int64_t t, int64_t head, float* to) const {
    const bf16* const x = from.row<bf16>(t) + head * d_;
    for (int64_t c = 0; c < d_; ++c) to[c] = to_float(x[c]);
    std::fill(to + d_, to + padded_, 0.0f);
    if (rotates && !a_.rotation.positions.empty()) turn_head(to, turn_of(a_.rotation, turns_, d_ / 4, t), d_, to);
  }

  void pack_block(int64_t block, float* tokens) const {
    const Part& p = part_of(&Part::first_block, block);
    const int64_t first = (block - p.first_block) * kBlockTokens;
    const int64_t count = std::min<int64_t>(kBlockTokens, p.span.count - first);
    for (int64_t head = 0; head < heads_; ++head)
      for (const bool keys : {true, false}) {
        for (int64_t t = 0; t < count; ++t)
          load_head(keys ? a_.k : a_.v, keys, p.span.row + first + t, head, tokens + t * padded_);
        std::fill(tokens + count * padded_, tokens + kBlockTokens * padded_, 0.0f);
        bf16* const to = block_at(keys ? keys_ : values_, head, block);
        for (int64_t t = 0; t < kBlockTokens; ++t)
          for (int64_t c = 0; c < padded_; ++c)
            to[keys ? key_offset(t, c) : value_offset(t, c, padded_)] = to_bf16(tokens[t * padded_ + c]);
      }
  }

  TaskScratch scratch_in(float* memory) const {
    TaskScratch s;
    s.pitch = pitch();
    s.sums = memory;
    s.queries = s.sums + task_rows_ * pitch();
    s.scores = s.queries + task_rows_ * pitch();
    s.values = reinterpret_cast<bf16*>(s.scores + kMaxTileRows * kGroupKeys);
    s.max = s.scores + kMaxTileRows * kGroupKeys + kStagedKeys * pitch() / 2;
    s.total = s.max + task_rows_ + 16;
    return s;
  }

  void run_task(int64_t index, float* memory, void (*task)(const RowTask&, const TaskScratch&)) const {
    // Tasks are numbered span by span, head by head.
    const Part& p = part_of(&Part::first_task, index / heads_);
    const int64_t own = index - p.first_task * heads_, each = tasks(p.span.count, task_rows_);
    const int64_t head = own / each, first = own % each * task_rows_;
    const int64_t rows = std::min(task_rows_, p.span.count - first);

    const TaskScratch s = scratch_in(memory);
    bf16* const q = reinterpret_cast<bf16*>(s.total + task_rows_ + 16);
    bf16* const out = q + task_rows_ * padded_;
    for (int64_t r = 0; r < rows; ++r) {
      float* const head_of_row = s.sums;  // not used yet
      load_head(a_.q, true, p.span.row + first + r, head, head_of_row);
      for (int64_t c = 0; c < padded_; ++c) q[r * padded_ + c] = to_bf16(head_of_row[c]);
    }
    RowTask t;
    t.q = q;
    t.q_head = padded_;
    t.out = out;
    t.k = block_at(keys_, head, p.first_block);
    t.v = block_at(values_, head, p.first_block);
    t.k_block = t.v_block = block_elems();
    t.blocks = table_;
    t.position = p.span.count - 1;
    t.tokens = 1;
    t.group = rows;
    t.d = padded_;
    t.scale = a_.scale;
    task(t, s);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(a_.out.row<bf16>(p.span.row + first + r) + head * d_, out + r * padded_,
                  static_cast<size_t>(d_) * sizeof(bf16));
  }

  const OpContext& ctx_;
  const VisionAttentionArgs& a_;
  Workspace::Scope scope_;
  int64_t heads_, d_, padded_, task_rows_, most_blocks_;
  float* turns_;
  Part* parts_;
  int32_t* table_;
  bf16 *keys_, *values_;
  float *tokens_, *memory_;
};

}  // namespace

void run_tasks(const OpContext& ctx, const VisionAttentionArgs& a, int64_t multiple,
               void (*task)(const RowTask& t, const TaskScratch& s)) {
  Call(ctx, a, multiple).run(task);
}

}  // namespace quire::vision_attention_detail
