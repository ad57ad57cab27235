#include "ops/conformance/gpu.h"
#include "ops/copy/copy.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<CopySlotsArgs> kOnGpu{[](Operands& o, CopySlotsArgs& a) {
                                        o.tensor(a.pool);
                                        o.tensor(a.pairs);
                                      },
                                      copy_slots};

}  // namespace

void copy_slots_conformance(Suite& s) {
  struct Case {
    const char* name;
    int64_t slots, width;
    int copies;
  };
  // Widths around the 256 KiB (65536 floats) that one thread copies at a time.
  constexpr Case kCases[] = {{"no slots", 0, 16, 0},     {"none", 4, 16, 0},          {"one", 2, 1, 1},
                             {"small rows", 64, 33, 31}, {"small slots", 64, 24, 31}, {"piece edge", 5, 65536, 2},
                             {"past it", 5, 65537, 2},   {"large", 4, 200000, 2}};
  for (const Case& c : kCases) {
    Rng rng = s.rng_for_case(c.name);
    Buffer f32(DType::kF32, {c.slots, c.width}), b16(DType::kBF16, {c.slots, 2, c.width});
    f32.fill([&] { return rng.normal(); });
    b16.fill([&] { return rng.normal(); });
    // Distinct slots all round: the first 2n of a permutation, read as pairs.
    const std::vector<int32_t> p = rng.permutation(static_cast<int>(c.slots));
    std::vector<int32_t> pairs;
    std::vector<int32_t> source(p.size());
    for (int32_t i = 0; i < static_cast<int32_t>(p.size()); ++i) source[static_cast<size_t>(i)] = i;
    for (int i = 0; i < c.copies; ++i) {
      const int32_t src = p[static_cast<size_t>(2 * i)], dst = p[static_cast<size_t>(2 * i + 1)];
      pairs.insert(pairs.end(), {src, dst});
      source[static_cast<size_t>(dst)] = src;
    }
    if (c.slots > 0) {
      pairs.insert(pairs.begin(), {-1, p[0]});  // padding
      pairs.insert(pairs.end(), {p[0], -1});
    }
    const int64_t count = std::ssize(pairs) / 2;
    const Buffer want_f32 = f32.gather(source), want_b16 = b16.gather(source);
    for (const auto& k : s.kernels(kCopySlotsOp.kernels, kOnGpu)) {
      Buffer got_f32 = f32, got_b16 = b16;
      const Tensor list = make_tensor(pairs.data(), {count, 2});
      if (!s.wants(k.name, c.name) || !k.fits(s.machine(), {got_f32, list})) continue;
      k.launch(s.context(Device::kCpu), {got_f32, list});
      k.launch(s.context(Device::kCpu), {got_b16, list});
      s.expect_same_bits(k.name, c.name, got_f32, want_f32);
      s.expect_same_bits(k.name, c.name, got_b16, want_b16);
      s.expect_guards(k.name, c.name, {&got_f32, &got_b16});
    }
  }
}

}  // namespace quire::conformance
