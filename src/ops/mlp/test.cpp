#include <fmt/format.h>

#include <array>
#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/gemm/bounds.h"
#include "ops/gemm/repack.h"
#include "ops/mlp/mlp.h"

namespace quire::conformance {
namespace {

struct MlpCase {
  DType gate, up, down;
  int64_t tokens, width, inner;
  DType h = DType::kBF16;
  bool bias = false;
  int64_t gap = 0;
  float gate_size = 2;  // standard deviation of the gate's outputs
  bool add = true;
  GateActivation activation = GateActivation::kSilu;
  TokenRounding rounded = TokenRounding::kNone;

  std::string name() const {
    return fmt::format("{}/{}/{} T={} D={} F={} h={}{}{} gate={}{}{}{}", dtype_name(gate), dtype_name(up),
                       dtype_name(down), tokens, width, inner, dtype_name(h), bias ? " bias" : "",
                       gap > 0 ? " strided" : "", gate_size, add ? "" : " overwritten", activation_note(activation),
                       case_note(rounded));
  }
};

constexpr OnGpu<MlpArgs> kOnGpu{[](Operands& o, MlpArgs& a) {
                                  o.gate_up(a.gate, a.up);
                                  o.matrix(a.down);
                                  for (Tensor* t : {&a.h, &a.gate_bias, &a.up_bias, &a.down_bias, &a.x}) o.tensor(*t);
                                },
                                swiglu_mlp,
                                [](const MlpArgs& a) -> std::string_view {
                                  return a.gate.dtype == a.up.dtype ? "" : "gate and up of different types";
                                }};

void mlp_case(Suite& s, const MlpCase& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  const float sd = 1.0f / std::sqrt(static_cast<float>(c.width));
  const RandomWeight gate = random_weight(rng, c.gate, c.inner, c.width, 1, c.gate_size * sd);
  const RandomWeight up = random_weight(rng, c.up, c.inner, c.width, 1, sd);
  const RandomWeight down = random_weight(rng, c.down, c.width, c.inner, 1, sd);
  Buffer gate_bias(DType::kF32, {c.inner}), up_bias(DType::kF32, {c.inner}), down_bias(DType::kF32, {c.width});
  for (Buffer* b : {&gate_bias, &up_bias, &down_bias}) b->fill([&] { return rng.normal(); });
  Buffer h(c.h, {c.tokens, c.width + c.gap}), x(DType::kF32, {c.tokens, c.width + c.gap});
  h.fill([&] { return rng.normal(); });
  if (c.add) x.fill([&] { return rng.normal(); });
  const auto args = [&](const Buffer& in, const Buffer& out) {
    MlpArgs a{in.tensor().cols(0, c.width), gate.weight, up.weight, down.weight, {}, {}, {},
              out.tensor().cols(0, c.width)};
    if (c.rounded == TokenRounding::kNone)
      a.latency_rows = a.h.dim(0);
    else
      a.rounded = {a.h.dim(0), c.rounded};
    a.add_to_x = c.add;
    a.activation = c.activation;
    if (c.bias) a.gate_bias = gate_bias, a.up_bias = up_bias, a.down_bias = down_bias;
    return a;
  };
  const auto add_bias = [&](std::vector<Bounded> v, const Buffer& bias) {
    return c.bias ? with_bias(std::move(v), bias.tensor().as<float>()) : v;
  };
  const std::vector<float> h32 = h.values(), x32 = x.values();
  const std::vector<float> gate32 = decode_all(gate.weight), up32 = decode_all(up.weight),
                           down32 = decode_all(down.weight);
  for (const auto& k : s.kernels(kMlpOp.kernels, kOnGpu)) {
    Buffer got = x, one = x;
    if (!computes(k.name, c.rounded)) continue;
    if (!s.wants(k.name, name) || !k.fits(s.machine(), args(h, got))) continue;
    std::vector<double> want, bound;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const auto in = exact(h32.data() + t * (c.width + c.gap), c.width);
      const auto product = [&](const std::vector<float>& w, const RandomWeight& like,
                               const std::vector<Bounded>& tokens, const Buffer& bias) {
        return add_bias(bounded_product(w.data(), like.weight, 0, tokens, k.name, c.rounded), bias);
      };
      const auto mid =
          bounded_gated(c.activation, product(gate32, gate, in, gate_bias), product(up32, up, in, up_bias), c.h);
      const auto out = product(down32, down, mid, down_bias);
      for (int64_t d = 0; d < c.width; ++d) {
        const Bounded& v = out[static_cast<size_t>(d)];
        const double old = c.add ? static_cast<double>(x32[static_cast<size_t>(t * (c.width + c.gap) + d)]) : 0.0;
        want.push_back(v.value + old);
        bound.push_back(v.error + 4 * kEpsF32 * (std::abs(v.value) + std::abs(old)));
      }
    }
    k.launch(s.context(Device::kCpu), args(h, got));
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, c.width)), want, bound));
    s.expect_guards(k.name, name, {&got, &h});
    k.launch(s.context(Device::kCpu, 1), args(h, one));
    s.expect_same_bits(k.name, name + " one thread", one, got);
    if (takes_integers(k.name)) {
      const auto copies = s.repack(std::array{gate.weight, up.weight, down.weight});
      Buffer repacked = x;
      MlpArgs a = args(h, repacked);
      for (Weight* w : {&a.gate, &a.up, &a.down}) *w = copies->find(*w);
      k.launch(s.context(Device::kCpu), a);
      s.expect_same_bits(k.name, name + " repacked", repacked, got);
    }
    if (k.name == "reference" || c.tokens == 0) continue;
    s.expect_row_invariant(k.name, name, c.tokens, [&](std::span<const int32_t> rows) {
      Buffer out = x.gather(rows);
      k.launch(s.context(Device::kCpu), args(h.gather(rows), out));
      return out;
    });
  }
}

}  // namespace

void mlp_conformance(Suite& s) {
  for (const int64_t t : {0, 1, 2, 5, 15, 16, 17, 33, 70})
    mlp_case(s, {DType::kBF16, DType::kBF16, DType::kBF16, t, 48, 80, DType::kBF16, t % 2 == 1,
                 t % 3 != 2 ? 0
                 : t == 2   ? 8
                            : 3});
  for (const DType type : weight_types()) {
    const int64_t block = std::max(dtype_info(type).block_elems, 32);
    mlp_case(s, {type, type, type, 1, block, 2 * block});
    mlp_case(s, {type, type, type, 19, 2 * block, block});
    // Panels decoded beside the products of the one before in chunks of 512 columns.
    mlp_case(s, {type, type, type, 19, 1280, std::max<int64_t>(64, block)});
    mlp_case(s, {type, type, type, 70, 1280, std::max<int64_t>(64, block)});
  }
  for (const int64_t t : {0, 1, 2, 19, 64, 70, 300}) {
    const auto rounded = [&](TokenRounding to, DType gate, DType down, int64_t width, int64_t inner,
                             GateActivation by) {
      mlp_case(s, {gate, gate, down, t, width, inner, DType::kBF16, t % 2 == 1, t == 19 ? 8 : 0, 2, t != 70, by, to});
    };
    rounded(TokenRounding::kE4m3, DType::kFP8, DType::kFP8, 256, 384, GateActivation::kSilu);
    rounded(TokenRounding::kE4m3, DType::kFP8, DType::kFP8, 128, 128, GateActivation::kGeluTanh);
    rounded(TokenRounding::kE4m3, DType::kFP8, DType::kBF16, 128, 40, GateActivation::kSilu);
    rounded(TokenRounding::kE4m3, DType::kBF16, DType::kFP8, 48, 128, GateActivation::kSwigluOai);
    rounded(TokenRounding::kFp4, DType::kNVFP4, DType::kNVFP4, 256, 384, GateActivation::kSilu);
    rounded(TokenRounding::kFp4, DType::kNVFP4, DType::kMXFP4, 64, 192, GateActivation::kGeluTanh);
    rounded(TokenRounding::kFp4, DType::kMXFP4, DType::kMXFP4, 160, 96, GateActivation::kSwigluOai);
    rounded(TokenRounding::kFp4, DType::kNVFP4, DType::kBF16, 128, 40, GateActivation::kSilu);
    rounded(TokenRounding::kFp4, DType::kFP8, DType::kNVFP4, 128, 128, GateActivation::kSilu);
  }
  for (const int64_t inner : {1, 15, 17, 31, 33, 40})  // blocks of 32 columns of the product that are not full
    for (const int64_t t : {1, 4, 20})
      mlp_case(s, {DType::kBF16, DType::kQ8_0, DType::kBF16, t, 64, inner, DType::kBF16, inner % 2 == 0});
  for (const int64_t t : {1, 20})
    mlp_case(s, {DType::kQ8_0, DType::kQ8_0, DType::kNVFP4, t, 96, 64, DType::kBF16, true});
  for (const int64_t inner : {32, 64, 96})  // the integer kernel's steps of 64, not full
    for (const int64_t t : {1, 2, 5})
      mlp_case(s, {DType::kQ8_0, DType::kQ5_1, DType::kMXFP4, t, 96, inner, DType::kBF16, t == 2});
  // Gates where SiLU is its argument or next to nothing, and e^-g leaves the range of float32.
  for (const int64_t t : {1, 20})
    for (const DType type : {DType::kBF16, DType::kQ8_0})
      mlp_case(s, {type, type, type, t, 96, 64, DType::kBF16, false, 0, 100.0f});
  for (const int64_t t : {1, 18})
    for (const DType type : {DType::kBF16, DType::kNVFP4})
      mlp_case(s, {type, type, type, t, 128, 64, DType::kBF16, t == 1, 8, 2, false});
  mlp_case(s, {DType::kNVFP4, DType::kQ4_K, DType::kQ6_K, 18, 256, 256});
  // Block formats beside others: one core takes both.
  for (const int64_t t : {1, 4, 20}) {
    mlp_case(s, {DType::kNVFP4, DType::kNVFP4, DType::kBF16, t, 64, 64});
    mlp_case(s, {DType::kQ4_K, DType::kQ4_K, DType::kBF16, t, 256, 96});
    mlp_case(s, {DType::kQ6_K, DType::kF16, DType::kQ5_1, t, 256, 96});
  }
  mlp_case(s, {DType::kNVFP4, DType::kNVFP4, DType::kBF16, 9, 64, 72, DType::kF32, true, 5});
  for (const GateActivation activation : {GateActivation::kGeluTanh, GateActivation::kSwigluOai}) {
    const auto other = [&](DType type, int64_t t, int64_t width, int64_t inner, bool bias, float size, DType h) {
      mlp_case(s, {type, type, type, t, width, inner, h, bias, 8, size, t % 2 == 1, activation});
    };
    for (const int64_t t : {0, 1, 2, 17, 40})
      for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kNVFP4})
        other(type, t, 128, 64, t == 2, 2, DType::kBF16);
    for (const int64_t t : {1, 20}) other(DType::kQ4_K, t, 256, 256, true, 8, DType::kBF16);
    other(DType::kBF16, 5, 96, 40, true, 100, DType::kBF16);
    other(DType::kBF16, 5, 96, 33, true, 2, DType::kF32);
  }
}

}  // namespace quire::conformance
