// gelu over what the first product of a vision tower's feed-forward puts out, in place.
#include "ops/gelu/gelu.h"

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<GeluArgs>& kernel, GeluForm form, int64_t rows) {
  constexpr int64_t kWidth = 4304;
  std::vector<bf16> x(static_cast<size_t>(rows * kWidth), to_bf16(0.5f));
  std::vector<bf16> y = x;  // apart, so that values stay what they are
  GeluArgs args;
  args.x = make_tensor(x.data(), {rows, kWidth});
  args.y = make_tensor(y.data(), {rows, kWidth});
  args.form = form;
  bench::run(state, kGeluOp, kernel, [&] { return args; });
}

void add_all() {
  for (const Kernel<GeluArgs>& kernel : bench::kernels(kGeluOp))
    for (const GeluForm form : {GeluForm::kErf, GeluForm::kTanh})
      for (const int64_t rows : {16, 512, 4096})
        bench::add(fmt::format("{}/{}/{}/{}", kGeluOp.name, form == GeluForm::kErf ? "erf" : "tanh", kernel.name, rows),
                   [=](benchmark::State& s) { run(s, kernel, form, rows); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
