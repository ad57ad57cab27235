// The oracles: plain loops, sums in float64, any mix of float32, bf16 and E4M3. Parallel over (row, head), so that
// `--device reference` is usable; every (row, head) is computed alone.
#include <cmath>
#include <type_traits>

#include "ops/attention/kernels.h"
#include "ops/attention/scale.h"

namespace quire::attention {
namespace {

// x[0 .. d) = RMSNorm(x) * weight, weight optional.
void rms_norm(double* x, int64_t d, const Tensor& weight, float eps) {
  if (weight.empty()) return;
  double sum = 0.0;
  for (int64_t i = 0; i < d; ++i) sum += x[i] * x[i];
  const double inv = 1.0 / std::sqrt(sum / static_cast<double>(d) + static_cast<double>(eps));
  for (int64_t i = 0; i < d; ++i) x[i] = x[i] * inv * static_cast<double>(load_float(weight, i));
}

void rotate(double* x, const Rope& rope, TurnBy by) {
  const int half = rope.n_rot / 2;
  for (int j = 0; j < half; ++j) {
    const float angle = static_cast<float>(by.on(rope, j)) * rope.inv_freq.as<float>()[j];
    const double c = std::cos(static_cast<double>(angle)) * static_cast<double>(rope.magnitude);
    const double s = std::sin(static_cast<double>(angle)) * static_cast<double>(rope.magnitude);
    const bool halves = rope.style == Rope::Style::kHalves;
    double& a = x[halves ? j : 2 * j];
    double& b = x[halves ? j + half : 2 * j + 1];
    const double rotated_a = a * c - b * s, rotated_b = a * s + b * c;
    a = rotated_a;
    b = rotated_b;
  }
}

// Calls fn(segment, row, position, head, thread) for every row of every segment and every head.
template <class Fn>
void for_each_row_head(const OpContext& ctx, const SegmentArray& segments, int64_t heads, Fn&& fn) {
  for (const Segment& s : segments) {
    ctx.pool.parallel_for(s.count * heads, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) {
        const auto step = static_cast<int32_t>(i / heads);
        fn(s, s.row + step, s.position + step, i % heads, thread);
      }
    });
  }
}

// Element `at` of a head of a block, which belongs to token t.
template <class Kv>
double element(const Kv* head, int64_t at, int64_t t, int64_t d) {
  const double x = static_cast<double>(to_float(head[at]));
  if constexpr (std::is_same_v<Kv, e4m3>) return x * static_cast<double>(scale_of(head[kBlockTokens * d + t].bits));
  return x;
}

template <class Kv>
double dot_key(const double* q, const Kv* block, int64_t t, int64_t d) {
  double sum = 0.0;
  for (int64_t c = 0; c < d; ++c) sum += q[c] * element(block, key_offset(t, c), t, d);
  return sum;
}

// Writes the d elements of token t; `offset(c)` says where within the head, which begins at element `head`.
template <class Offset>
void store_token(const Tensor& cache, int64_t head, int64_t t, const double* x, int64_t d, Offset&& offset) {
  if (cache.dtype != DType::kF8E4M3) {
    for (int64_t c = 0; c < d; ++c) store_float(cache, head + offset(c), static_cast<float>(x[c]));
    return;
  }
  uint32_t largest = 0;
  for (int64_t c = 0; c < d; ++c)
    largest = std::max(largest, std::bit_cast<uint32_t>(static_cast<float>(x[c])) & 0x7fffffffu);
  const uint32_t scale = choose_scale(largest);
  auto* codes = static_cast<e4m3*>(cache.data) + head;
  for (int64_t c = 0; c < d; ++c) codes[offset(c)] = to_e4m3(static_cast<float>(x[c]) * inverse_scale_of(scale));
  codes[kBlockTokens * d + t].bits = static_cast<uint8_t>(scale);
}

template <class Kv>
void attend(const OpContext& ctx, const PagedAttentionArgs& a) {
  const Heads n = heads_of(a);
  int64_t max_keys = 0;
  for (const Segment& s : a.segments) max_keys = std::max<int64_t>(max_keys, s.position + s.count);

  Workspace::Scope scope(ctx.workspace);
  const int64_t per_thread = max_keys + 2 * n.d;
  double* scratch = scope.take<double>(per_thread * ctx.pool.size());

  for_each_row_head(ctx, a.segments, n.q_heads,
                    [&](const Segment& s, int64_t row, int32_t position, int64_t head, int thread) {
                      double* score = scratch + thread * per_thread;
                      double* q = score + max_keys;
                      double* sum = q + n.d;
                      const int64_t kv_head = head / n.group(), own = position + 1;
                      const int64_t keys = a.ends.empty() ? own : std::max<int64_t>(own, a.ends.as<int32_t>()[row]);
                      const auto block = [&](const Tensor& t, int64_t key) {
                        return static_cast<const Kv*>(t.data) + a.segments.table(s)[key / kBlockTokens] * t.stride[0] +
                               kv_head * t.stride[1];
                      };
                      for (int64_t c = 0; c < n.d; ++c) {
                        q[c] = static_cast<double>(load_float(a.q, row * a.q.stride[0] + head * a.q.stride[1] + c));
                        sum[c] = 0.0;
                      }
                      const int64_t first = a.window > 0 ? std::max<int64_t>(0, own - a.window) : 0;
                      const double sink = a.sinks.empty() ? -INFINITY : static_cast<double>(a.sinks.as<float>()[head]);
                      double max = sink;
                      for (int64_t t = first; t < keys; ++t) {
                        score[t] = dot_key(q, block(a.kv.k, t), t % kBlockTokens, n.d) * static_cast<double>(a.scale);
                        max = std::max(max, score[t]);
                      }
                      double total = a.sinks.empty() ? 0.0 : std::exp(sink - max);
                      for (int64_t t = first; t < keys; ++t) {
                        const double p = std::exp(score[t] - max);
                        const Kv* v = block(a.kv.v, t);
                        const int64_t slot = t % kBlockTokens;
                        total += p;
                        for (int64_t c = 0; c < n.d; ++c)
                          sum[c] += p * element(v, value_offset(slot, c, n.d), slot, n.d);
                      }
                      for (int64_t c = 0; c < n.d; ++c) {
                        double x = sum[c] / total;
                        if (!a.gate.empty()) {
                          const int64_t at = row * a.gate.stride[0] + head * a.gate.stride[1] + c;
                          x /= 1.0 + std::exp(-static_cast<double>(load_float(a.gate, at)));
                        }
                        store_float(a.out, row * a.out.stride[0] + head * n.d + c, static_cast<float>(x));
                      }
                    });
}

}  // namespace

void prepare_reference(const OpContext& ctx, const AttentionPrepareArgs& a) {
  const Heads n = heads_of(a);
  const bool gated = !a.gate.empty();
  Workspace::Scope scope(ctx.workspace);
  double* scratch = scope.take<double>(n.d * ctx.pool.size());

  // Heads are numbered q, then k, then v.
  for_each_row_head(ctx, a.segments, n.q_heads + 2 * written_heads(a),
                    [&](const Segment& s, int64_t row, int32_t position, int64_t head, int thread) {
                      double* x = scratch + thread * n.d;
                      const auto load = [&](const Tensor& from, int64_t column) {
                        for (int64_t c = 0; c < n.d; ++c)
                          x[c] = static_cast<double>(load_float(from, row * from.stride[0] + column + c));
                      };
                      const auto cache_at = [&](const Tensor& t, int64_t kv_head) {
                        return a.segments.table(s)[position / kBlockTokens] * t.stride[0] + kv_head * t.stride[1];
                      };
                      const int64_t slot = position % kBlockTokens;
                      if (head < n.q_heads) {
                        const int64_t column = head * (gated ? 2 * n.d : n.d);
                        load(a.q_proj, column);
                        rms_norm(x, n.d, a.q_norm, a.eps);
                        rotate(x, a.rope, turn_by(a, row, position));
                        for (int64_t c = 0; c < n.d; ++c) {
                          store_float(a.q, row * a.q.stride[0] + head * a.q.stride[1] + c, static_cast<float>(x[c]));
                          if (gated)
                            store_float(a.gate, row * a.gate.stride[0] + head * a.gate.stride[1] + c,
                                        load_float(a.q_proj, row * a.q_proj.stride[0] + column + n.d + c));
                        }
                      } else if (head < n.q_heads + n.kv_heads) {
                        const int64_t kv_head = head - n.q_heads, at = cache_at(a.kv.k, kv_head);
                        load(a.k_proj, kv_head * n.d);
                        rms_norm(x, n.d, a.k_norm, a.eps);
                        rotate(x, a.rope, turn_by(a, row, position));
                        store_token(a.kv.k, at, slot, x, n.d, [&](int64_t c) { return key_offset(slot, c); });
                      } else {
                        const int64_t kv_head = head - n.q_heads - n.kv_heads, at = cache_at(a.kv.v, kv_head);
                        load(a.v_proj, kv_head * n.d);
                        rms_norm(x, n.d, a.v_norm, a.eps);
                        store_token(a.kv.v, at, slot, x, n.d, [&](int64_t c) { return value_offset(slot, c, n.d); });
                      }
                    });
}

void attend_reference(const OpContext& ctx, const PagedAttentionArgs& a) {
  if (a.kv.k.dtype == DType::kBF16) return attend<bf16>(ctx, a);
  if (a.kv.k.dtype == DType::kF8E4M3) return attend<e4m3>(ctx, a);
  attend<float>(ctx, a);
}

}  // namespace quire::attention
