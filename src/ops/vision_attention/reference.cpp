// The oracle of vision_attention: plain loops in float64, nothing rounded on the way.
#include <algorithm>
#include <cmath>

#include "ops/vision_attention/kernels.h"

namespace quire::vision_attention_detail {
namespace {

// Where a span's rotated heads lie, and what one row of one head needs.
struct Scratch {
  double *q, *k;  // [rows of the span][H d]
  double* scores;
  double* sums;
};

void load_row(const Tensor& t, int64_t row, const VisionAttentionArgs& a, const float* turns, double* to) {
  const int64_t heads = t.dim(1), d = t.dim(2);
  for (int64_t i = 0; i < heads * d; ++i) to[i] = static_cast<double>(load_float(t, row * t.stride[0] + i));
  if (a.rotation.positions.empty()) return;
  const Turn turn = turn_of(a.rotation, turns, d / 4, row);
  for (int64_t h = 0; h < heads; ++h) turn_head(to + h * d, turn, d, to + h * d);
}

void attend_row(const VisionAttentionArgs& a, const RowSpan& span, int64_t row, int64_t head, const Scratch& s) {
  const int64_t d = a.q.dim(2), width = a.q.dim(1) * d;
  const double* const q = s.q + row * width + head * d;
  double max = -INFINITY, total = 0.0;
  for (int64_t key = 0; key < span.count; ++key) {
    double dot = 0.0;
    for (int64_t c = 0; c < d; ++c) dot += q[c] * s.k[key * width + head * d + c];
    s.scores[key] = dot * static_cast<double>(a.scale);
    max = std::max(max, s.scores[key]);
  }
  std::fill(s.sums, s.sums + d, 0.0);
  for (int64_t key = 0; key < span.count; ++key) {
    const double p = std::exp(s.scores[key] - max);
    total += p;
    const int64_t at = (span.row + key) * a.v.stride[0] + head * d;
    for (int64_t c = 0; c < d; ++c) s.sums[c] += p * static_cast<double>(load_float(a.v, at + c));
  }
  const int64_t out = (span.row + row) * a.out.stride[0] + head * d;
  for (int64_t c = 0; c < d; ++c) store_float(a.out, out + c, static_cast<float>(s.sums[c] / total));
}

}  // namespace

void fill_turns(const OpContext& ctx, const PlaneRotation& r, int64_t quarter, float* table) {
  ctx.pool.parallel_for(r.side, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t i = 0; i < quarter; ++i) {
        const float angle = static_cast<float>(c) * r.inv_freq.as<float>()[i];
        table[c * quarter * 2 + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
        table[c * quarter * 2 + quarter + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
  });
}

void reference(const OpContext& ctx, const VisionAttentionArgs& a) {
  const int64_t heads = a.q.dim(1), d = a.q.dim(2), width = heads * d, most = a.spans.most_rows;
  Workspace::Scope scope(ctx.workspace);
  float* const turns = scope.take<float>(turns_size(a.rotation, d));
  double* const q = scope.take<double>(most * width);
  double* const k = scope.take<double>(most * width);
  double* const rows = scope.take<double>((most + d) * ctx.pool.size());
  if (ctx.pool.dry()) return;
  if (!a.rotation.positions.empty()) fill_turns(ctx, a.rotation, d / 4, turns);
  for (const RowSpan& span : a.spans) {
    ctx.pool.parallel_for(span.count, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        load_row(a.q, span.row + r, a, turns, q + r * width);
        load_row(a.k, span.row + r, a, turns, k + r * width);
      }
    });
    ctx.pool.parallel_for(span.count * heads, 1, [&](int64_t begin, int64_t end, int thread) {
      double* const mine = rows + thread * (most + d);
      for (int64_t i = begin; i < end; ++i) attend_row(a, span, i / heads, i % heads, {q, k, mine, mine + most});
    });
  }
}

}  // namespace quire::vision_attention_detail
