#include <fmt/format.h>

#include "ops/all_gather/all_gather.h"
#include "ops/conformance/gpu.h"

namespace quire::conformance {

// Numbers are copied and nothing else: ranks of equal and of other sizes, and one that has nothing.
void all_gather_conformance(Suite& s) {
  const std::vector<int64_t> sizes[] = {{100}, {48, 48}, {64, 48, 0}, {16, 16, 16, 16, 16, 16, 16, 5}, {40000, 39999}};
  for (const std::vector<int64_t>& columns : sizes)
    for (const int64_t tokens : {1, 3, 40}) {
      if (columns[0] > 1000 && tokens > 3) continue;
      const std::string name = fmt::format("T={} ranks={} first={}", tokens, columns.size(), columns[0]);
      if (!s.wants_case(name)) continue;
      Rng rng = s.rng_for_case(name);
      AllGatherArgs a{.parts = {}, .count = static_cast<int32_t>(columns.size()), .y = {}};
      std::vector<Buffer> parts;
      for (size_t r = 0; r < columns.size(); ++r) {
        a.begins[r + 1] = a.begins[r] + columns[r];
        parts.emplace_back(DType::kF32, std::initializer_list<int64_t>{tokens, columns[r]});
        parts.back().fill([&] { return rng.normal(); });
        a.parts[r] = parts.back().tensor();
      }
      const int64_t width = a.begins[columns.size()], gap = 5;
      Buffer want(DType::kF32, {tokens, width + gap});
      const Buffer before = want;
      for (size_t r = 0; r < columns.size(); ++r)
        for (int64_t i = 0; i < tokens * columns[r]; ++i)
          want.tensor().row<float>(i / columns[r])[a.begins[r] + i % columns[r]] = load_float(parts[r], i);
      for (const auto& k : s.kernels(kAllGatherOp.kernels, kNotOnGpu<AllGatherArgs>)) {
        Buffer got = before;
        a.y = got.tensor().cols(0, width);
        if (!s.wants(k.name, name) || !k.fits(s.machine(), a)) continue;
        k.launch(s.context(Device::kCpu), a);
        s.expect_same_bits(k.name, name, got, want);
        s.expect_guards(k.name, name, {&got});
      }
    }
}

}  // namespace quire::conformance
