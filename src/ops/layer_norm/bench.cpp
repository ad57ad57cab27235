// layer_norm over rows of vision towers: a row is read and written once, so the bytes are the floor; few rows stay in
// the cache and pass it.
#include "ops/layer_norm/layer_norm.h"

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<LayerNormArgs>& kernel, int64_t rows) {
  constexpr int64_t kWidth = 1152;
  std::vector<float> x(static_cast<size_t>(rows * kWidth), 0.5f), vector(kWidth, 1.0f);
  std::vector<bf16> h(x.size());
  LayerNormArgs args;
  args.x = make_tensor(x.data(), {rows, kWidth});
  args.weight = args.bias = make_tensor(vector.data(), {kWidth});
  args.h = make_tensor(h.data(), {rows, kWidth});
  bench::run(state, kLayerNormOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<LayerNormArgs>& kernel : bench::kernels(kLayerNormOp))
    for (const int64_t rows : {16, 512, 4096})
      bench::add(fmt::format("{}/{}/{}", kLayerNormOp.name, kernel.name, rows),
                 [=](benchmark::State& s) { run(s, kernel, rows); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
