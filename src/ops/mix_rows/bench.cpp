// mix_rows as vision towers call it: positions of an image's patches, four rows of a table of 2304 each, and means of
// 16 patches.
#include "ops/mix_rows/mix_rows.h"

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<MixRowsArgs>& kernel, int64_t count, int64_t rows) {
  constexpr int64_t kWidth = 1152, kTable = 2304;
  std::vector<float> table(kTable * kWidth, 0.5f), x(static_cast<size_t>(rows * kWidth));
  std::vector<float> weights(static_cast<size_t>(rows * count), 0.25f);
  std::vector<int32_t> from(weights.size());
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<int32_t>(i % kTable);
  MixRowsArgs args;
  args.rows = make_tensor(from.data(), {rows, count});
  args.weights = make_tensor(weights.data(), {rows, count});
  args.table = make_tensor(table.data(), {kTable, kWidth});
  args.x = make_tensor(x.data(), {rows, kWidth});
  bench::run(state, kMixRowsOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<MixRowsArgs>& kernel : bench::kernels(kMixRowsOp)) {
    bench::add(fmt::format("mix_rows/positions/{}", kernel.name),
               [=](benchmark::State& s) { run(s, kernel, 4, 4096); });
    bench::add(fmt::format("mix_rows/means/{}", kernel.name), [=](benchmark::State& s) { run(s, kernel, 16, 256); });
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
