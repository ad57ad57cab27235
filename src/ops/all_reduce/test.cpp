#include <fmt/format.h>

#include <cmath>

#include "ops/all_reduce/all_reduce.h"
#include "ops/conformance/gpu.h"
#include "ops/norm/norm.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<AllReduceArgs> kAllReduceOnGpu{[](Operands& o, AllReduceArgs& a) {
                                                 for (Tensor& t : a.partials)
                                                   if (!t.empty()) o.tensor(t);
                                                 for (Tensor* t : {&a.x, &a.weight, &a.h}) o.tensor(*t);
                                               },
                                               all_reduce};

struct Case {
  int64_t tokens, width;
  int32_t ranks;
  DType partial, h;  // kI32: no norm
  bool add = true;
  int64_t gap = 4;  // elements between rows

  bool normed() const { return h != DType::kI32; }
  std::string name() const {
    return fmt::format("T={} D={} ranks={} {}{}{}{}", tokens, width, ranks, dtype_name(partial),
                       normed() ? fmt::format(" h {}", dtype_name(h)) : "", add ? "" : " overwritten",
                       gap % 4 == 0 ? "" : " unaligned");
  }
};

// What the ranks have, each in memory of its own.
struct Partials {
  std::vector<Buffer> all;
  Partials(const Case& c, Rng& rng) {
    for (int32_t r = 0; r < c.ranks; ++r) {
      all.emplace_back(c.partial, std::initializer_list<int64_t>{c.tokens, c.width + c.gap});
      all.back().fill([&] { return rng.normal(); });
    }
  }
  Partials(const Partials& of, std::span<const int32_t> rows) {
    for (const Buffer& b : of.all) all.push_back(b.gather(rows));
  }
  AllReduceArgs args(const Case& c, const Buffer& x, const Tensor& weight, const Tensor& h) const {
    AllReduceArgs a{.partials = {}, .count = c.ranks, .x = x.tensor().cols(0, c.width), .add_to_x = c.add};
    for (size_t r = 0; r < all.size(); ++r) a.partials[r] = all[r].tensor().cols(0, c.width);
    if (c.normed()) a.weight = weight, a.h = h.cols(0, c.width);
    return a;
  }
};

// x as a plain loop has it, in the order of ranks.
Buffer plain_sum(const Case& c, const Buffer& x, const Partials& partials) {
  Buffer want = x;
  const int64_t pitch = c.width + c.gap;
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t d = 0; d < c.width; ++d) {
      float sum = load_float(partials.all[0], t * pitch + d);
      for (size_t r = 1; r < partials.all.size(); ++r) sum += load_float(partials.all[r], t * pitch + d);
      float& to = want.tensor().row<float>(t)[d];
      to = c.add ? to + sum : sum;
    }
  return want;
}

void run_case(Suite& s, const Case& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  const Partials partials(c, rng);
  Buffer x(DType::kF32, {c.tokens, c.width + c.gap}), weight(DType::kF32, {c.width});
  if (c.add) x.fill([&] { return rng.normal(); });
  weight.fill([&] { return 1.0f + rng.normal(0.3f); });
  const Buffer want = plain_sum(c, x, partials);
  const Tensor sums = want.tensor().cols(0, c.width);
  std::vector<float> normed;
  std::vector<double> bound;
  if (c.normed()) {
    Buffer from = want, h(DType::kF32, {c.tokens, c.width});
    kAddRmsNormOp.reference().launch(s.context(Device::kReference),
                                     {from.tensor().cols(0, c.width), {}, weight, 1e-6f, h});
    normed = h.values();
    // As of add_rms_norm.
    const double eps = (c.h == DType::kBF16 ? kEpsBf16 : kEpsF32) + (static_cast<double>(c.width) / 64 + 16) * kEpsF32;
    for (const float n : normed) bound.push_back(std::abs(static_cast<double>(n)) * eps + 1e-38);
  }
  for (const auto& k : s.kernels(kAllReduceOp.kernels, kAllReduceOnGpu)) {
    Buffer got = x, h(c.normed() ? c.h : DType::kF32, {c.tokens, c.width + c.gap});
    const Buffer h_before = h;
    const AllReduceArgs args = partials.args(c, got, weight, h);
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
    k.launch(s.context(Device::kCpu), args);
    s.expect_same_bits(k.name, name, args.x, sums);
    s.expect_same_bits(k.name, name, got.tensor().cols(c.width, c.gap), x.tensor().cols(c.width, c.gap));
    s.expect_guards(k.name, name, {&got, &h, &weight});
    for (const Buffer& p : partials.all) s.expect_guards(k.name, name, {&p});
    if (!c.normed()) continue;
    s.expect_close(k.name, name, worst_excess(values(args.h), normed, bound));
    s.expect_same_bits(k.name, name, h.tensor().cols(c.width, c.gap), h_before.tensor().cols(c.width, c.gap));
    s.expect_row_invariant(k.name, name, c.tokens, [&](std::span<const int32_t> rows) {
      const Partials some(partials, rows);
      Case part = c;
      part.tokens = std::ssize(rows);
      const Buffer part_x = x.gather(rows);
      Buffer out(c.h, {part.tokens, c.width + c.gap});
      k.launch(s.context(Device::kCpu, 1), some.args(part, part_x, weight, out));
      return out;
    });
  }
}

}  // namespace

// The additions are few and their order is given, so every kernel has the same bits as a plain loop; the norm is within
// the bound of add_rms_norm. Ranks that meet are tested beside (tests/ops/all_reduce_test.cpp, tests/cuda).
void all_reduce_conformance(Suite& s) {
  for (const int32_t ranks : {1, 2, 3, 8})
    for (const int64_t tokens : {1, 5, 40})
      for (const int64_t width : {1, 7, 16, 300, 2048, 5120}) {
        if (tokens * width > 60000 && ranks != 2) continue;
        for (const DType partial : {DType::kF32, DType::kBF16}) {
          run_case(s, {tokens, width, ranks, partial, DType::kBF16});
          run_case(s, {tokens, width, ranks, partial, DType::kI32, false});
        }
      }
  run_case(s, {9, 200, 2, DType::kF32, DType::kF32});
  run_case(s, {9, 200, 4, DType::kBF16, DType::kF32, false});
  run_case(s, {9, 201, 2, DType::kF32, DType::kBF16, true, 3});
  run_case(s, {3, 8196, 2, DType::kF32, DType::kBF16});
  run_case(s, {3, 16384, 8, DType::kBF16, DType::kBF16});
}

}  // namespace quire::conformance
