// Conformance of attention_prepare: every kernel against the reference in float32, and bit for bit against
// itself: other chunks, other threads, other places of the blocks.
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/scale.h"
#include "ops/conformance/gpu.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<AttentionPrepareArgs> kOnGpu{
    [](Operands& o, AttentionPrepareArgs& a) {
      for (Tensor* t : {&a.q_proj, &a.k_proj, &a.v_proj, &a.q_norm, &a.k_norm, &a.v_norm, &a.rope.inv_freq, &a.gate,
                        &a.rope.axes, &a.coordinates})
        o.tensor(*t);
      o.kv(a.kv.k, a.q.dim(2), false);
      o.kv(a.kv.v, a.q.dim(2), true);
      o.tensor(a.q);
      o.segments(a.segments);
    },
    attention_prepare,
    [](const AttentionPrepareArgs& a) -> std::string_view {
      return a.kv.k.dtype == DType::kBF16 ? "" : "KV of other types than bf16";
    }};

struct Case {
  std::string name;
  int d, heads, kv_heads, n_rot;
  Rope::Style style = Rope::Style::kHalves;
  bool gate = false, norm = true;
  float magnitude = 1.0f;
  std::vector<std::pair<int, int>> sequences = {{0, 37}, {64, 20}, {1000, 1}, {100001, 1}, {15, 2}};
  float spread = 3.0f;  // of the projections
  DType kv = DType::kBF16;
  bool value_norm = false, keys_as_values = false;
  bool queries_alone = false;  // keys and values are another layer's
  int sections = 0;  // pairs are turned by three coordinates in turn, up to three times so many; 0: by positions
};

// Inputs of a case; the projections are columns of one wide matrix, as a fused GEMM leaves them. Blocks of
// positions before the sequences' rows are not allocated: their table entries all name block 0.
struct Batch {
  Case c;
  SegmentList segments;
  Buffer inv_freq;
  int64_t rows = 1, blocks = 1;
  Buffer wide, q_norm, k_norm, v_norm, axes, coordinates;

  static int64_t count_rows(const Case& c) {
    int64_t n = 1;
    for (const auto& s : c.sequences) n += s.second + 1;
    return n;
  }
  Batch(Suite& suite, const Case& which)
      : c(which),
        inv_freq(DType::kF32, {c.n_rot / 2}),
        rows(count_rows(c)),
        wide(DType::kBF16, {rows, (c.heads * (c.gate ? 2 : 1) + 2 * c.kv_heads) * c.d + 8}),
        q_norm(DType::kF32, {c.d}),
        k_norm(DType::kF32, {c.d}),
        v_norm(DType::kF32, {c.d}),
        axes(DType::kI32, {c.n_rot / 2}),
        coordinates(DType::kI32, {rows, 3}) {
    Rng rng = suite.rng_for_case(c.name);
    wide.fill([&] { return rng.normal(which.spread); });
    q_norm.fill([&] { return 1.0f + rng.normal(0.3f); });
    k_norm.fill([&] { return 1.0f + rng.normal(0.3f); });
    if (c.value_norm) v_norm.fill([&] { return 1.0f + rng.normal(0.3f); });
    for (int j = 0; j < c.n_rot / 2; ++j)
      store_float(inv_freq, j, std::pow(1e4f, -2.0f * static_cast<float>(j) / static_cast<float>(c.n_rot)));
    for (int j = 0; j < c.n_rot / 2; ++j) axes.tensor().as<int32_t>()[j] = j < 3 * c.sections ? j % 3 : 0;
    for (int64_t i = 0; i < 3 * rows; ++i) coordinates.tensor().as<int32_t>()[i] = rng.integer(0, 1 << 17);
    for (const auto& [position, count] : c.sequences) blocks += (position + count + 15) / 16 - position / 16;
    std::vector<int32_t> places = rng.permutation(static_cast<int>(blocks));
    int32_t row = 1;
    size_t next = 1;
    for (const auto& [position, count] : c.sequences) {
      std::vector<int32_t> table(static_cast<size_t>((position + count + 15) / 16), places[0]);
      for (size_t i = static_cast<size_t>(position / 16); i < table.size(); ++i) table[i] = places[next++];
      segments.add({.row = row, .count = count, .position = position}, table);
      row += count + 1;
    }
  }
};

struct Outputs {
  Buffer q, gate, k, v;
  Outputs(const Batch& b, DType type, DType kv)
      : q(type, {b.rows, b.c.heads, b.c.d}), gate(q), k(kv, {b.blocks, b.c.kv_heads, kv_head_elems(kv, b.c.d)}), v(k) {}
};

AttentionPrepareArgs arguments(const Batch& b, const Tensor& wide, const SegmentArray& segments, const Outputs& o) {
  const Case& c = b.c;
  const int64_t q_width = c.heads * c.d * (c.gate ? 2 : 1), kv_width = c.kv_heads * c.d;
  AttentionPrepareArgs a;
  a.q_proj = wide.cols(0, q_width);
  if (!c.queries_alone) {
    a.k_proj = wide.cols(q_width, kv_width);
    a.v_proj = c.keys_as_values ? a.k_proj : wide.cols(q_width + kv_width, kv_width);
  }
  if (c.norm) a.q_norm = b.q_norm;
  if (c.norm && !c.queries_alone) a.k_norm = b.k_norm;
  if (c.value_norm) a.v_norm = b.v_norm;
  a.rope = {c.style, c.n_rot, b.inv_freq, c.magnitude};
  if (c.sections > 0) {
    a.rope.axes = b.axes;
    a.coordinates = b.coordinates;
  }
  a.segments = segments;
  a.q = o.q;
  if (c.gate) a.gate = o.gate;
  a.kv = {o.k, o.v};
  return a;
}

// Elements that the reference left at NaN must still be NaN; the others lie within `relative` of the largest
// magnitude of their head (a rotation mixes two of its elements).
void compare(Suite& s, std::string_view kernel, const Batch& b, const Buffer& got, const Buffer& want, bool exact) {
  std::vector<float> g = got.values(), w = want.values();
  std::vector<double> bound(g.size());
  bool untouched = true;
  float largest = 0;
  for (const float x : w)
    if (!std::isnan(x)) largest = std::max(largest, std::abs(x));
  // Squares are added in at least 16 accumulators; then root, two products, and the rotation.
  const double in_f32 = (b.c.d / 32.0 + 24.0) * kEpsF32 * static_cast<double>(largest);
  for (size_t i = 0; i < g.size(); ++i) {
    if (std::isnan(w[i])) {
      untouched &= std::isnan(g[i]);
      g[i] = w[i] = 0;
    }
    bound[i] = exact ? 0.0 : in_f32 + std::abs(static_cast<double>(w[i])) * kEpsBf16;
  }
  s.expect(kernel, b.c.name, untouched, "padding rows and other positions stay untouched");
  s.expect_close(kernel, b.c.name, worst_excess(g, w, bound));
}

// E4M3: codes are within half a step of what they stand for, the scale brings the token's largest element into a code's
// last octave, and bytes of tokens that the reference left alone are as they were.
void compare_codes(Suite& s, std::string_view kernel, const Batch& b, const Buffer& got, const Buffer& want,
                   bool keys) {
  const int64_t elems = kBlockTokens * b.c.d;
  const auto* codes = got.tensor().as<uint8_t>();
  const auto* numbers = want.tensor().as<float>();
  bool untouched = true, fits = true;
  std::vector<float> g, w;
  std::vector<double> bound;
  for (int64_t head = 0; head < b.blocks * b.c.kv_heads; ++head, codes += elems + kBlockTokens, numbers += elems)
    for (int t = 0; t < kBlockTokens; ++t) {
      const uint32_t scale_byte = codes[elems + t];
      const float scale = attention::scale_of(scale_byte);
      const auto offset = [&](int64_t c) { return keys ? key_offset(t, c) : value_offset(t, c, b.c.d); };
      if (std::isnan(numbers[offset(0)])) {
        for (int64_t c = 0; c < b.c.d; ++c) untouched &= codes[offset(c)] == 0xff;
        untouched &= scale_byte == 0xff;
        continue;
      }
      const auto number = [&](int64_t c) {
        return std::clamp(numbers[offset(c)], -attention::kMostMagnitude, attention::kMostMagnitude);
      };
      double largest = 0;
      for (int64_t c = 0; c < b.c.d; ++c) largest = std::max<double>(largest, std::abs(number(c)));
      for (int64_t c = 0; c < b.c.d; ++c) {
        const double x = number(c), size = std::abs(x);
        g.push_back(to_float(e4m3{codes[offset(c)]}) * scale);
        w.push_back(static_cast<float>(x));
        // The kernel's own error in bf16, then half a unit of the last of four bits, or of the least code.
        bound.push_back(size * (kEpsBf16 + 0x1.02p-4) + 0x1p-10 * static_cast<double>(scale) +
                        (b.c.d / 32.0 + 24.0) * kEpsF32 * largest);
      }
      fits &= largest <= 448.0 * static_cast<double>(scale) * (1 + 2 * kEpsBf16) &&
              (largest >= 224.0 * static_cast<double>(scale) * (1 - 2 * kEpsBf16) || scale_byte == 0);
    }
  s.expect(kernel, b.c.name, untouched, "other positions stay untouched");
  s.expect(kernel, b.c.name, fits, "each token's scale is that of its largest element");
  s.expect_close(kernel, b.c.name, worst_excess(g, w, bound));
}

// Coordinates that are the position three times turn as the position does.
void expect_coordinates_of_text(Suite& s, const Tested<AttentionPrepareArgs>& k, const Batch& b) {
  Outputs by_coordinates(b, DType::kBF16, b.c.kv), by_position(b, DType::kBF16, b.c.kv);
  AttentionPrepareArgs a = arguments(b, b.wide, b.segments, by_coordinates);
  const Buffer text(DType::kI32, {b.rows, 3});
  for (const Segment& segment : SegmentArray(b.segments))
    for (int i = 0; i < 3 * segment.count; ++i)
      text.tensor().as<int32_t>()[3 * segment.row + i] = segment.position + i / 3;
  a.coordinates = text;
  k.launch(s.context(Device::kCpu), a);
  a = arguments(b, b.wide, b.segments, by_position);
  a.coordinates = a.rope.axes = {};
  k.launch(s.context(Device::kCpu), a);
  s.expect_same_bits(k.name, b.c.name, by_coordinates.q, by_position.q);
  s.expect_same_bits(k.name, b.c.name, by_coordinates.k, by_position.k);
}

void run_case(Suite& s, const Case& c) {
  const Batch b(s, c);
  const bool narrow = c.kv == DType::kF8E4M3;
  Outputs want(b, DType::kF32, DType::kF32);
  const Buffer wide32 = b.wide.as(DType::kF32);
  kAttentionPrepareOp.reference().launch(s.context(Device::kReference), arguments(b, wide32, b.segments, want));
  for (const auto& k : s.kernels(kAttentionPrepareOp.kernels, kOnGpu)) {
    Outputs got(b, DType::kBF16, c.kv);
    if (!s.wants(k.name, c.name) || !k.fits(s.machine(), arguments(b, b.wide, b.segments, got))) continue;
    k.launch(s.context(Device::kCpu), arguments(b, b.wide, b.segments, got));
    compare(s, k.name, b, got.q, want.q, false);
    if (narrow) {
      compare_codes(s, k.name, b, got.k, want.k, true);
      compare_codes(s, k.name, b, got.v, want.v, false);
    } else {
      compare(s, k.name, b, got.k, want.k, false);
      compare(s, k.name, b, got.v, want.v, !c.value_norm);
    }
    if (c.gate) compare(s, k.name, b, got.gate, want.gate, true);
    s.expect_guards(k.name, c.name, {&got.q, &got.gate, &got.k, &got.v, &b.wide});
    const auto expect_same = [&](const SegmentArray& segments, int threads) {
      Outputs again(b, DType::kBF16, c.kv);
      k.launch(s.context(Device::kCpu, threads), arguments(b, b.wide, segments, again));
      s.expect_same_bits(k.name, c.name, again.q, got.q);
      s.expect_same_bits(k.name, c.name, again.gate, got.gate);
      s.expect_same_bits(k.name, c.name, again.k, got.k);
      s.expect_same_bits(k.name, c.name, again.v, got.v);
    };
    SegmentList single;
    for (size_t j = 0; j < b.segments.size(); ++j)
      for (int i = 0; i < b.segments[j].count; ++i)
        single.add({.row = b.segments[j].row + i, .count = 1, .position = b.segments[j].position + i},
                   b.segments.blocks(j));
    if (c.sections > 0) expect_coordinates_of_text(s, k, b);
    // Every token its own segment.
    expect_same(single, 2);
    expect_same(b.segments, 5);
  }
}

}  // namespace

void attention_prepare_conformance(Suite& s) {
  const auto interleaved = Rope::Style::kInterleaved;
  for (const Case& c : {
           Case{.name = "llama", .d = 64, .heads = 8, .kv_heads = 2, .n_rot = 64, .style = interleaved, .norm = false},
           Case{.name = "qwen2", .d = 128, .heads = 6, .kv_heads = 1, .n_rot = 128, .norm = false},
           Case{.name = "qwen3", .d = 128, .heads = 4, .kv_heads = 2, .n_rot = 128},
           Case{.name = "qwen35", .d = 256, .heads = 8, .kv_heads = 1, .n_rot = 64, .gate = true},
           Case{.name = "yarn", .d = 32, .heads = 4, .kv_heads = 4, .n_rot = 32, .magnitude = 1.3f},
           Case{.name = "no rotation", .d = 48, .heads = 2, .kv_heads = 2, .n_rot = 0},
           Case{.name = "odd pairs",
           .d = 22,
           .heads = 2,
           .kv_heads = 1,
           .n_rot = 10,
           .style = interleaved,
           .gate = true},
           Case{.name = "odd halves", .d = 46, .heads = 3, .kv_heads = 1, .n_rot = 14, .gate = true},
           Case{.name = "tiny", .d = 2, .heads = 1, .kv_heads = 1, .n_rot = 2},
           Case{.name = "wide", .d = 512, .heads = 2, .kv_heads = 2, .n_rot = 512},
           Case{.name = "empty", .d = 64, .heads = 2, .kv_heads = 2, .n_rot = 64, .sequences = {{64, 0}}},
           Case{.name = "huge", .d = 64, .heads = 2, .kv_heads = 2, .n_rot = 64, .spread = 3e4f},
           Case{.name = "small", .d = 64, .heads = 2, .kv_heads = 2, .n_rot = 64, .norm = false, .spread = 1e-3f},
           Case{.name = "norms of values", .d = 48, .heads = 4, .kv_heads = 2, .n_rot = 24, .value_norm = true},
           Case{.name = "gemma4 window", .d = 256, .heads = 4, .kv_heads = 2, .n_rot = 256, .value_norm = true},
           Case{.name = "gemma4 keys as values",
           .d = 512,
           .heads = 4,
           .kv_heads = 1,
           .n_rot = 512,
           .value_norm = true,
           .keys_as_values = true},
           Case{.name = "queries alone", .d = 48, .heads = 4, .kv_heads = 2, .n_rot = 24, .queries_alone = true},
           Case{.name = "queries alone gated",
           .d = 128,
           .heads = 4,
           .kv_heads = 1,
           .n_rot = 64,
           .gate = true,
           .queries_alone = true},
           Case{.name = "gemma4 shared", .d = 512, .heads = 8, .kv_heads = 1, .n_rot = 512, .queries_alone = true},
           Case{.name = "images", .d = 256, .heads = 4, .kv_heads = 1, .n_rot = 64, .gate = true, .sections = 10},
           Case{.name = "images of odd pairs", .d = 46, .heads = 3, .kv_heads = 1, .n_rot = 14, .sections = 2},
           Case{.name = "zeros", .d = 64, .heads = 2, .kv_heads = 2, .n_rot = 64, .spread = 0.0f},
       }) {
    if (s.wants_case(c.name)) run_case(s, c);
    Case narrow = c;
    narrow.name += " e4m3";
    narrow.kv = DType::kF8E4M3;
    if (s.wants_case(narrow.name)) run_case(s, narrow);
  }
}

}  // namespace quire::conformance
