#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "ops/conformance/gpu.h"
#include "ops/gemm/bounds.h"
#include "ops/gemm/core.h"
#include "ops/gemm/repack.h"
#include "ops/moe/moe.h"

namespace quire::conformance {
namespace {

enum class Router {
  kRandom,
  kOneExpert,  // expert 1 (and its neighbours) wins for every token
  kTies,       // all experts have equal logits
  kPairs,      // experts 2 i and 2 i + 1 are equal
};

struct MoeCase {
  DType type;
  int64_t tokens, width, inner, experts;
  int top_k;
  int64_t shared = 0;  // inner width of the shared expert; 0: none
  bool shared_router = false;
  Router router = Router::kRandom;
  DType h = DType::kBF16;
  bool add = true;
  std::optional<DType> down = {}, shared_type = {};  // where they are of another type
  ExpertChoice choice = {};                          // without its tensor
  bool selection_bias = false;
  GateActivation activation = GateActivation::kSilu;
  bool biases = false;       // of the router and of the experts
  bool router_rows = false;  // the router reads rows of its own
  bool factors = false;      // of each expert's down matrix, whatever its type
  TokenRounding rounded = TokenRounding::kNone;
  int64_t first = 0, here = 0;  // not 0: so many of the experts are here, from which on

  std::string name() const {
    constexpr const char* kRouters[] = {"random", "one_expert", "ties", "pairs"};
    const auto other = [](std::string_view what, std::optional<DType> t) {
      return t ? fmt::format(" {} {}", what, dtype_name(*t)) : "";
    };
    const std::string by = fmt::format(
        "{}{}{}{}{}", choice.scores == ExpertChoice::Scores::kSigmoid ? " sigmoids" : "", selection_bias ? "+bias" : "",
        choice.normalised ? "" : " as they are", choice.scale == 1 ? "" : fmt::format(" times {}", choice.scale),
        choice.groups == 1 ? "" : fmt::format(" {} of {} groups", choice.used_groups, choice.groups));
    return fmt::format("{}{} T={} D={} Fe={} top {} of {} shared={}{}{} h={} {}{}{}{}{}", dtype_name(type),
                       other("down", down), tokens, width, inner, top_k, experts, shared, other("of", shared_type),
                       shared_router ? "+router" : "", dtype_name(h), kRouters[static_cast<int>(router)],
                       add ? "" : " overwritten", by, biases ? " biases" : "", activation_note(activation)) +
           (router_rows ? " by rows of their own" : "") + (factors ? " factors" : "") +
           std::string(case_note(rounded)) + (here > 0 ? fmt::format(" of them {} from {} on", here, first) : "");
  }
};

constexpr int64_t kGap = 4;  // between rows of x

constexpr OnGpu<MoeArgs> kOnGpu{
    [](Operands& o, MoeArgs& a) {
      o.matrix(a.router);
      o.experts(a.gate, a.up, a.down, a.shared_gate, a.shared_up, a.shared_down);
      for (Tensor* t : {&a.h, &a.router_h, &a.router_bias, &a.gate_bias, &a.up_bias, &a.down_bias,
                        &a.choice.selection_bias, &a.shared_router, &a.x, &a.chosen})
        o.tensor(*t);
    },
    moe};

struct MoeData {
  RandomWeight router, gate, up, down, shared_gate, shared_up, shared_down;
  Buffer shared_router, h, router_h, x, selection_bias, router_bias, gate_bias, up_bias, down_bias;

  MoeData(Rng& rng, const MoeCase& c)
      : shared_router(DType::kF32, {c.width}),
        h(c.h, {c.tokens, c.width}),
        router_h(h),
        x(DType::kF32, {c.tokens, c.width + kGap}),
        selection_bias(DType::kF32, {c.experts}),
        router_bias(DType::kF32, {c.experts}),
        gate_bias(DType::kF32, {c.experts, c.inner}),
        up_bias(DType::kF32, {c.experts, c.inner}),
        down_bias(DType::kF32, {c.experts, c.width}) {
    const float sd = 1.0f / std::sqrt(static_cast<float>(c.width));
    router = random_weight(rng, DType::kF32, c.experts, c.width, 1, sd);
    gate = random_weight(rng, c.type, c.inner, c.width, c.experts, 2 * sd);
    up = random_weight(rng, c.type, c.inner, c.width, c.experts, sd);
    down = random_weight(rng, c.down.value_or(c.type), c.width, c.inner, c.experts, sd);
    if (c.factors) {
      down.scales.clear();
      for (int64_t e = 0; e < c.experts; ++e) down.scales.push_back(rng.uniform(0.5f, 1.5f));
      down.weight.scale = down.scales.data();
    }
    if (c.shared > 0) {
      const DType type = c.shared_type.value_or(c.type);
      shared_gate = random_weight(rng, type, c.shared, c.width, 1, 2 * sd);
      shared_up = random_weight(rng, type, c.shared, c.width, 1, sd);
      shared_down = random_weight(rng, type, c.width, c.shared, 1, sd);
    }
    shared_router.fill([&] { return rng.normal(sd); });
    h.fill([&] { return rng.normal(); });
    if (c.router_rows) router_h.fill([&] { return rng.normal(); });
    if (c.add) x.fill([&] { return rng.normal(); });
    float* r = reinterpret_cast<float*>(router.bytes.data());
    for (int64_t e = 0; e < c.experts; ++e)
      for (int64_t d = 0; d < c.width; ++d) {
        float& v = r[e * c.width + d];
        if (c.router == Router::kTies) v = r[d];
        if (c.router == Router::kPairs) v = r[e / 2 * 2 * c.width + d];
        // The first column of h is 1: a logit that all tokens share.
        if (c.router == Router::kOneExpert && d == 0)
          v = -100.0f * static_cast<float>(std::abs(e - 1)) - static_cast<float>(e);
      }
    if (c.selection_bias) selection_bias.fill([&] { return rng.uniform(-1.0f, 1.0f); });
    if (c.biases) {
      router_bias.fill([&] { return rng.normal(); });
      for (Buffer* b : {&gate_bias, &up_bias, &down_bias}) b->fill([&] { return rng.normal(3.0f); });
    }
    if (c.router == Router::kOneExpert)
      for (int64_t t = 0; t < c.tokens; ++t) store_float(h.tensor(), t * c.width, 1.0f);
  }

  static void keep_some_experts(const MoeCase& c, MoeArgs& a) {
    a.first_expert = c.first;
    for (Weight* w : {&a.gate, &a.up, &a.down}) {
      w->data = w->row(0, c.first);
      w->experts = c.here;
      if (w->scale != nullptr) w->scale += c.first;
    }
    for (Tensor* t : {&a.gate_bias, &a.up_bias, &a.down_bias})
      if (!t->empty()) *t = t->rows(c.first, c.here);
  }

  MoeArgs args(const MoeCase& c, const Tensor& in, const Buffer& out, const Tensor& chosen) const {
    return args(c, in, router_h, out, chosen);
  }
  MoeArgs args(const MoeCase& c, const Tensor& in, const Tensor& router_in, const Buffer& out,
               const Tensor& chosen) const {
    MoeArgs a;
    a.h = in;
    if (c.router_rows) a.router_h = router_in;
    a.router = router.weight, a.gate = gate.weight, a.up = up.weight, a.down = down.weight;
    a.top_k = c.top_k;
    a.choice = c.choice;
    if (c.selection_bias) a.choice.selection_bias = selection_bias;
    a.activation = c.activation;
    if (c.biases) a.router_bias = router_bias, a.gate_bias = gate_bias, a.up_bias = up_bias, a.down_bias = down_bias;
    if (c.here > 0) keep_some_experts(c, a);
    if (c.shared > 0) {
      a.shared_gate = shared_gate.weight, a.shared_up = shared_up.weight, a.shared_down = shared_down.weight;
      if (c.shared_router) a.shared_router = shared_router;
    }
    a.x = out.tensor().cols(0, c.width);
    a.add_to_x = c.add;
    a.chosen = chosen;
    if (c.rounded == TokenRounding::kNone)
      a.latency_rows = a.h.dim(0);
    else
      a.rounded = {a.h.dim(0), c.rounded};
    return a;
  }
};

struct ExpertMlp {
  const RandomWeight &gate, &up, &down;
  const Buffer *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
};

// A GPU rounds an expert's result before it is weighted.
std::vector<Bounded> expert(const MoeCase& c, const ExpertMlp& mlp, int64_t e, const std::vector<Bounded>& h,
                            std::string_view kernel) {
  const auto is_float = [](const RandomWeight& w) { return !gemm::has_integers(w.weight.dtype); };
  if (takes_integers(kernel) && kernel != "integer" && (is_float(mlp.gate) || is_float(mlp.up) || is_float(mlp.down)))
    kernel = kBaseLevel;  // which takes these in the same call
  const auto product = [&](const RandomWeight& w, const Buffer* bias, const std::vector<Bounded>& in) {
    Weight one = w.weight;
    one.data = reinterpret_cast<const std::byte*>(one.row(0, e));
    one.experts = 1;
    std::vector<Bounded> y = bounded_product(decode_all(one).data(), w.weight, e, in, kernel, c.rounded);
    return bias == nullptr ? y : with_bias(std::move(y), bias->tensor().row<float>(e));
  };
  std::vector<Bounded> y =
      product(mlp.down, mlp.down_bias,
              bounded_gated(c.activation, product(mlp.gate, mlp.gate_bias, h), product(mlp.up, mlp.up_bias, h), c.h));
  if (Suite::is_on_gpu(kernel))
    for (Bounded& v : y) v.error += kEpsBf16 * (std::abs(v.value) + v.error);
  return y;
}

// What token h should add to the residual, given the experts that were chosen.
std::vector<Bounded> want_row(const MoeCase& c, const MoeData& m, const std::vector<Bounded>& h,
                              const std::vector<Bounded>& router_h, std::span<const int32_t> chosen,
                              std::string_view kernel) {
  const std::string_view router = Suite::is_on_gpu(kernel) ? kernel : kBaseLevel;  // of the router, on every CPU
  std::vector<Bounded> logits =
      bounded_product(reinterpret_cast<const float*>(m.router.bytes.data()), m.router.weight, 0, router_h, router);
  if (c.biases) logits = with_bias(std::move(logits), m.router_bias.tensor().as<float>());
  double top = -1e300, total = 0.0, kept = 0.0, logit_error = 0.0;
  for (const Bounded& l : logits) top = std::max(top, l.value), logit_error = std::max(logit_error, l.error);
  const bool sigmoid = c.choice.scores == ExpertChoice::Scores::kSigmoid;
  for (const Bounded& l : logits) total += std::exp(l.value - top);
  const auto score = [&](int32_t e) {
    const double l = logits[static_cast<size_t>(e)].value;
    return sigmoid ? 1 / (1 + std::exp(-l)) : std::exp(l - top) / total;
  };
  for (int32_t e : chosen) kept += score(e);
  std::vector<Bounded> sum(h.size());
  const auto add = [&](const std::vector<Bounded>& out, double weight, double relative) {
    for (size_t d = 0; d < sum.size(); ++d) {
      sum[d].value += weight * out[d].value;
      sum[d].error += weight * (out[d].error * (1 + relative) + std::abs(out[d].value) * relative);
    }
  };
  for (int32_t e : chosen) {
    if (c.here > 0 && (e < c.first || e >= c.first + c.here)) continue;
    const double least = sigmoid ? 1e-20 : 0x1p-14;
    const double weight = score(e) / (c.choice.normalised ? std::max(kept, least) : 1.0);
    const ExpertMlp mlp = c.biases ? ExpertMlp{m.gate, m.up, m.down, &m.gate_bias, &m.up_bias, &m.down_bias}
                                   : ExpertMlp{m.gate, m.up, m.down};
    add(expert(c, mlp, e, h, kernel), weight * static_cast<double>(c.choice.scale), 2 * logit_error + 32 * kEpsF32);
  }
  if (c.shared > 0) {
    const Weight gate{DType::kF32, static_cast<const std::byte*>(m.shared_router.tensor().data), 1, c.width};
    const Bounded g = bounded_product(m.shared_router.tensor().as<float>(), gate, 0, h, kBaseLevel)[0];
    const double weight = c.shared_router ? 1.0 / (1.0 + std::exp(-g.value)) : 1.0;
    add(expert(c, {m.shared_gate, m.shared_up, m.shared_down}, 0, h, kernel), weight, g.error + 16 * kEpsF32);
  }
  return sum;
}

void moe_case(Suite& s, const MoeCase& c) {
  const std::string name = c.name();
  if (!s.wants_case(name)) return;
  Rng rng = s.rng_for_case(name);
  const MoeData m(rng, c);
  Buffer want_chosen(DType::kI32, {c.tokens, c.top_k}), ignored = m.x;
  if (c.tokens > 0)
    kMoeOp.reference().launch(s.context(Device::kReference),
                              m.args(c, m.h.as(DType::kF32), m.router_h.as(DType::kF32), ignored, want_chosen));
  const std::vector<float> h32 = m.h.values(), router32 = c.router_rows ? m.router_h.values() : h32, x32 = m.x.values();

  for (const auto& k : s.kernels(kMoeOp.kernels, kOnGpu)) {
    Buffer got = m.x, one = m.x, chosen(DType::kI32, {c.tokens, c.top_k});
    if (!computes(k.name, c.rounded)) continue;
    if (!s.wants(k.name, name) || !k.fits(s.machine(), m.args(c, m.h, got, chosen))) continue;
    OpContext ctx = s.context(Device::kCpu);
    const KernelChoice choice{{{"moe", std::string(k.name)}}};
    ctx.choice = &choice;
    if (k.on_gpu())
      k.launch(ctx, m.args(c, m.h, got, chosen));
    else
      moe(ctx, m.args(c, m.h, got, chosen));
    s.expect_same_bits(k.name, name + " chosen", chosen, want_chosen);
    std::vector<double> want, bound;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const std::span<const int32_t> experts(want_chosen.tensor().row<int32_t>(t), static_cast<size_t>(c.top_k));
      const auto row = want_row(c, m, exact(h32.data() + t * c.width, c.width),
                                exact(router32.data() + t * c.width, c.width), experts, k.name);
      for (int64_t d = 0; d < c.width; ++d) {
        const Bounded& v = row[static_cast<size_t>(d)];
        const double old = c.add ? static_cast<double>(x32[static_cast<size_t>(t * (c.width + kGap) + d)]) : 0.0;
        want.push_back(old + v.value);
        bound.push_back(v.error + (c.top_k + 4) * kEpsF32 * (std::abs(old) + std::abs(v.value) + v.error));
      }
    }
    s.expect_close(k.name, name, worst_excess(values(got.tensor().cols(0, c.width)), want, bound));
    s.expect_guards(k.name, name, {&got, &m.h, &chosen});
    if (c.tokens == 0) continue;
    k.launch(s.context(Device::kCpu, 1), m.args(c, m.h, one, chosen));
    s.expect_same_bits(k.name, name + " one thread", one, got);
    if (takes_integers(k.name) && c.here == 0) {
      const auto copies = s.repack(std::array{m.gate.weight, m.up.weight, m.down.weight, m.shared_gate.weight,
                                              m.shared_up.weight, m.shared_down.weight});
      Buffer repacked = m.x;
      MoeArgs a = m.args(c, m.h, repacked, chosen);
      for (Weight* w : {&a.gate, &a.up, &a.down, &a.shared_gate, &a.shared_up, &a.shared_down}) *w = copies->find(*w);
      k.launch(ctx, a);
      s.expect_same_bits(k.name, name + " repacked", repacked, got);
    }
    if (k.name == "reference") continue;
    s.expect_row_invariant(k.name, name, c.tokens, [&](std::span<const int32_t> rows) {
      Buffer out = m.x.gather(rows);
      k.launch(s.context(Device::kCpu), m.args(c, m.h.gather(rows), m.router_h.gather(rows), out, {}));
      return out;
    });
  }
}

}  // namespace

void moe_conformance(Suite& s) {
  for (const int64_t t : {0, 1, 2, 7, 16, 33, 70}) {
    moe_case(s, {DType::kBF16, t, 64, 48, 8, 3, 40, t % 2 == 1});
    moe_case(s, {DType::kNVFP4, t, 128, 64, 16, 4, 64, true});
  }
  for (const DType type : weight_types()) {
    const int64_t block = std::max(dtype_info(type).block_elems, 32);
    moe_case(s, {type, 1, block, block, 5, 2});
    moe_case(s, {type, 21, block, block, 5, 2, block, true});
  }
  for (const Router router : {Router::kOneExpert, Router::kTies, Router::kPairs})
    for (const int64_t t : {1, 5, 40}) {
      moe_case(s, {DType::kBF16, t, 32, 33, 6, 1, 0, false, router});
      moe_case(s, {DType::kQ8_0, t, 64, 32, 6, 3, 32, false, router});
    }
  for (const int64_t t : {0, 1, 2, 9, 21, 70, 300}) {
    const auto rounded = [&](TokenRounding to, DType type, int64_t experts, int k, int64_t shared,
                             std::optional<DType> down, std::optional<DType> shared_type, Router router) {
      moe_case(s, {.type = type,
                   .tokens = t,
                   .width = 256,
                   .inner = 128,
                   .experts = experts,
                   .top_k = k,
                   .shared = shared,
                   .shared_router = shared > 0,
                   .router = router,
                   .add = t != 21,
                   .down = down,
                   .shared_type = shared_type,
                   .biases = shared == 0,
                   .rounded = to});
    };
    for (const DType type : {DType::kFP8, DType::kNVFP4, DType::kMXFP4}) {
      const TokenRounding to = type == DType::kFP8 ? TokenRounding::kE4m3 : TokenRounding::kFp4;
      rounded(to, type, 8, 3, 0, {}, {}, Router::kRandom);
      rounded(to, type, 8, 3, 128, {}, {}, Router::kRandom);  // one more of the others
      rounded(to, type, 8, 3, 256, {}, {}, Router::kRandom);  // products of its own
      rounded(to, type, 5, 2, 64, DType::kBF16, DType::kBF16, Router::kRandom);
      rounded(to, type, 40, 4, 128, {}, {}, Router::kOneExpert);  // most experts empty, four with every token
    }
  }
  for (const int64_t t : {1, 21})
    moe_case(s, {DType::kNVFP4, t, 64, 64, 8, 2, 64, true, Router::kRandom, DType::kBF16, false});
  // Routed experts and the shared one of types that different cores take.
  for (const int64_t t : {1, 2, 21}) {
    const auto mixed = [&](DType type, std::optional<DType> down, DType shared) {
      moe_case(s, {type, t, 256, 256, 5, 2, 64, t != 2, Router::kRandom, DType::kBF16, true, down, shared});
    };
    mixed(DType::kNVFP4, {}, DType::kBF16);
    mixed(DType::kQ4_K, DType::kQ6_K, DType::kBF16);
    mixed(DType::kBF16, {}, DType::kQ8_0);
    mixed(DType::kQ4_K, DType::kBF16, DType::kQ8_0);
    mixed(DType::kQ5_K, DType::kBF16, DType::kBF16);
    mixed(DType::kMXFP4, {}, DType::kF16);
  }
  // Other ways to choose.
  using Scores = ExpertChoice::Scores;
  for (const int64_t t : {1, 2, 21}) {
    const auto by = [&](const ExpertChoice& choice, bool bias, int64_t experts, int k,
                        Router router = Router::kRandom) {
      moe_case(s, {DType::kBF16, t, 64, 48, experts, k, 40, false, router, DType::kBF16, true, {}, {}, choice, bias});
    };
    by({.scores = Scores::kSigmoid}, false, 8, 3);
    by({.scores = Scores::kSigmoid, .scale = 2.5f}, true, 8, 3);
    by({.scores = Scores::kSigmoid, .normalised = false}, true, 8, 1);
    by({.normalised = false}, false, 8, 3);
    by({.scale = 0.5f}, true, 8, 8);
    by({.scores = Scores::kSigmoid, .scale = 2.5f, .groups = 4, .used_groups = 2}, true, 16, 3);
    by({.scores = Scores::kSigmoid, .groups = 4, .used_groups = 1}, false, 16, 4);
    by({.groups = 8, .used_groups = 3}, false, 8, 3);
    by({.scores = Scores::kSigmoid, .groups = 3, .used_groups = 2}, false, 6, 3, Router::kTies);
  }
  for (const int64_t t : {0, 1, 2, 8, 21, 70}) {
    const auto oai = [&](DType type, int64_t width, int64_t inner, int64_t shared, bool biases, GateActivation by) {
      moe_case(s, {.type = type,
                   .tokens = t,
                   .width = width,
                   .inner = inner,
                   .experts = 8,
                   .top_k = 3,
                   .shared = shared,
                   .add = t != 8,
                   .activation = by,
                   .biases = biases});
    };
    for (const DType type : {DType::kBF16, DType::kMXFP4, DType::kQ8_0})
      oai(type, 96, 160, 0, true, GateActivation::kSwigluOai);
    oai(DType::kNVFP4, 64, 64, 64, false, GateActivation::kGeluTanh);
    oai(DType::kBF16, 64, 40, 24, true, GateActivation::kSilu);
  }
  for (const int64_t t : {0, 1, 2, 21, 70})
    for (const DType h : {DType::kBF16, DType::kF32})
      moe_case(s, {.type = t == 2 ? DType::kQ8_0 : DType::kBF16,
                   .tokens = t,
                   .width = 64,
                   .inner = 32,
                   .experts = 8,
                   .top_k = 3,
                   .shared = t == 21 ? 32 : 0,
                   .h = h,
                   .add = t != 1,
                   .activation = GateActivation::kGeluTanh,
                   .router_rows = true,
                   .factors = true});
  // Some of the experts are here: of many tokens, of one, of none that chose any of them, with biases and without.
  for (const int64_t t : {1, 2, 18})
    for (const auto& [first, here] : {std::pair<int64_t, int64_t>{0, 3}, {3, 3}, {5, 1}}) {
      moe_case(s, {.type = DType::kNVFP4,
                   .tokens = t,
                   .width = 64,
                   .inner = 64,
                   .experts = 6,
                   .top_k = 2,
                   .shared = 64,
                   .add = false,
                   .first = first,
                   .here = here});
      moe_case(s, {.type = DType::kBF16,
                   .tokens = t,
                   .width = 64,
                   .inner = 48,
                   .experts = 6,
                   .top_k = 2,
                   .biases = true,
                   .first = first,
                   .here = here});
    }
  moe_case(s, {.type = DType::kBF16,
               .tokens = 5,
               .width = 64,
               .inner = 48,
               .experts = 6,
               .top_k = 1,
               .router = Router::kOneExpert,
               .add = false,
               .first = 4,
               .here = 2});
  moe_case(s, {DType::kBF16, 18, 32, 32, 1, 1});              // one expert
  moe_case(s, {DType::kBF16, 18, 32, 32, 4, 4, 32, true});    // all of them
  moe_case(s, {DType::kNVFP4, 3, 64, 64, 256, 8, 64, true});  // most experts empty
  moe_case(s, {DType::kMXFP4, 17, 96, 32, 40, 8, 32, true, Router::kRandom, DType::kF32});
}

}  // namespace quire::conformance
