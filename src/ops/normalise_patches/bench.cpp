// normalise_patches as vision towers call it: patches of 16 x 16 pixels, twice each.
#include "ops/normalise_patches/normalise_patches.h"

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<NormalisePatchesArgs>& kernel, int64_t rows) {
  constexpr int64_t kRun = 256, kFrames = 2;
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * 3 * kRun));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37);
  std::vector<float> table(3 * 256, 0.5f);
  std::vector<bf16> y(bytes.size() * kFrames);
  NormalisePatchesArgs args;
  args.x = make_tensor(bytes.data(), DType::kI8, {rows, 3 * kRun});
  args.table = make_tensor(table.data(), {3, 256});
  args.y = make_tensor(y.data(), {rows, 3 * kRun * kFrames});
  args.run = kRun;
  args.frames = kFrames;
  bench::run(state, kNormalisePatchesOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<NormalisePatchesArgs>& kernel : bench::kernels(kNormalisePatchesOp))
    bench::add(fmt::format("normalise_patches/{}", kernel.name), [=](benchmark::State& s) { run(s, kernel, 1024); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
