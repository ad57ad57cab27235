#include <fmt/format.h>

#include <cmath>

#include "ops/conformance/conformance.h"
#include "ops/gemm/bounds.h"
#include "ops/linear/linear.h"

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

  std::string name() const {
    std::string s;
    for (DType t : types) s += fmt::format("{}{}", s.empty() ? "" : "+", dtype_name(t));
    return fmt::format("{} T={} N={} K={} x={} y={}{}{}{}", s, tokens, rows, cols, dtype_name(x),
                       dtype_name(y), bias ? " bias" : "", add ? " add" : "", gap > 0 ? " strided" : "");
  }
};

void linear_case(Suite& s, const LinearCase& c) {
  const std::string name = c.name();
  if (name.find(s.options().case_name) == std::string::npos) return;
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
  const auto run = [&](const Kernel<LinearArgs>& k, Device device, int threads, const Buffer& in,
                       const Buffer& out) {
    std::vector<LinearPart> parts;
    int64_t at = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const Weight& w = weights[i].weight;
      parts.push_back({w, c.bias ? biases[i].tensor() : Tensor{}, out.tensor().cols(at, w.rows), c.add});
      at += w.rows;
    }
    k.launch(s.context(device, threads), {in.tensor().cols(0, c.cols), parts});
  };
  const auto fits = [&](const Kernel<LinearArgs>& k) {
    std::vector<LinearPart> parts;
    for (const RandomWeight& w : weights) parts.push_back({w.weight, {}, {}, c.add});
    return k.fits(s.cpu(), {x, parts});
  };

  const std::vector<float> x32 = x.values(), y32 = y.values();
  for (const auto& k : s.kernels(linear_kernels())) {
    if (!s.wants(k.name, name) || !fits(k)) continue;
    std::vector<double> want, bound;
    for (int64_t t = 0; t < c.tokens; ++t)
      for (size_t i = 0, at = 0; i < weights.size(); ++i) {
        const Weight& w = weights[i].weight;
        const std::vector<float> decoded = decode_all(w), bias = biases[i].values();
        const auto sums =
            bounded_product(decoded.data(), w, 0, exact(x32.data() + t * (c.cols + c.gap), c.cols), k.name);
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
    run(k, Device::kCpu, 0, x, got);
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, width - c.gap)), want, bound));
    s.expect_guards(k.name, name, {&got, &x});
    if (c.gap > 0)
      s.expect_same_bits(k.name, name + " gap", got.tensor().cols(width - c.gap, c.gap),
                         y.tensor().cols(width - c.gap, c.gap));
    run(k, Device::kCpu, 1, x, one);
    s.expect_same_bits(k.name, name + " one thread", one, got);
    if (k.name == "reference" || c.tokens == 0) continue;
    s.expect_row_invariant(k.name, name, c.tokens, [&](std::span<const int32_t> rows) {
      Buffer out = y.gather(rows);
      run(k, Device::kCpu, 0, x.gather(rows), out);
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
    c.gap = turn % 5 == 3 ? 3 : 0;
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
  }
  add(DType::kBF16, 530, 40, 64);  // more tokens than share one decoded block
  add(DType::kNVFP4, 520, 33, 576);
  // Query, key and value at once, in different formats; float32 tokens, which only float32 kernels take.
  cases.push_back({{DType::kBF16, DType::kNVFP4, DType::kQ8_0}, 21, 64, 40});
  cases.push_back({{DType::kQ4_K, DType::kQ6_K}, 1, 256, 70, DType::kBF16, DType::kF32, true});
  cases.push_back({{DType::kBF16, DType::kF32}, 9, 64, 40});
  cases.push_back({{DType::kF16}, 7, 40, 19, DType::kF32, DType::kBF16, true});
  cases.push_back({{DType::kNVFP4}, 19, 128, 33, DType::kF32, DType::kF32, true, true, 5});
  return cases;
}

}  // namespace

void linear_conformance(Suite& s) {
  for (const LinearCase& c : linear_cases()) linear_case(s, c);
}

}  // namespace quire::conformance
