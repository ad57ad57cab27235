#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "ops/conformance/gpu.h"
#include "ops/gemm/bounds.h"
#include "ops/gemm/repack.h"
#include "ops/linear/linear.h"
#include "quant/format_table.h"

namespace quire::conformance {
namespace {

struct LinearCase {
  std::vector<DType> types;  // one part each
  int64_t tokens = 1;
  int64_t cols = 32;
  int64_t rows = 16;  // of the first part; each further part has 5 more
  DType x = DType::kBF16;
  DType y = DType::kF32;
  bool bias = false;
  bool add = false;
  int64_t gap = 0;  // between the rows of x and of y
  TokenRounding rounded = TokenRounding::kNone;

  std::string name() const {
    std::string s;
    for (DType t : types) s += fmt::format("{}{}", s.empty() ? "" : "+", dtype_name(t));
    return fmt::format("{} T={} N={} K={} x={} y={}{}{}{}{}", s, tokens, rows, cols, dtype_name(x), dtype_name(y),
                       bias ? " bias" : "", add ? " add" : "", gap > 0 ? " strided" : "", case_note(rounded));
  }
};

constexpr OnGpu<LinearArgs> kOnGpu{[](Operands& o, LinearArgs& a) {
                                     o.tensor(a.x);
                                     for (LinearPart& p : a.parts) {
                                       o.matrix(p.w);
                                       o.tensor(p.bias);
                                       o.tensor(p.y);
                                     }
                                   },
                                   linear};

// Runs with copies of weights whose own bytes are destroyed meanwhile.
void run_repacked(Suite& s, std::span<RandomWeight> weights, const std::function<void(const OpContext&)>& run) {
  std::vector<Weight> views;
  for (const RandomWeight& w : weights) views.push_back(w.weight);
  const auto copies = s.repack(views);
  std::vector<std::vector<std::byte>> saved;
  for (RandomWeight& w : weights) {
    saved.push_back(w.bytes);
    std::fill(w.bytes.begin(), w.bytes.end(), std::byte{0x5a});
  }
  for (RandomWeight& w : weights) w.weight = copies->find(w.weight);
  run(s.context(Device::kCpu));
  for (RandomWeight& w : weights) w.weight.repacked = nullptr;
  for (size_t i = 0; i < saved.size(); ++i)  // in place: the views point there
    std::copy(saved[i].begin(), saved[i].end(), weights[i].bytes.begin());
}

void linear_case(Suite& s, const LinearCase& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  std::vector<RandomWeight> weights;
  std::vector<Buffer> biases;
  int64_t width = c.gap;
  for (size_t i = 0; i < c.types.size(); ++i) {
    const int64_t rows = c.rows + 5 * static_cast<int64_t>(i);
    weights.push_back(random_weight(rng, c.types[i], rows, c.cols));
    biases.emplace_back(DType::kF32, std::initializer_list<int64_t>{rows});
    biases.back().fill([&] { return rng.normal(); });
    width += rows;
  }
  Buffer x(c.x, {c.tokens, c.cols + c.gap}), y(c.y, {c.tokens, width});
  x.fill([&] { return rng.normal(); });
  if (c.add) y.fill([&] { return rng.normal(); });

  // The parts are neighbours in the rows of one wide y; the gap behind them must stay as it is.
  const auto arguments = [&](const Buffer& in, const Buffer& out) -> LinearArgs {
    std::vector<LinearPart> parts;
    int64_t at = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const Weight& w = weights[i].weight;
      parts.push_back({w, c.bias ? biases[i].tensor() : Tensor{}, out.tensor().cols(at, w.rows), c.add});
      at += w.rows;
    }
    const int64_t count = in.tensor().dim(0);
    LinearArgs a{in.tensor().cols(0, c.cols), std::span<const LinearPart>(parts)};
    if (c.rounded == TokenRounding::kNone)
      a.latency_rows = count;
    else
      a.rounded = {count, c.rounded};
    return a;
  };
  const auto run = [&](const Tested<LinearArgs>& k, const OpContext& ctx, const Buffer& in, const Buffer& out) {
    k.launch(ctx, arguments(in, out));
  };

  const std::vector<float> x32 = x.values(), y32 = y.values();
  for (const auto& k : s.kernels(kLinearOp.kernels, kOnGpu)) {
    if (!computes(k.name, c.rounded)) continue;
    if (!s.wants(k.name, name) || !k.fits(s.machine(), arguments(x, y))) continue;
    std::vector<double> want, bound;
    for (int64_t t = 0; t < c.tokens; ++t)
      for (size_t i = 0, at = 0; i < weights.size(); ++i) {
        const Weight& w = weights[i].weight;
        const std::vector<float> decoded = decode_all(w), bias = biases[i].values();
        const auto sums =
            bounded_product(decoded.data(), w, 0, exact(x32.data() + t * (c.cols + c.gap), c.cols), k.name, c.rounded);
        for (const Bounded& v : sums) {
          const size_t n = want.size() % static_cast<size_t>(width - c.gap) - at;
          const double b = c.bias ? static_cast<double>(bias[n]) : 0.0;
          const double old = c.add ? static_cast<double>(y32[static_cast<size_t>(t * width) + at + n]) : 0.0;
          want.push_back(v.value + b + old);
          bound.push_back(v.error + 4 * kEpsF32 * (std::abs(v.value) + std::abs(b) + std::abs(old)) +
                          (c.y == DType::kBF16 ? kEpsBf16 : 0.0) * std::abs(want.back()) + 1e-30);
        }
        at += static_cast<size_t>(w.rows);
      }
    Buffer got = y, one = y;
    run(k, s.context(Device::kCpu), x, got);
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, width - c.gap)), want, bound));
    s.expect_guards(k.name, name, {&got, &x});
    if (c.gap > 0)
      s.expect_same_bits(k.name, name + " gap", got.tensor().cols(width - c.gap, c.gap),
                         y.tensor().cols(width - c.gap, c.gap));
    run(k, s.context(Device::kCpu, 1), x, one);
    s.expect_same_bits(k.name, name + " one thread", one, got);
    if (takes_integers(k.name)) {
      Buffer repacked = y;
      run_repacked(s, weights, [&](const OpContext& ctx) { run(k, ctx, x, repacked); });
      s.expect_same_bits(k.name, name + " repacked", repacked, got);
    }
    if (k.name == "reference" || c.tokens == 0) continue;
    s.expect_row_invariant(k.name, name, c.tokens, [&](std::span<const int32_t> rows) {
      Buffer out = y.gather(rows);
      run(k, s.context(Device::kCpu), x.gather(rows), out);
      return out;
    });
  }
}

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  // Every type at every tile edge of T, N and K; biases, residuals, strides and bf16 outputs take turns.
  int turn = 0;
  const auto add = [&](DType type, int64_t t, int64_t n, int64_t k) {
    LinearCase c{{type}, t, k, n};
    c.bias = turn % 2 == 1;
    c.add = turn % 3 == 2;
    c.y = !c.add && turn % 4 == 0 ? DType::kBF16 : DType::kF32;
    c.gap = turn % 10 == 3 ? 3 : turn % 10 == 8 ? 8 : 0;
    ++turn;
    cases.push_back(c);
  };
  for (const DType type : weight_types()) {
    const int64_t block = dtype_info(type).block_elems;
    for (const int64_t k : {17, 32, 48, 64, 112, 256, 768, 1280}) {
      if (k % block != 0) continue;
      add(type, 33, 33, k);
      add(type, 1, 17, k);
    }
    const int64_t k = std::max<int64_t>(block, 96) / block * block;
    for (const int64_t t : {0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 64, 100}) add(type, t, 17, k);
    for (const int64_t n : {1, 15, 16, 17, 31, 32, 33, 96, 256, 300}) add(type, 18, n, k);
    // Panels decoded beside the products of the one before, in chunks of 512 columns, the last not full.
    for (const int64_t t : {18, 100}) add(type, t, 80, 1280);
    add(type, 140, 64, 1024);
  }
  add(DType::kBF16, 530, 40, 64);   // more tokens than share one decoded block
  add(DType::kBF16, 70, 20, 2160);  // more columns than stay near the core for many tokens
  add(DType::kNVFP4, 520, 33, 576);
  add(DType::kNVFP4, 530, 300, 1024);
  // Outputs of more than 1 MiB as bf16, whose lines are written past the caches where they are whole.
  for (const int64_t n : {1000, 1024})
    cases.push_back({{DType::kBF16}, 530, 32, n, DType::kBF16, DType::kBF16, n == 1000});
  // Query, key and value at once, in different formats; float32 tokens, which only float32 kernels take.
  cases.push_back({{DType::kBF16, DType::kNVFP4, DType::kQ8_0}, 21, 64, 40});
  cases.push_back({{DType::kQ4_K, DType::kQ6_K}, 1, 256, 70, DType::kBF16, DType::kF32, true});
  cases.push_back({{DType::kBF16, DType::kF32}, 9, 64, 40});
  cases.push_back({{DType::kF16}, 7, 40, 19, DType::kF32, DType::kBF16, true});
  cases.push_back({{DType::kNVFP4}, 19, 128, 33, DType::kF32, DType::kF32, true, true, 5});
  return cases;
}

// Tokens in E4M3. Some 300 rows of weights at most are tiles of 64 tokens; what is wider has other tiles, and its rows
// alone have these.
std::vector<LinearCase> e4m3_cases(bool wide) {
  std::vector<LinearCase> cases;
  int turn = 0;
  const auto add = [&](int64_t t, int64_t n, int64_t k) {
    LinearCase c{{DType::kFP8},        t, k, n, DType::kBF16, DType::kF32, turn % 2 == 1, turn % 3 == 2,
                 turn % 5 == 3 ? 8 : 0};
    c.y = !c.add && turn % 4 == 0 ? DType::kBF16 : DType::kF32;
    c.rounded = TokenRounding::kE4m3;
    ++turn;
    cases.push_back(c);
  };
  for (const int64_t t : {0, 1, 2, 7, 8, 9, 31, 63, 64, 65, 130, 257}) add(t, 33, 256);
  for (const int64_t n : {1, 15, 16, 17, 100, 127, 128, 129, 300}) add(18, n, 128);
  for (const int64_t k : {128, 256, 384, 640, 1280}) add(70, 140, k);
  LinearCase several{{DType::kFP8, DType::kFP8, DType::kFP8}, 75, 256, 130};
  several.rounded = TokenRounding::kE4m3;
  cases.push_back(several);
  if (wide)
    for (const int64_t t : {1000, 2000}) add(t, 1300, 256);
  return cases;
}

// Tokens in FP4: every number of rows and of row tiles in which tiles differ, and column tiles that are not full.
std::vector<LinearCase> fp4_cases(bool wide) {
  std::vector<LinearCase> cases;
  int turn = 0;
  const auto add = [&](DType type, int64_t t, int64_t n, int64_t k) {
    LinearCase c{{type}, t, k, n, DType::kBF16, DType::kF32, turn % 2 == 1, turn % 3 == 2, turn % 5 == 3 ? 8 : 0};
    c.y = !c.add && turn % 4 == 0 ? DType::kBF16 : DType::kF32;
    c.rounded = TokenRounding::kFp4;
    ++turn;
    cases.push_back(c);
  };
  for (const DType type : {DType::kNVFP4, DType::kMXFP4}) {
    for (const int64_t t : {0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 130, 257}) add(type, t, 33, 256);
    for (const int64_t n : {1, 15, 16, 17, 100, 127, 128, 129, 300}) add(type, 18, n, 128);
    for (const int64_t k : {64, 128, 192, 320, 1280}) add(type, 70, 140, k);
    LinearCase several{{type, type, type}, 75, 256, 130};
    several.rounded = TokenRounding::kFp4;
    cases.push_back(several);
    if (wide)
      for (const int64_t t : {1000, 2000}) add(type, t, 1300, 256);
  }
  for (const int64_t k : {32, 96, 1248}) add(DType::kMXFP4, 40, 50, k);
  return cases;
}

// Tokens of all sizes beside each other, some of them no numbers: a NaN or an infinity spoils its own row.
void extreme_tokens_case(Suite& s, DType type, TokenRounding rounded) {
  const std::string name = fmt::format("{} by extreme tokens in{}", dtype_name(type), case_note(rounded));
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  constexpr int64_t kTokens = 80, kRows = 40, kCols = 384;
  const RandomWeight w = random_weight(rng, type, kRows, kCols);
  const std::vector<float> decoded = decode_all(w.weight);
  constexpr float kSizes[] = {0.0f, 0x1p-130f, 0x1p-101f, 0x1p-98f, 1.0f, 0x1p90f, NAN, INFINITY};
  Buffer x(DType::kBF16, {kTokens, kCols}), y(DType::kF32, {kTokens, kRows});
  int64_t at = 0;
  x.fill([&] {
    const int64_t row = at / kCols, col = at++ % kCols;
    const float size = kSizes[row % 8], own = rng.normal();
    if (std::isfinite(size)) return own * (row % 3 == 0 && col >= kCols - 128 ? 1.0f : size);
    return col == row * 5 % kCols ? size : own;
  });
  const std::vector<float> x32 = x.values();
  for (const auto& k : s.kernels(kLinearOp.kernels, kOnGpu)) {
    const LinearArgs args{x, {LinearPart{w.weight, {}, y, false}}, 0, {kTokens, rounded}};
    if (!computes(k.name, rounded) || !s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
    std::vector<double> want, bound;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto row = exact(x32.data() + t * kCols, kCols);
      for (const Bounded& v : bounded_product(decoded.data(), w.weight, 0, row, k.name, rounded)) {
        want.push_back(v.value);
        bound.push_back(v.error + kEpsF32 * std::abs(v.value) + 1e-30);
      }
    }
    y.fill_nan();
    k.launch(s.context(Device::kCpu), args);
    std::vector<float> got = y.values();
    for (size_t i = 0; i < got.size(); ++i) {
      if (!std::isnan(want[i])) continue;
      got[i] = std::isnan(got[i]) ? 0.0f : NAN;
      want[i] = bound[i] = 0.0;
    }
    s.expect_close(k.name, name, worst_excess(got, want, bound));
  }
}

// Where the halves of a block lie that scale it.
std::vector<int64_t> scale_halves(DType type) {
  std::vector<int64_t> halves;
  const quant::FormatRow& f = *quant::find_format(type);
  for (const int at : {f.scale_at, f.min_at})
    if (at >= 0) halves.push_back(at);
  return halves;
}

// Random bits, with block scales at and around the edges of what decoders treat differently: zero, subnormal
// halves, the largest. Of MXFP4 those up to 2^(most_exponent - 127).
std::vector<std::byte> extreme_blocks(Rng& rng, DType type, int64_t elems, uint8_t most_exponent) {
  constexpr uint16_t kEdges[] = {0x0000, 0x0001, 0x0003, 0x0004, 0x0005, 0x03ff, 0x0400, 0x0401, 0x1000, 0x2c00,
                                 0x3bff, 0x3c00, 0x3c01, 0x3fff, 0x4000, 0x4001, 0x47ff, 0x4800, 0x7bff};
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(type, elems)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.engine()());
  const DTypeInfo& info = dtype_info(type);
  const std::vector<int64_t> halves = scale_halves(type);
  uint64_t turn = 0;
  if (type == DType::kFP8)  // no weight has codes that are no numbers
    for (std::byte& b : bytes)
      if ((b & std::byte{0x7f}) == std::byte{0x7f}) b ^= std::byte{1};
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(info.block_bytes)) {
    if (type == DType::kFP8) {
      constexpr float kScales[] = {0.0f, 0x1p-149f, 0x1p-126f, 0x1.fffffep-20f, -1.0f, 0x1.234568p-9f, 0x1p100f, 0.3f};
      std::memcpy(bytes.data() + at, &kScales[turn++ % std::size(kScales)], sizeof(float));
    }
    if (type == DType::kMXFP4) bytes[at] = std::min(bytes[at], std::byte{most_exponent});
    for (const int64_t half_at : halves) {
      const auto edge = static_cast<uint16_t>(kEdges[turn % std::size(kEdges)] | (turn / std::size(kEdges) % 2) << 15);
      std::memcpy(bytes.data() + at + half_at, &edge, sizeof edge);
      turn += halves.size() == 1 ? 1 : 1 + rng.engine()() % 7;  // two halves: many combinations
    }
  }
  return bytes;
}

// Tokens with a single one read the decoded weights back, each to its own precision.
void decoding_case(Suite& s, DType type) {
  const std::string name = fmt::format("{} decoded, extreme scales", dtype_name(type));
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  constexpr int64_t kRows = 80, kCols = 512;
  // Finite; a GPU takes scales below 2^9.
  const std::vector<std::byte> bytes =
      extreme_blocks(rng, type, kRows * kCols, s.options().gpu != nullptr ? 127 + 8 : 250);
  const Weight w{type, bytes.data(), kRows, kCols, 1, nullptr};
  const std::vector<float> decoded = decode_all(w);
  Buffer x(DType::kBF16, {kCols, kCols}), y(DType::kF32, {kCols, kRows});
  int64_t at = 0;
  x.fill([&] { return at++ % (kCols + 1) == 0 ? 1.0f : 0.0f; });
  for (const auto& k : s.kernels(kLinearOp.kernels, kOnGpu)) {
    const LinearPart part{w, {}, y, false};
    const LinearArgs args{x, {part}, kCols};
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
    std::vector<double> want, bound;
    for (int64_t c = 0; c < kCols; ++c)
      for (int64_t r = 0; r < kRows; ++r) {
        // A minimum may cancel most of a product: what was rounded is as large as others of its sub-block.
        const float* const around = decoded.data() + r * kCols + c / 32 * 32;
        const double largest = std::abs(static_cast<double>(
            *std::max_element(around, around + 32, [](float a, float b) { return std::abs(a) < std::abs(b); })));
        const auto value = static_cast<double>(decoded[static_cast<size_t>(r * kCols + c)]);
        want.push_back(value);
        bound.push_back(weight_eps(k.name, type) * std::abs(value) +
                        (scale_halves(type).size() == 2 ? 8 * kEpsF32 * largest : 0.0) + 1e-37);
      }
    y.fill_nan();
    k.launch(s.context(Device::kCpu), args);
    s.expect_close(k.name, name, worst_excess(y.values(), want, bound));
    if (!takes_integers(k.name)) continue;
    const auto copies = s.repack({&w, 1});
    Buffer repacked(DType::kF32, {kCols, kRows});
    k.launch(s.context(Device::kCpu), {x, {{copies->find(w), {}, repacked, false}}, kCols});
    s.expect_same_bits(k.name, name + " repacked", repacked, y);
  }
}

// Block scales that are infinite or no number, and codes of any bits: such a block spoils its own row and nothing else.
void hostile_case(Suite& s, DType type) {
  const std::string name = fmt::format("{} with scales that are not finite", dtype_name(type));
  if (!s.wants_case(name) || scale_halves(type).empty()) return;
  Rng rng = s.rng_for_case(name);
  constexpr int64_t kRows = 40, kCols = 512, kTokens = 18;
  const int64_t block = dtype_info(type).block_bytes, row_bytes = dtype_bytes(type, kCols);
  const RandomWeight good = random_weight(rng, type, kRows, kCols, 1, 1.0f);
  std::vector<std::byte> bad_bytes = good.bytes;
  const auto spoilt = [](int64_t row) { return row % 3 == 1; };
  for (int64_t row = 0; row < kRows; ++row) {
    if (!spoilt(row)) continue;
    constexpr uint16_t kBad[] = {0x7e00, 0xfe00, 0x7c00, 0xfc00, 0x7c01, 0xffff};
    const std::vector<int64_t> halves = scale_halves(type);
    const auto turn = static_cast<size_t>(row / 3);
    const int64_t at = row * row_bytes + row % (row_bytes / block) * block + halves[turn % halves.size()];
    std::memcpy(bad_bytes.data() + at, &kBad[turn % std::size(kBad)], 2);
  }
  const Weight bad{type, bad_bytes.data(), kRows, kCols, 1, nullptr};
  Buffer x(DType::kBF16, {kTokens, kCols}), want(DType::kF32, {kTokens, kRows}), got = want;
  x.fill([&] { return rng.uniform(0.5f, 1.5f); });
  for (const auto& k : s.kernels(kLinearOp.kernels, kOnGpu)) {
    const LinearArgs args{x, {LinearPart{bad, {}, got, false}}, kTokens};
    if (k.on_gpu() || !s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
    k.launch(s.context(Device::kCpu), {x, {LinearPart{good.weight, {}, want, false}}, kTokens});
    k.launch(s.context(Device::kCpu), args);
    for (int64_t t = 0; t < kTokens; ++t)
      for (int64_t row = 0; row < kRows; ++row) {
        float& y = got.tensor().row<float>(t)[row];
        // A spoilt sum must not look like a number.
        if (spoilt(row)) y = std::isfinite(y) ? NAN : want.tensor().row<float>(t)[row];
      }
    s.expect_same_bits(k.name, name, got, want);
  }
}

}  // namespace

void linear_conformance(Suite& s) {
  for (const LinearCase& c : linear_cases()) linear_case(s, c);
  for (const LinearCase& c : e4m3_cases(s.options().gpu != nullptr)) linear_case(s, c);
  for (const LinearCase& c : fp4_cases(s.options().gpu != nullptr)) linear_case(s, c);
  extreme_tokens_case(s, DType::kFP8, TokenRounding::kE4m3);
  for (const DType type : {DType::kNVFP4, DType::kMXFP4}) extreme_tokens_case(s, type, TokenRounding::kFp4);
  for (const DType type : weight_types())
    if (dtype_info(type).block_elems > 1) decoding_case(s, type), hostile_case(s, type);
}

}  // namespace quire::conformance
