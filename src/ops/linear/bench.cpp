// linear over the shapes of the 0.6B and 35B-A3B models, with cold weights: for few tokens the share of the
// memory's roof counts, for many that of the bf16 peak.
#include <fmt/format.h>

#include "ops/gemm/repack.h"
#include "ops/linear/linear.h"
#include "ops/probe/bench.h"

namespace quire {
namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};

void run(benchmark::State& state, const Kernel<LinearArgs>& kernel, bool repack, DType type, Shape shape,
         int64_t tokens) {
  bench::ColdWeights weights(type, shape.n, shape.k);
  std::unique_ptr<RepackedWeights> repacked;
  if (repack) repacked = RepackedWeights::create(weights.all(), bench::pool()).value();
  std::vector<bf16> x(static_cast<size_t>(tokens * shape.k), to_bf16(0.5f));
  std::vector<float> y(static_cast<size_t>(tokens * shape.n));
  bench::run(state, kLinearOp, kernel, [&] {
    Weight w = weights.next();
    if (repacked != nullptr) w = repacked->find(w);
    const LinearPart part{w, {}, make_tensor(y.data(), {tokens, shape.n}), false};
    return LinearArgs{make_tensor(x.data(), {tokens, shape.k}), {part}, tokens};
  });
}

void add_all() {
  constexpr Shape kShapes[] = {{"0.6B_up", 3072, 1024}, {"0.6B_down", 1024, 3072}, {"35B_qkv", 8192, 2048}};
  const auto add = [&](std::string_view name, const Kernel<LinearArgs>& kernel, bool repack) {
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kFP8, DType::kNVFP4, DType::kMXFP4, DType::kQ4_0,
                             DType::kQ4_K, DType::kQ6_K, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS})
      for (const Shape shape : kShapes)
        for (const int64_t tokens : {1, 2, 4, 16, 64, 512})
          bench::add(fmt::format("{}/{}/{}/{}", name, dtype_name(type), shape.name, tokens),
                     [=](benchmark::State& s) { run(s, kernel, repack, type, shape, tokens); });
  };
  for (const Kernel<LinearArgs>& kernel : bench::kernels(kLinearOp)) {
    if (kernel.name.starts_with("integer")) add(fmt::format("{}_repacked", kernel.name), kernel, true);
    add(kernel.name, kernel, false);
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
