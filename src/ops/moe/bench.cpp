// moe with the experts of the 35B-A3B model (256, of which 8 and a shared one), with cold weights.
#include "ops/moe/moe.h"

#include <fmt/format.h>

#include <random>

#include "ops/probe/bench.h"

namespace quire {
namespace {

constexpr int64_t kWidth = 2048, kInner = 512, kExperts = 256;
constexpr int kTop = 8;

void run(benchmark::State& state, const Kernel<MoeArgs>& kernel, DType type, int64_t tokens) {
  bench::ColdWeights gate(type, kInner, kWidth, kExperts), up(type, kInner, kWidth, kExperts),
      down(type, kWidth, kInner, kExperts);
  bench::ColdWeights shared_gate(type, kInner, kWidth), shared_up(type, kInner, kWidth),
      shared_down(type, kWidth, kInner);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> router(static_cast<size_t>(kExperts * kWidth)), shared_router(static_cast<size_t>(kWidth));
  for (float& v : router) v = normal(random) / 45.0f;
  std::vector<bf16> h(static_cast<size_t>(8 * tokens * kWidth));
  for (bf16& v : h) v = to_bf16(normal(random));
  std::vector<float> x(static_cast<size_t>(tokens * kWidth));
  int64_t turn = 0;
  bench::run(state, kMoeOp, kernel, [&] {
    MoeArgs args;  // other tokens every time, and so other experts
    args.h = make_tensor(h.data() + turn++ % 8 * tokens * kWidth, {tokens, kWidth});
    args.router = {DType::kF32, reinterpret_cast<const std::byte*>(router.data()), kExperts, kWidth};
    args.gate = gate.next(), args.up = up.next(), args.down = down.next();
    args.top_k = kTop;
    args.shared_gate = shared_gate.next(), args.shared_up = shared_up.next(), args.shared_down = shared_down.next();
    args.shared_router = make_tensor(shared_router.data(), {kWidth});
    args.x = make_tensor(x.data(), {tokens, kWidth});
    return args;
  });
}

void add_all() {
  for (const Kernel<MoeArgs>& kernel : bench::kernels(kMoeOp))
    for (const DType type : {DType::kNVFP4, DType::kQ4_K, DType::kQ8_0})
      for (const int64_t tokens : {1, 4, 16, 64, 512})
        bench::add(fmt::format("{}/{}/35B_A3B/{}", kernel.name, dtype_name(type), tokens),
                   [=](benchmark::State& s) { run(s, kernel, type, tokens); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
