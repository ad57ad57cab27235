// reduce_partials at the width of the 0.6B model: two and eight devices' results, added to the residual stream. Few
// rows stay in the cache and pass the read roof. gated_product at the width that Gemma 4's layers have of their own, of
// rows that lie as far apart as those of all layers of E4B.
#include <fmt/format.h>

#include "ops/probe/bench.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<ReducePartialsArgs>& kernel, int64_t count, int64_t tokens) {
  constexpr int64_t kWidth = 1024;
  std::vector<float> partials(static_cast<size_t>(count * tokens * kWidth), 0.0f);  // x stays what it is
  std::vector<float> x(static_cast<size_t>(tokens * kWidth), 0.5f);
  const ReducePartialsArgs args{make_tensor(partials.data(), {count, tokens, kWidth}),
                                make_tensor(x.data(), {tokens, kWidth})};
  bench::run(state, kReducePartialsOp, kernel, [&] { return args; });
}

void gate(benchmark::State& state, const Kernel<GatedProductArgs>& kernel, int64_t tokens) {
  constexpr int64_t kWidth = 256, kAll = 42 * kWidth;
  std::vector<float> gates(static_cast<size_t>(tokens * kWidth), 0.5f), ups(static_cast<size_t>(tokens * kAll), 0.5f);
  std::vector<bf16> ys(gates.size());
  const GatedProductArgs args{make_tensor(gates.data(), {tokens, kWidth}),
                              make_tensor(ups.data(), {tokens, kAll}).cols(0, kWidth),
                              make_tensor(ys.data(), {tokens, kWidth}), GateActivation::kGeluTanh};
  bench::run(state, kGatedProductOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<GatedProductArgs>& kernel : bench::kernels(kGatedProductOp))
    for (const int64_t tokens : {1, 16, 512})
      bench::add(fmt::format("{}/{}/{}", kGatedProductOp.name, kernel.name, tokens),
                 [=](benchmark::State& s) { gate(s, kernel, tokens); });
  for (const Kernel<ReducePartialsArgs>& kernel : bench::kernels(kReducePartialsOp))
    for (const int64_t count : {2, 8})
      for (const int64_t tokens : {1, 16, 512, 8192})
        bench::add(fmt::format("{}/{}/{}/{}", kReducePartialsOp.name, kernel.name, count, tokens),
                   [=](benchmark::State& s) { run(s, kernel, count, tokens); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
