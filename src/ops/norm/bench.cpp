// The norms over rows of the 0.6B model's width and of the 35B model's delta-net heads. A row is read and
// written once, so the bytes are the floor; few rows stay in the cache and pass it.
#include "ops/norm/norm.h"

#include <fmt/format.h>

#include "ops/probe/bench.h"

namespace quire {
namespace {

template <class T>
std::vector<T> filled(int64_t count, T value) {
  return std::vector<T>(static_cast<size_t>(count), value);
}

void run_add(benchmark::State& state, const Kernel<AddRmsNormArgs>& kernel, int64_t tokens) {
  constexpr int64_t kWidth = 1024;
  auto x = filled<float>(tokens * kWidth, 0.5f);
  auto add = filled<bf16>(tokens * kWidth, to_bf16(0.0f));  // x stays what it is
  auto weight = filled<float>(kWidth, 1.0f);
  auto h = filled<bf16>(tokens * kWidth, bf16{});
  AddRmsNormArgs args;
  args.x = make_tensor(x.data(), {tokens, kWidth});
  args.add = make_tensor(add.data(), {tokens, kWidth});
  args.weight = make_tensor(weight.data(), {kWidth});
  args.h = make_tensor(h.data(), {tokens, kWidth});
  bench::run(state, kAddRmsNormOp, kernel, [&] { return args; });
}

void run_gated(benchmark::State& state, const Kernel<GatedRmsNormArgs>& kernel, int64_t tokens) {
  constexpr int64_t kHeads = 32, kHead = 128;
  const int64_t count = tokens * kHeads * kHead;
  auto o = filled<bf16>(count, to_bf16(0.5f)), z = o, y = o;
  auto weight = filled<float>(kHead, 1.0f);
  GatedRmsNormArgs args;
  args.o = make_tensor(o.data(), {tokens, kHeads, kHead});
  args.z = make_tensor(z.data(), {tokens, kHeads * kHead});
  args.weight = make_tensor(weight.data(), {kHead});
  args.y = make_tensor(y.data(), {tokens, kHeads * kHead});
  bench::run(state, kGatedRmsNormOp, kernel, [&] { return args; });
}

template <class Args>
void add(const Operator<Args>& op, void (*run)(benchmark::State&, const Kernel<Args>&, int64_t)) {
  for (const Kernel<Args>& kernel : bench::kernels(op))
    for (const int64_t tokens : {1, 16, 512, 8192})
      bench::add(fmt::format("{}/{}/{}", op.name, kernel.name, tokens),
                 [=](benchmark::State& s) { run(s, kernel, tokens); });
}

void add_all() {
  add(kAddRmsNormOp, run_add);
  add(kGatedRmsNormOp, run_gated);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
