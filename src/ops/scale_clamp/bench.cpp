// scale_clamp over what a product of a vision tower puts out, and over what it pools.
#include "ops/scale_clamp/scale_clamp.h"

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<ScaleClampArgs>& kernel, bool scaled, int64_t rows) {
  constexpr int64_t kWidth = 3072;
  std::vector<float> x(static_cast<size_t>(rows * kWidth), 0.5f), y = x;
  std::vector<float> shift(kWidth, 0.25f), scale(kWidth, 2.0f);
  ScaleClampArgs args;
  args.x = make_tensor(x.data(), {rows, kWidth});
  args.y = make_tensor(y.data(), {rows, kWidth});
  if (scaled) args.shift = make_tensor(shift.data(), {kWidth}), args.scale = make_tensor(scale.data(), {kWidth});
  args.low = -1.0f;
  args.high = 1.0f;
  bench::run(state, kScaleClampOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<ScaleClampArgs>& kernel : bench::kernels(kScaleClampOp))
    for (const bool scaled : {false, true})
      for (const int64_t rows : {16, 512, 4096})
        bench::add(fmt::format("{}/{}/{}/{}", kScaleClampOp.name, scaled ? "scaled" : "bounds", kernel.name, rows),
                   [=](benchmark::State& s) { run(s, kernel, scaled, rows); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
