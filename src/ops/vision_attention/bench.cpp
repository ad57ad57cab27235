// vision_attention over images of 256 x 256 and 1024 x 1024 pixels, and over a batch of small ones.
#include "ops/vision_attention/vision_attention.h"

#include <cmath>

#include "ops/probe/bench.h"

namespace quire {
namespace {

void run(benchmark::State& state, const Kernel<VisionAttentionArgs>& kernel, int64_t d, int32_t side, int32_t images) {
  constexpr int64_t kHeads = 16;
  const int64_t each = int64_t{side} * side, rows = each * images;
  std::vector<bf16> qkv(static_cast<size_t>(rows * 3 * kHeads * d)), out(static_cast<size_t>(rows * kHeads * d));
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = to_bf16(static_cast<float>(i % 4099) / 2048.0f - 1.0f);
  std::vector<int32_t> positions;
  std::vector<RowSpan> spans;
  for (int32_t i = 0; i < images; ++i) {
    spans.push_back({static_cast<int32_t>(i * each), static_cast<int32_t>(each)});
    for (int32_t p = 0; p < each; ++p) positions.insert(positions.end(), {p / side, p % side});
  }
  std::vector<float> inv_freq(static_cast<size_t>(d / 4), 0.1f);
  const auto part = [&](int64_t which) {
    Tensor t = make_tensor(qkv.data() + which * kHeads * d, {rows, kHeads, d});
    t.stride[0] = 3 * kHeads * d;
    return t;
  };
  VisionAttentionArgs args;
  args.q = part(0);
  args.k = part(1);
  args.v = part(2);
  args.rotation = {make_tensor(positions.data(), {rows, 2}), make_tensor(inv_freq.data(), {d / 4}), side};
  args.spans = {spans.data(), images, static_cast<int32_t>(each), images * each * each};
  args.scale = 1.0f / std::sqrt(static_cast<float>(d));
  args.out = make_tensor(out.data(), {rows, kHeads * d});
  bench::run(state, kVisionAttentionOp, kernel, [&] { return args; });
}

void add_all() {
  struct Shape {
    int32_t side, images;
  };
  for (const Kernel<VisionAttentionArgs>& kernel : bench::kernels(kVisionAttentionOp))
    for (const int64_t d : {64, 72})
      for (const auto& [side, images] : {Shape{16, 1}, Shape{64, 1}, Shape{16, 16}})
        bench::add(fmt::format("vision_attention/{}/d={}/{} of {}x{}", kernel.name, d, images, side, side),
                   [=](benchmark::State& s) { run(s, kernel, d, side, images); });
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
