// Conformance of paged_attention: every kernel against sums in float64 with an error bound per element, and
// bit for bit against itself: whatever the chunks, the other rows, the threads, the places of the blocks.
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/scale.h"
#include "ops/conformance/gpu.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<PagedAttentionArgs> kOnGpu{[](Operands& o, PagedAttentionArgs& a) {
                                             o.kv(a.kv.k, a.q.dim(2), false);
                                             o.kv(a.kv.v, a.q.dim(2), true);
                                             for (Tensor* t : {&a.q, &a.gate, &a.out}) o.tensor(*t);
                                             o.tensor(a.sinks);
                                             o.tensor(a.ends);
                                             o.segments(a.segments);
                                           },
                                           paged_attention,
                                           [](const PagedAttentionArgs& a) -> std::string_view {
                                             return a.kv.k.dtype == DType::kBF16 ? "" : "KV of other types than bf16";
                                           }};

enum class Data { kNormal, kSaturated, kEqual };
struct Sequence {
  int position, count;
};
// Positions [begin, end) of a sequence, whose rows see each other in both directions.
struct Picture {
  size_t sequence;
  int begin, end;
};
struct Case {
  std::string name;
  int d, heads, kv_heads;
  std::vector<Sequence> sequences;
  bool gate = false;
  Data data = Data::kNormal;
  DType kv = DType::kBF16;
  bool decode = false;  // generated tokens, which a GPU's kernels take otherwise than prompts
  int64_t window = 0;
  bool sinks = false;
  std::vector<Picture> pictures = {};  // by sequence, then in order

  // Where the keys that a position attends to end.
  int end_of(size_t sequence, int position) const {
    for (const Picture& p : pictures)
      if (p.sequence == sequence && position >= p.begin && position < p.end) return p.end;
    return position + 1;
  }
  // Whether a segment may begin there.
  bool may_cut(size_t sequence, int position) const { return end_of(sequence, position - 1) <= position; }
};

// A batch and the cache that it reads. The values depend on the case only; where rows and blocks lie depends
// on `layout`, and everything between (padding rows, unused blocks, slots past the end) is NaN.
struct Batch {
  Case c;
  SegmentList segments;
  Buffer q, gate, k, v, sinks, ends;

  static int64_t count_rows(const Case& c) {
    int64_t rows = 1;
    for (const Sequence& s : c.sequences) rows += s.count + 1;
    return rows;
  }
  static int count_blocks(const Case& c) {
    int blocks = 3;
    for (const Sequence& s : c.sequences) blocks += (s.position + s.count + kBlockTokens - 1) / kBlockTokens;
    return blocks;
  }
  enum class Layout { kContiguous, kShuffled };

  Batch(Suite& suite, const Case& which, Layout layout)
      : c(which),
        q(DType::kBF16, {count_rows(c), c.heads, c.d}),
        gate(DType::kBF16, {count_rows(c), c.heads, c.d}),
        k(c.kv, {count_blocks(c), c.kv_heads, kv_head_elems(c.kv, c.d)}),
        v(c.kv, {count_blocks(c), c.kv_heads, kv_head_elems(c.kv, c.d)}),
        sinks(DType::kF32, {c.heads}),
        ends(DType::kI32, {count_rows(c)}) {
    Rng rng = suite.rng_for_case(c.name), places = suite.rng_for_case(c.name + " places");
    std::vector<int32_t> order = places.permutation(count_blocks(c));
    if (layout == Layout::kContiguous) std::sort(order.begin(), order.end());
    size_t next_block = 0;
    int32_t row = 1;
    for (const Sequence& s : c.sequences) {
      std::vector<int32_t> table;
      for (int t = 0; t < s.position + s.count; t += kBlockTokens) table.push_back(order[next_block++]);
      const Segment segment{.row = row, .count = s.count, .position = s.position};
      c.decode ? segments.add_decode(segment, table) : segments.add(segment, table);
      row += s.count + 1;
    }
    for (size_t i = 0; i < segments.size(); ++i) fill_sequence(rng, i);
    // From next to nothing to more than all keys together.
    if (c.sinks) sinks.fill([&] { return rng.uniform(-4.0f, 8.0f); });
    std::fill_n(ends.tensor().as<int32_t>(), ends.tensor().elems(), 0);
    for (size_t i = 0; i < segments.size(); ++i)
      for (int j = 0; j < segments[i].count; ++j) {
        const int own = segments[i].position + j + 1, end = c.end_of(i, own - 1);
        // Rows of no picture have any number up to their own end.
        ends.tensor().as<int32_t>()[segments[i].row + j] = end > own ? end : own - own % 3 * (own / 2);
      }
  }

  void fill_sequence(Rng& rng, size_t sequence) {
    const Segment& s = segments[sequence];
    const std::span<const int32_t> blocks = segments.blocks(sequence);
    // kSaturated: logits of hundreds, so that one key takes everything and another row's maximum moves often.
    const float sd = c.data == Data::kSaturated ? 8.0f : 1.0f;
    const float same = rng.normal();
    std::vector<float> key(static_cast<size_t>(c.d)), value(key);
    for (int t = 0; t < s.position + s.count; ++t)
      for (int h = 0; h < c.kv_heads; ++h) {
        // Of wide ranges where tokens have scales of their own.
        const float size = c.kv == DType::kF8E4M3 ? std::exp2(rng.uniform(-12.0f, 3.0f)) : 1.0f;
        for (size_t e = 0; e < key.size(); ++e) {
          key[e] = c.data == Data::kEqual ? same : rng.normal(sd);
          value[e] = rng.normal() * size;
        }
        store(k, blocks, t, h, key);
        store(v, blocks, t, h, value);
      }
    for (int64_t i = int64_t{s.row} * c.heads * c.d; i < int64_t{s.row + s.count} * c.heads * c.d; ++i) {
      store_float(q, i, rng.normal(sd));
      store_float(gate, i, rng.integer(0, 15) == 0 ? rng.uniform(-100.0f, 100.0f) : rng.normal(2.0f));
    }
  }
  int64_t cache_head(std::span<const int32_t> blocks, int64_t t, int64_t kv_head) const {
    return (blocks[static_cast<size_t>(t / kBlockTokens)] * c.kv_heads + kv_head) * kv_head_elems(c.kv, c.d);
  }
  int64_t offset(const Buffer& of, int64_t t, int64_t e) const {
    return &of == &k ? key_offset(t % kBlockTokens, e) : value_offset(t % kBlockTokens, e, c.d);
  }
  // Keys or values of token t, rounded as the cache keeps them; NaN among them makes an E4M3 head NaN.
  void store(Buffer& to, std::span<const int32_t> blocks, int64_t t, int64_t kv_head, std::span<const float> x) {
    const int64_t head = cache_head(blocks, t, kv_head);
    if (c.kv != DType::kF8E4M3) {
      for (size_t e = 0; e < x.size(); ++e) store_float(to, head + offset(to, t, static_cast<int64_t>(e)), x[e]);
      return;
    }
    auto* const codes = to.tensor().as<uint8_t>() + head;
    uint32_t largest = 0;
    for (const float number : x) largest = std::max(largest, std::bit_cast<uint32_t>(number) & 0x7fffffffu);
    const uint32_t scale = attention::choose_scale(largest);
    for (size_t e = 0; e < x.size(); ++e)
      codes[offset(to, t, static_cast<int64_t>(e))] = to_e4m3(x[e] * attention::inverse_scale_of(scale)).bits;
    codes[kBlockTokens * c.d + t % kBlockTokens] = static_cast<uint8_t>(scale);
  }
  // The same as numbers.
  void load(const Buffer& from, std::span<const int32_t> blocks, int64_t t, int64_t kv_head, std::span<float> x) const {
    const int64_t head = cache_head(blocks, t, kv_head);
    for (size_t e = 0; e < x.size(); ++e) {
      const int64_t at = offset(from, t, static_cast<int64_t>(e));
      if (c.kv != DType::kF8E4M3) {
        x[e] = load_float(from, head + at);
        continue;
      }
      const auto* const codes = from.tensor().as<uint8_t>() + head;
      x[e] = to_float(e4m3{codes[at]}) * attention::scale_of(codes[kBlockTokens * c.d + t % kBlockTokens]);
    }
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.d)); }
  PagedAttentionArgs args(const SegmentArray& of, const Tensor& out) const {
    return {q,
            c.gate ? gate.tensor() : Tensor{},
            {k, v},
            of,
            scale(),
            out,
            c.window,
            c.sinks ? sinks.tensor() : Tensor{},
            c.pictures.empty() ? Tensor{} : ends.tensor()};
  }
  Buffer output() const { return Buffer(DType::kBF16, {q.tensor().dim(0), c.heads * c.d}); }
};

struct Expected {
  std::vector<double> values, bounds;
};

// One query row of one head, in float64. The relative error of a probability comes from its score (d products
// added in float32, then scaled and shifted) and from rounding it to bf16; the result is a weighted mean.
void expect_row(const Batch& b, size_t sequence, int step, int head, double* value, double* bound) {
  const Segment& s = b.segments[sequence];
  const std::span<const int32_t> blocks = b.segments.blocks(sequence);
  const int d = b.c.d, own = s.position + step + 1, keys = b.c.end_of(sequence, own - 1);
  const int kv_head = head / (b.c.heads / b.c.kv_heads);
  const int64_t q_at = (int64_t{s.row + step} * b.c.heads + head) * d;
  std::vector<float> q(static_cast<size_t>(d));
  for (int e = 0; e < d; ++e) q[static_cast<size_t>(e)] = load_float(b.q, q_at + e);
  std::vector<double> score(static_cast<size_t>(keys)), error(static_cast<size_t>(keys));
  const int first = b.c.window > 0 ? std::max(0, own - static_cast<int>(b.c.window)) : 0;
  const double sink = b.c.sinks ? static_cast<double>(load_float(b.sinks, head)) : -INFINITY;
  double max = sink;
  std::vector<float> row(static_cast<size_t>(d));
  for (int t = first; t < keys; ++t) {
    b.load(b.k, blocks, t, kv_head, row);
    double sum = 0, magnitude = 0;
    for (int e = 0; e < d; ++e) {
      const double x = q[static_cast<size_t>(e)] * row[static_cast<size_t>(e)];
      sum += x;
      magnitude += std::abs(x);
    }
    score[static_cast<size_t>(t)] = sum * b.scale();
    error[static_cast<size_t>(t)] = (d / 2 + 4) * kEpsF32 * magnitude * b.scale();
    max = std::max(max, sum * b.scale());
  }
  double total = b.c.sinks ? std::exp(sink - max) : 0, weighted_error = 0;
  if (b.c.sinks) weighted_error = total * (4 * std::abs(sink - max) + std::abs(sink) + std::abs(max) + 8) * kEpsF32;
  std::vector<double> mean(static_cast<size_t>(d)), spread(static_cast<size_t>(d)), sized(static_cast<size_t>(d));
  for (int t = first; t < keys; ++t) {
    const auto i = static_cast<size_t>(t);
    const double p = std::exp(score[i] - max);
    // Score; its scaling and distance from the maximum (also when a later group's maximum rescales it); the
    // exponential itself; rounding to bf16.
    const double relative =
        std::expm1(error[i] + (4 * std::abs(score[i] - max) + std::abs(score[i]) + std::abs(max)) * kEpsF32) +
        (8 + keys / 128) * kEpsF32 + kEpsBf16;
    total += p;
    weighted_error += p * relative;
    b.load(b.v, blocks, t, kv_head, row);
    for (int e = 0; e < d; ++e) {
      const double x = row[static_cast<size_t>(e)];
      mean[static_cast<size_t>(e)] += p * x;
      sized[static_cast<size_t>(e)] += p * std::abs(x);
      spread[static_cast<size_t>(e)] += p * relative * std::abs(x);
    }
  }
  const double sums = (keys / 2 + 16) * kEpsF32;  // float32 accumulation of p v and of p
  for (int e = 0; e < d; ++e) {
    const auto i = static_cast<size_t>(e);
    double x = mean[i] / total;
    double err = (spread[i] + sums * sized[i]) / total + std::abs(x) * (weighted_error / total + sums);
    if (b.c.gate) {
      const double g = load_float(b.gate, q_at + e), sigmoid = 1.0 / (1.0 + std::exp(-g));
      x *= sigmoid;
      err = err * sigmoid + std::abs(x) * (std::abs(g) + 8) * kEpsF32;
    }
    value[e] = x;
    bound[e] = err + std::abs(x) * kEpsBf16 + 0x1p-120;
  }
}

// Rows of no segment are expected as they started: NaN, which expect_batch leaves out of the comparison.
Expected expect_batch(Suite& s, const Batch& b) {
  const auto size = static_cast<size_t>(b.q.tensor().elems());
  Expected e{std::vector<double>(size), std::vector<double>(size)};
  for (size_t j = 0; j < b.segments.size(); ++j) {
    const Segment& seg = b.segments[j];
    s.context(Device::kCpu).pool.parallel_for(int64_t{seg.count} * b.c.heads, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<size_t>(((seg.row + i / b.c.heads) * b.c.heads + i % b.c.heads) * b.c.d);
        expect_row(b, j, static_cast<int>(i / b.c.heads), static_cast<int>(i % b.c.heads), &e.values[at],
                   &e.bounds[at]);
      }
    });
  }
  return e;
}

// Padding rows must still be NaN; returns the output with zeros there, so that the rest can be compared.
Buffer check_padding(Suite& s, std::string_view kernel, const Batch& b, const Buffer& out) {
  Buffer cleaned = out;
  std::vector<bool> used(static_cast<size_t>(out.tensor().dim(0)));
  for (const Segment& seg : SegmentArray(b.segments))
    for (int i = 0; i < seg.count; ++i) used[static_cast<size_t>(seg.row + i)] = true;
  const int64_t width = out.tensor().dim(1);
  bool untouched = true;
  for (size_t r = 0; r < used.size(); ++r)
    for (int64_t i = 0; !used[r] && i < width; ++i) {
      const int64_t at = static_cast<int64_t>(r) * width + i;
      untouched &= std::isnan(load_float(cleaned, at));
      store_float(cleaned, at, 0.0f);
    }
  s.expect(kernel, b.c.name, untouched, "rows of no segment stay untouched");
  return cleaned;
}

// The same rows cut into other segments; `cut(position)` says whether one begins there, if it may.
template <class Cut>
SegmentList recut(const Batch& b, Cut&& cut) {
  const SegmentList& segments = b.segments;
  SegmentList pieces;
  for (size_t j = 0; j < segments.size(); ++j)
    for (int i = 0; i < segments[j].count; ++i) {
      if (i == 0 || (cut(segments[j].position + i) && b.c.may_cut(j, segments[j].position + i))) {
        const Segment piece{.row = segments[j].row + i, .position = segments[j].position + i};
        SegmentArray(segments).decodes > 0 ? pieces.add_decode(piece, segments.blocks(j))
                                           : pieces.add(piece, segments.blocks(j));
      }
      ++pieces[pieces.size() - 1].count;
    }
  return pieces;
}

void check_invariance(Suite& s, const Tested<PagedAttentionArgs>& kernel, const Batch& b, const Buffer& base) {
  const auto run = [&](const Batch& batch, const SegmentArray& segments, int threads = 0) {
    Buffer out = batch.output();
    kernel.launch(s.context(Device::kCpu, threads), batch.args(segments, out));
    return out;
  };
  const auto expect_same = [&](const char* what, const Buffer& got) {
    const int64_t at = first_difference(got, base);
    s.expect(kernel.name, b.c.name, at < 0, fmt::format("{}: bits differ first at element {}", what, at));
  };
  Rng rng = s.rng_for_case(b.c.name + " cuts");
  expect_same("one token at a time", run(b, recut(b, [](int) { return true; })));
  expect_same("chunks of 64", run(b, recut(b, [](int p) { return p % 64 == 0; })));
  expect_same("chunks of 128", run(b, recut(b, [](int p) { return p % 128 == 0; })));
  expect_same("cut anywhere", run(b, recut(b, [&](int) { return rng.integer(0, 20) == 0; })));
  expect_same("1 thread", run(b, b.segments, 1));
  expect_same("5 threads", run(b, b.segments, 5));
  const Batch contiguous(s, b.c, Batch::Layout::kContiguous);
  expect_same("contiguous blocks", run(contiguous, contiguous.segments));

  // Segments alone, in reverse order, in one output.
  Buffer alone = b.output();
  for (size_t i = b.segments.size(); i-- > 0;) {
    SegmentList one;
    b.c.decode ? one.add_decode(b.segments[i], b.segments.blocks(i)) : one.add(b.segments[i], b.segments.blocks(i));
    kernel.launch(s.context(Device::kCpu), b.args(one, alone));
  }
  expect_same("each segment alone", alone);

  // Each segment's first part, with everything that its rows must not see turned to NaN: the rest of the
  // queries and the rest of the cache.
  Batch poisoned = b;
  const std::vector<float> nothing(static_cast<size_t>(b.c.d), NAN);
  SegmentList part = b.segments;
  for (size_t i = 0; i < part.size(); ++i) {
    part[i].count = (part[i].count + 1) / 2;
    while (part[i].count > 0 && !b.c.may_cut(i, part[i].position + part[i].count)) --part[i].count;
    const int end = b.segments[i].position + b.segments[i].count;
    for (int t = part[i].position + part[i].count; t < end; ++t) {
      for (int64_t e = 0; e < b.c.heads * b.c.d; ++e)
        store_float(poisoned.q, int64_t{part[i].row + t - part[i].position} * b.c.heads * b.c.d + e, NAN);
      for (int h = 0; h < b.c.kv_heads; ++h) {
        poisoned.store(poisoned.k, part.blocks(i), t, h, nothing);
        poisoned.store(poisoned.v, part.blocks(i), t, h, nothing);
      }
    }
  }
  const Buffer got = run(poisoned, part);
  int64_t differs = -1;
  for (const Segment& p : SegmentArray(part))
    if (differs < 0 && p.count > 0)
      differs = first_difference(got.tensor().rows(p.row, p.count), base.tensor().rows(p.row, p.count));
  s.expect(kernel.name, b.c.name, differs < 0,
           fmt::format("NaN beyond the end: bits differ first at element {} of a segment", differs));
}

void run_case(Suite& s, const Case& c) {
  const Batch b(s, c, Batch::Layout::kShuffled);
  const Expected want = expect_batch(s, b);
  for (const auto& k : s.kernels(kPagedAttentionOp.kernels, kOnGpu)) {
    const bool reference = k.name == "reference";
    Buffer out = b.output();
    if (!s.wants(k.name, c.name) || !k.fits(s.machine(), b.args(b.segments, out))) continue;
    k.launch(s.context(Device::kCpu), b.args(b.segments, out));
    const Buffer cleaned = check_padding(s, k.name, b, out);
    s.expect_close(k.name, c.name, worst_excess(cleaned.values(), want.values, want.bounds));
    s.expect_guards(k.name, c.name, {&out, &b.q, &b.gate, &b.k, &b.v});
    if (!reference) check_invariance(s, k, b, out);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, int d, int heads, int kv_heads, std::vector<Sequence> sequences,
                       bool gate = false, Data data = Data::kNormal, DType kv = DType::kBF16, bool decode = false) {
    all.push_back({std::move(name), d, heads, kv_heads, std::move(sequences), gate, data, kv, decode, 0, false});
  };
  for (const int d : {32, 48, 64, 128, 256})
    for (const int ratio : {1, 2, 4, 6, 8})
      add(fmt::format("d{} ratio{}", d, ratio), d, 2 * ratio, 2, {{0, 17}, {63, 1}, {64, 33}, {130, 1}},
          ratio % 4 == 0);
  for (const int d : {2, 6, 20, 80, 512}) add(fmt::format("odd d{}", d), d, 4, 2, {{0, 37}, {150, 1}}, true);
  for (const int count : {1, 2, 15, 16, 17, 63, 64, 65, 100, 300})
    for (const int position : {0, 64, 128})
      add(fmt::format("chunk{} at{}", count, position), 64, 4, 2, {{position, count}}, position == 64);
  add("long", 128, 8, 2, {{960, 64}});
  add("long decode", 256, 8, 1, {{1000, 1}, {511, 1}, {512, 1}, {0, 1}}, true);
  add("ragged", 128, 6, 1, {{0, 70}, {0, 0}, {127, 1}, {128, 1}, {129, 1}, {64, 64}, {300, 5}, {15, 1}});
  // Heads of 512: over the edges of blocks of 32 and 64 rows and of tiles of 32 keys, with 1, 3 and 16 rows a token.
  for (const int ratio : {1, 3, 16})
    add(fmt::format("d512 ratio{}", ratio), 512, 2 * ratio, 2,
        {{0, 17}, {31, 1}, {32, 33}, {0, 0}, {63, 3}, {64, 65}, {200, 1}, {0, 100}}, ratio == 3);
  add("empty", 64, 4, 2, {});
  add("no rows", 64, 4, 2, {{64, 0}});
  for (const int d : {48, 64, 256, 512}) {
    add(fmt::format("saturated d{}", d), d, 4, 2, {{0, 150}, {400, 3}}, false, Data::kSaturated);
    add(fmt::format("equal logits d{}", d), d, 4, 2, {{0, 150}, {400, 3}}, true, Data::kEqual);
  }
  constexpr DType kE4m3 = DType::kF8E4M3;
  for (const int d : {2, 6, 20, 32, 48, 64, 128, 256, 512})
    add(fmt::format("e4m3 d{}", d), d, 8, 2, {{0, 37}, {63, 1}, {64, 33}, {130, 1}, {511, 1}, {512, 2}}, d % 64 == 0,
        Data::kNormal, kE4m3);
  for (const int count : {1, 15, 17, 64, 300})
    add(fmt::format("e4m3 chunk{}", count), 64, 4, 2, {{64, count}}, true, Data::kNormal, kE4m3);
  add("e4m3 long", 128, 8, 2, {{960, 64}, {1100, 1}}, false, Data::kNormal, kE4m3);
  add("e4m3 ragged", 128, 6, 1, {{0, 70}, {0, 0}, {127, 1}, {129, 1}, {300, 5}, {15, 1}}, false, Data::kNormal, kE4m3);
  add("e4m3 saturated", 64, 4, 2, {{0, 150}, {400, 3}}, false, Data::kSaturated, kE4m3);
  // Windows shorter than a block, a group of keys and a chunk; over their edges; and longer than all.
  for (const int64_t window : {1, 5, 16, 64, 128, 255, 256, 257, 512, 4096})
    for (const bool sinks : {false, true}) {
      add(fmt::format("window{}{}", window, sinks ? " sinks" : ""), 64, 8, 2,
          {{0, 37}, {63, 1}, {250, 20}, {511, 1}, {512, 3}, {0, 300}, {900, 150}}, window == 64);
      all.back().window = window, all.back().sinks = sinks;
    }
  for (const int d : {20, 128, 256, 512})
    for (const DType kv : {DType::kBF16, kE4m3}) {
      add(fmt::format("{} window100 d{}", dtype_name(kv), d), d, 6, 2, {{0, 280}, {700, 40}, {1030, 1}}, d == 128,
          Data::kNormal, kv);
      all.back().window = 100, all.back().sinks = d != 20;
    }
  for (const Data data : {Data::kSaturated, Data::kEqual}) {
    add(fmt::format("window and sinks, {}", data == Data::kEqual ? "equal logits" : "saturated"), 64, 4, 2,
        {{0, 150}, {400, 3}}, false, data);
    all.back().window = 40, all.back().sinks = true;
  }
  add("sinks", 64, 8, 2, {{0, 70}, {300, 1}, {255, 3}}, true);
  all.back().sinks = true;
  // Pictures: over the edges of blocks, tiles and groups of keys, side by side, alone in a sequence, begun before it
  // (found in a cache), as wide as the window, wider than it; beside sequences without any.
  const auto add_pictures = [&](std::string name, int d, DType kv, int64_t window, bool gate = false) {
    add(std::move(name), d, 8, 2, {{0, 40}, {0, 300}, {64, 5}, {250, 270}, {0, 16}, {128, 70}, {900, 140}}, gate,
        Data::kNormal, kv);
    all.back().window = window;
    all.back().pictures = {{1, 3, 29},    {1, 30, 46}, {1, 46, 62},   {1, 63, 65},   {1, 100, 300},  {3, 250, 290},
                           {3, 500, 520}, {4, 0, 16},  {5, 120, 150}, {5, 151, 152}, {6, 900, 1000}, {6, 1023, 1030}};
  };
  for (const int64_t window : {0, 40, 100, 200, 256, 512})
    add_pictures(fmt::format("pictures window{}", window), 64, DType::kBF16, window);
  for (const int d : {20, 128, 256, 512})
    for (const DType kv : {DType::kBF16, kE4m3})
      add_pictures(fmt::format("{} pictures d{}", dtype_name(kv), d), d, kv, d == 128 ? 0 : 200, d == 256);
  for (const int d : {64, 128, 256, 512}) {
    for (const int ratio : {1, 4, 6, 12})
      add(fmt::format("generated d{} ratio{}", d, ratio), d, 2 * ratio, 2,
          {{0, 1}, {15, 1}, {16, 3}, {255, 2}, {0, 0}, {256, 1}, {511, 4}, {700, 1}}, ratio % 4 == 0, Data::kNormal,
          DType::kBF16, true);
    add(fmt::format("generated saturated d{}", d), d, 4, 2, {{400, 3}, {30, 1}}, false, Data::kSaturated, DType::kBF16,
        true);
    add(fmt::format("generated equal logits d{}", d), d, 4, 2, {{400, 3}, {30, 1}}, true, Data::kEqual, DType::kBF16,
        true);
  }
  return all;
}

}  // namespace

void paged_attention_conformance(Suite& s) {
  for (const Case& c : cases())
    if (s.wants_case(c.name)) run_case(s, c);
}

}  // namespace quire::conformance
