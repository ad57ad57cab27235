// swiglu_mlp of the 0.6B model, with cold weights.
#include "ops/mlp/mlp.h"

#include <fmt/format.h>

#include "ops/probe/bench.h"

namespace quire {
namespace {

constexpr int64_t kWidth = 1024, kInner = 3072;

void run(benchmark::State& state, const Kernel<MlpArgs>& kernel, DType type, int64_t tokens) {
  bench::ColdWeights gate(type, kInner, kWidth), up(type, kInner, kWidth), down(type, kWidth, kInner);
  std::vector<bf16> h(static_cast<size_t>(tokens * kWidth), to_bf16(0.5f));
  std::vector<float> x(static_cast<size_t>(tokens * kWidth));
  bench::run(state, kMlpOp, kernel, [&] {
    MlpArgs args;
    args.h = make_tensor(h.data(), {tokens, kWidth});
    args.latency_rows = args.h.dim(0);
    args.gate = gate.next(), args.up = up.next(), args.down = down.next();
    args.x = make_tensor(x.data(), {tokens, kWidth});
    return args;
  });
}

void add_all() {
  for (const Kernel<MlpArgs>& kernel : bench::kernels(kMlpOp))
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kNVFP4, DType::kQ4_K})
      for (const int64_t tokens : {1, 4, 16, 64, 512})
        bench::add(fmt::format("{}/{}/0.6B/{}", kernel.name, dtype_name(type), tokens),
                   [=](benchmark::State& s) { run(s, kernel, type, tokens); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
