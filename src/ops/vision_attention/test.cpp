// Conformance of vision_attention: every kernel against sums in float64 with an error bound per element, and bit for
// bit against itself: whatever else is in the batch, in which order, and on how many threads.
#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/vision_attention/vision_attention.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<VisionAttentionArgs> kOnGpu{
    [](Operands& o, VisionAttentionArgs& a) {
      for (Tensor* t : {&a.q, &a.k, &a.v, &a.rotation.positions, &a.rotation.inv_freq, &a.out}) o.tensor(*t);
      o.array(a.spans.data, a.spans.count);
    },
    vision_attention};

enum class Data { kNormal, kSaturated, kEqual };

// An image of rows x columns patches; a strip of one row is any number of them.
struct Image {
  int rows, columns;
  int count() const { return rows * columns; }
};
struct Case {
  std::string name;
  int d, heads;
  std::vector<Image> images;
  bool rotated = true;
  Data data = Data::kNormal;
  PlanePairs pairs = PlanePairs::kAcross;
};

// A batch: before, between and behind the images lies a row that belongs to none, which is NaN, as everything is that
// nobody may read.
struct Batch {
  const Case& c;
  int64_t rows = 1, side = 1;
  std::vector<RowSpan> spans;
  Buffer qkv, positions, inv_freq;

  static int64_t count_rows(const Case& c) {
    int64_t rows = 1;
    for (const Image& image : c.images) rows += image.count() + 1;
    return rows;
  }

  Batch(Suite& suite, const Case& which)
      : c(which),
        rows(count_rows(c)),
        qkv(DType::kBF16, {rows, 3 * c.heads * c.d}),
        positions(DType::kI32, {rows, 2}),
        inv_freq(DType::kF32, {c.d / 4}) {
    Rng rng = suite.rng_for_case(c.name);
    for (int j = 0; j < c.d / 4; ++j) store_float(inv_freq, j, std::pow(1e4f, -4.0f * static_cast<float>(j) / c.d));
    int32_t row = 1;
    for (const Image& image : c.images) {
      spans.push_back({row, image.count()});
      side = std::max<int64_t>({side, image.rows, image.columns});
      for (int i = 0; i < image.count(); ++i, ++row) {
        positions.tensor().row<int32_t>(row)[0] = i / image.columns;
        positions.tensor().row<int32_t>(row)[1] = i % image.columns;
        fill_row(rng, row);
      }
      ++row;
    }
  }
  void fill_row(Rng& rng, int64_t row) {
    const float sd = c.data == Data::kSaturated ? 8.0f : 1.0f;
    const int64_t width = c.heads * c.d;
    for (int64_t i = 0; i < 3 * width; ++i)
      store_float(qkv, row * 3 * width + i, c.data == Data::kEqual && i < 2 * width ? 0.5f : rng.normal(sd));
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(c.d)); }
  RowSpans of(const std::vector<RowSpan>& some) const {
    RowSpans s{some.data(), static_cast<int32_t>(some.size())};
    for (const RowSpan& span : some) {
      s.most_rows = std::max(s.most_rows, span.count);
      s.pairs += int64_t{span.count} * span.count;
    }
    return s;
  }
  static Tensor part(const Tensor& all, int which, int64_t heads, int64_t d) {
    Tensor t = all.cols(which * heads * d, heads * d);
    t.rank = 3;
    t.shape = {all.dim(0), heads, d};
    t.stride = {all.stride[0], d, 1};
    return t;
  }
  VisionAttentionArgs args(const RowSpans& of_spans, const Tensor& out) const {
    VisionAttentionArgs a;
    a.q = part(qkv, 0, c.heads, c.d);
    a.k = part(qkv, 1, c.heads, c.d);
    a.v = part(qkv, 2, c.heads, c.d);
    if (c.rotated) a.rotation = {positions, inv_freq, static_cast<int32_t>(side), c.pairs};
    a.spans = of_spans;
    a.scale = scale();
    a.out = out;
    return a;
  }
  Buffer output() const { return Buffer(DType::kBF16, {rows, c.heads * c.d}); }

  // A head of q (0), k (1) or v (2), rotated by hand; `rounded` to bf16 behind it, as kernels do.
  std::vector<double> head(int which, int64_t row, int64_t head, bool rounded) const {
    const int64_t at = (row * 3 + which) * c.heads * c.d + head * c.d;
    std::vector<double> x;
    for (int64_t i = 0; i < c.d; ++i) x.push_back(static_cast<double>(load_float(qkv, at + i)));
    if (which == 2 || !c.rotated) return x;
    const int32_t* const p = positions.tensor().row<int32_t>(row);
    const int64_t quarter = c.d / 4;
    const bool across = c.pairs == PlanePairs::kAcross;
    for (int64_t j = 0; j < c.d / 2; ++j) {
      const float angle = static_cast<float>(p[j / quarter]) * load_float(inv_freq, j % quarter);
      const auto cos = static_cast<float>(std::cos(static_cast<double>(angle)));
      const auto sin = static_cast<float>(std::sin(static_cast<double>(angle)));
      const int64_t first = across || j < quarter ? j : j + quarter;
      double& a = x[static_cast<size_t>(first)];
      double& b = x[static_cast<size_t>(first + (across ? c.d / 2 : quarter))];
      if (rounded) {
        const auto fa = static_cast<float>(a), fb = static_cast<float>(b);
        a = static_cast<double>(to_float(to_bf16(fa * cos - fb * sin)));
        b = static_cast<double>(to_float(to_bf16(fb * cos + fa * sin)));
      } else {
        const double turned = a * static_cast<double>(cos) - b * static_cast<double>(sin);
        b = b * static_cast<double>(cos) + a * static_cast<double>(sin);
        a = turned;
      }
    }
    return x;
  }
};

struct Expected {
  std::vector<double> values, bounds;
};

// One row of one head. The relative error of a probability comes from its score (d products added in float32, then
// scaled and shifted) and from rounding it to bf16; the result is a weighted mean.
void expect_row(const Batch& b, const RowSpan& span, int64_t row, int64_t head, bool rounded,
                const std::vector<std::vector<double>>& keys, const std::vector<std::vector<double>>& values,
                double* value, double* bound) {
  const auto d = static_cast<size_t>(b.c.d), n = static_cast<size_t>(span.count);
  const auto scale = static_cast<double>(b.scale());
  const std::vector<double> q = b.head(0, row, head, rounded);
  std::vector<double> score(n), error(n);
  double max = -INFINITY;
  for (size_t t = 0; t < n; ++t) {
    double sum = 0, magnitude = 0;
    for (size_t e = 0; e < d; ++e) {
      sum += q[e] * keys[t][e];
      magnitude += std::abs(q[e] * keys[t][e]);
    }
    score[t] = sum * scale;
    error[t] = (static_cast<double>(d) / 2 + 4) * kEpsF32 * magnitude * scale;
    max = std::max(max, score[t]);
  }
  double total = 0, weighted_error = 0;
  std::vector<double> mean(d), spread(d), sized(d);
  for (size_t t = 0; t < n; ++t) {
    const double p = std::exp(score[t] - max);
    const double relative =
        std::expm1(error[t] + (4 * std::abs(score[t] - max) + std::abs(score[t]) + std::abs(max)) * kEpsF32) +
        (8 + static_cast<double>(n) / 128) * kEpsF32 + kEpsBf16;
    total += p;
    weighted_error += p * relative;
    for (size_t e = 0; e < d; ++e) {
      mean[e] += p * values[t][e];
      sized[e] += p * std::abs(values[t][e]);
      spread[e] += p * relative * std::abs(values[t][e]);
    }
  }
  const double sums = (static_cast<double>(n) / 2 + 16) * kEpsF32;
  for (size_t e = 0; e < d; ++e) {
    value[e] = mean[e] / total;
    bound[e] = (spread[e] + sums * sized[e]) / total + std::abs(value[e]) * (weighted_error / total + sums + kEpsBf16) +
               0x1p-120;
  }
}

// Rows of no span stay zero here: they are compared as NaN elsewhere.
Expected expect_batch(Suite& s, const Batch& b, bool rounded) {
  const auto size = static_cast<size_t>(b.rows * b.c.heads * b.c.d);
  Expected e{std::vector<double>(size), std::vector<double>(size)};
  for (const RowSpan& span : b.spans)
    s.context(Device::kCpu).pool.parallel_for(b.c.heads, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t h = begin; h < end; ++h) {
        std::vector<std::vector<double>> keys, values;
        for (int64_t t = span.row; t < span.row + span.count; ++t) {
          keys.push_back(b.head(1, t, h, rounded));
          values.push_back(b.head(2, t, h, rounded));
        }
        for (int64_t t = span.row; t < span.row + span.count; ++t) {
          const auto at = static_cast<size_t>((t * b.c.heads + h) * b.c.d);
          expect_row(b, span, t, h, rounded, keys, values, &e.values[at], &e.bounds[at]);
        }
      }
    });
  return e;
}

// Rows of no span must still be NaN; zeros stand there in what comes back.
Buffer check_padding(Suite& s, std::string_view kernel, const Batch& b, const Buffer& out) {
  Buffer cleaned = out;
  std::vector<bool> used(static_cast<size_t>(b.rows));
  for (const RowSpan& span : b.spans)
    for (int i = 0; i < span.count; ++i) used[static_cast<size_t>(span.row + i)] = true;
  const int64_t width = out.tensor().dim(1);
  bool untouched = true;
  for (size_t r = 0; r < used.size(); ++r)
    for (int64_t i = 0; !used[r] && i < width; ++i) {
      const int64_t at = static_cast<int64_t>(r) * width + i;
      untouched &= std::isnan(load_float(cleaned, at));
      store_float(cleaned, at, 0.0f);
    }
  s.expect(kernel, b.c.name, untouched, "rows of no span stay untouched");
  return cleaned;
}

void check_invariance(Suite& s, const Tested<VisionAttentionArgs>& kernel, const Batch& b, const Buffer& base) {
  const auto expect_same = [&](const char* what, const Buffer& got) {
    const int64_t at = first_difference(got, base);
    s.expect(kernel.name, b.c.name, at < 0, fmt::format("{}: bits differ first at element {}", what, at));
  };
  for (const int threads : {1, 3, 5}) {
    Buffer out = b.output();
    kernel.launch(s.context(Device::kCpu, threads), b.args(b.of(b.spans), out));
    expect_same("other threads", out);
  }
  // Each image alone, and beside an empty one.
  Buffer alone = b.output(), beside = b.output();
  for (const RowSpan& span : b.spans) {
    const std::vector<RowSpan> one = {span}, two = {{span.row, 0}, span, {span.row + span.count, 0}};
    kernel.launch(s.context(Device::kCpu), b.args(b.of(one), alone));
    kernel.launch(s.context(Device::kCpu), b.args(b.of(two), beside));
  }
  expect_same("each image alone", alone);
  expect_same("beside empty ones", beside);
  // What the host says of the largest image and coordinate is a bound, no more.
  Buffer roomy = b.output();
  VisionAttentionArgs larger = b.args(b.of(b.spans), roomy);
  larger.spans.most_rows += 100;
  larger.rotation.side += 50;
  kernel.launch(s.context(Device::kCpu), larger);
  expect_same("larger bounds", roomy);
}

void run_case(Suite& s, const Case& c) {
  if (!s.wants_case(c.name)) return;
  const Batch b(s, c);
  const Expected exact = expect_batch(s, b, false), rounded = expect_batch(s, b, true);
  for (const auto& k : s.kernels(kVisionAttentionOp.kernels, kOnGpu)) {
    Buffer out = b.output();
    const VisionAttentionArgs args = b.args(b.of(b.spans), out);
    if (!s.wants(k.name, c.name) || !k.fits(s.machine(), args)) continue;
    k.launch(s.context(Device::kCpu), args);
    const Expected& want = k.name == "reference" ? exact : rounded;
    s.expect_close(k.name, c.name, worst_excess(check_padding(s, k.name, b, out).values(), want.values, want.bounds));
    s.expect_guards(k.name, c.name, {&out, &b.qkv, &b.positions, &b.inv_freq});
    check_invariance(s, k, b, out);
  }
}

}  // namespace

void vision_attention_conformance(Suite& s) {
  const auto add = [&](int d, int heads, std::vector<Image> images, bool rotated = true, Data data = Data::kNormal,
                       PlanePairs pairs = PlanePairs::kAcross) {
    std::string name = fmt::format("d={} H={}{}", d, heads, rotated ? "" : " not rotated");
    if (pairs == PlanePairs::kWithin) name += " by halves";
    if (data != Data::kNormal) name += data == Data::kEqual ? " equal" : " saturated";
    for (const Image& image : images) name += fmt::format(" {}x{}", image.rows, image.columns);
    run_case(s, {name, d, heads, std::move(images), rotated, data, pairs});
  };
  for (const int d : {8, 16, 32, 64, 72, 80, 128}) {
    add(d, 2, {{1, 1}});
    add(d, 3, {{4, 4}, {2, 2}, {5, 7}, {1, 15}, {1, 17}});
    add(d, 1, {{16, 16}, {1, 1}, {16, 17}});
    add(d, 2, {{6, 6}}, false);
    add(d, 3, {{4, 4}, {5, 7}, {1, 17}}, true, Data::kNormal, PlanePairs::kWithin);
  }
  // More keys than are grouped, and than are staged, together; more rows than a task has.
  add(72, 2, {{24, 24}, {3, 2}});
  add(64, 1, {{1, 255}, {1, 257}, {1, 513}});
  add(256, 1, {{8, 5}});
  add(512, 1, {{3, 3}});
  add(72, 2, {});
  add(72, 2, {{0, 0}, {2, 4}, {0, 0}});
  add(72, 2, {{10, 10}}, true, Data::kSaturated);
  add(64, 2, {{18, 18}}, true, Data::kEqual);
  add(72, 16, {{8, 8}});
}

}  // namespace quire::conformance
