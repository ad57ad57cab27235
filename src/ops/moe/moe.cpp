#include "ops/moe/moe.h"

#include <algorithm>
#include <cmath>

#include "ops/gemm/table.h"
#include "ops/moe/cuda/kernels.h"
#include "ops/moe/kernels.h"

namespace quire {
namespace moe_detail {

namespace {

void top_k(const float* logits, int experts, int k, int32_t* chosen) {
  // Insertion into a short sorted list: k is 8 or so, and after the first few experts most candidates lose
  // their first comparison. A NaN loses every comparison, so the indices stay valid whatever the input.
  int count = 0;
  for (int e = 0; e < experts; ++e) {
    if (count == k && !(logits[e] > logits[chosen[k - 1]])) continue;
    int at = count < k ? count++ : k - 1;
    for (; at > 0 && logits[e] > logits[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = e;
  }
}

// Puts the experts of all groups but the best out of the running.
void keep_best_groups(const ExpertChoice& choice, float* keys, int experts) {
  const int size = experts / choice.groups;
  float lowest = INFINITY;
  const auto sum_of_two = [&](int group) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = group * size; e < (group + 1) * size; ++e) {
      if (keys[e] > first)
        second = first, first = keys[e];
      else if (keys[e] > second)
        second = keys[e];
    }
    return size > 1 ? first + second : first;
  };
  // As many groups as may not be used, the worst first; of equal ones that with the higher number.
  for (int out = choice.used_groups; out < choice.groups; ++out) {
    int worst = -1;
    lowest = INFINITY;
    for (int g = 0; g < choice.groups; ++g) {
      if (keys[g * size] == -INFINITY) continue;
      const float sum = sum_of_two(g);
      if (worst >= 0 && sum > lowest) continue;
      lowest = sum, worst = g;
    }
    if (worst >= 0) std::fill_n(keys + worst * size, size, -INFINITY);
  }
}

}  // namespace

void route(const float* logits, int experts, int k, int32_t* chosen, float* weights) {
  top_k(logits, experts, k, chosen);
  float sum = 0.0f;
  for (int r = 0; r < k; ++r) sum += weights[r] = std::exp(logits[chosen[r]] - logits[chosen[0]]);
  for (int r = 0; r < k; ++r) weights[r] /= sum;
}

void route(const ExpertChoice& choice, const float* logits, int experts, int k, float* scores, float* keys,
           int32_t* chosen, float* weights) {
  const bool sigmoid = choice.scores == ExpertChoice::Scores::kSigmoid;
  float top = -INFINITY, total = 0.0f;
  for (int e = 0; e < experts; ++e) top = std::max(top, logits[e]);
  for (int e = 0; e < experts; ++e) {
    scores[e] = sigmoid ? 1.0f / (1.0f + std::exp(-logits[e])) : std::exp(logits[e] - top);
    total += scores[e];
  }
  for (int e = 0; e < experts && !sigmoid; ++e) scores[e] /= total;
  for (int e = 0; e < experts; ++e)
    keys[e] = scores[e] + (choice.selection_bias.empty() ? 0.0f : choice.selection_bias.as<float>()[e]);
  if (choice.used_groups < choice.groups) keep_best_groups(choice, keys, experts);
  top_k(keys, experts, k, chosen);
  float sum = 0.0f;
  for (int r = 0; r < k; ++r) sum += weights[r] = scores[chosen[r]];
  const float factor = choice.normalised ? choice.scale / std::max(sum, sigmoid ? 1e-20f : 0x1p-14f) : choice.scale;
  for (int r = 0; r < k; ++r) weights[r] *= factor;
}

}  // namespace moe_detail

namespace {

bool fits_bf16(const MoeArgs& a, bool (*passes)(DType)) {
  return gemm::fits_bf16(a.h.dtype, {&a.gate, &a.up, &a.down, &a.shared_gate, &a.shared_up, &a.shared_down}, passes);
}

// Whether the integer cores without AVX-512 take the routed experts, or the shared one: where the other's matrices are
// BF16, the float32 core takes that (gemm::core_for).
bool fits_integers(const MoeArgs& a) {
  const auto integers = [&](std::initializer_list<const Weight*> weights) {
    return gemm::fits_bf16(a.h.dtype, weights, gemm::has_integers);
  };
  return fits_bf16(a, gemm::rounds_to_bf16) &&
         (integers({&a.gate, &a.up, &a.down}) ||
          (!a.shared_gate.empty() && integers({&a.shared_gate, &a.shared_up, &a.shared_down})));
}

using InE4m3 = moe_cuda::RoundedEntry<TokenRounding::kE4m3>;
using InFp4 = moe_cuda::RoundedEntry<TokenRounding::kFp4>;
constexpr auto kKernels = joined(  //
    cuda_rows<MoeArgs>({
        {"cuda_e4m3", InE4m3::fits, InE4m3::launch, GpuLevel::kWgmma, nullptr, moe_cuda::kE4m3Takes},
        {"cuda_fp4", InFp4::fits, InFp4::launch, GpuLevel::kFp4, nullptr, moe_cuda::kFp4Takes},
        {"cuda_few", moe_cuda::fits_few, moe_cuda::launch_few, GpuLevel::kMma, nullptr, moe_cuda::kFewTakes},
        {"cuda_tiles", moe_cuda::fits_routed, moe_cuda::launch_tiles, GpuLevel::kMma, moe_cuda::prefers_tiles,
         moe_cuda::kRoutedTakes},
        {"cuda_stream", moe_cuda::fits_routed, moe_cuda::launch_stream, GpuLevel::kMma, nullptr,
         moe_cuda::kRoutedTakes},
    }),
    gemm::kTable<MoeArgs, moe_detail::run, moe_detail::reference, fits_bf16, fits_integers>);

void check_experts(std::string_view name, const Weight& gate, const Weight& up, const Weight& down, int64_t experts,
                   int64_t width) {
  QUIRE_CHECK(gate.cols == width && up.cols == width && up.rows == gate.rows && down.cols == gate.rows &&
                  down.rows == width && gate.experts == experts && up.experts == experts && down.experts == experts,
              "moe: {} gate is {} x [{}, {}], up {} x [{}, {}], down {} x [{}, {}] for E = {}, D = {}", name,
              gate.experts, gate.rows, gate.cols, up.experts, up.rows, up.cols, down.experts, down.rows, down.cols,
              experts, width);
}

void check_biases(const MoeArgs& a) {
  if (!a.router_bias.empty()) expect_shape("router_bias", a.router_bias, a.router.rows);
  QUIRE_CHECK(a.gate_bias.empty() == a.up_bias.empty() && a.gate_bias.empty() == a.down_bias.empty(),
              "moe: some of gate, up and down have a bias, and some have none");
  if (a.gate_bias.empty()) return;
  expect_shape("gate_bias", a.gate_bias, a.gate.experts, a.gate.rows);
  expect_shape("up_bias", a.up_bias, a.up.experts, a.up.rows);
  expect_shape("down_bias", a.down_bias, a.down.experts, a.down.rows);
}

void check(const MoeArgs& a) {
  Dim tokens{"T"}, width{"D"};
  expect_shape("h", a.h, tokens, width);
  expect_shape("x", a.x, tokens, width);
  if (!a.router_h.empty()) {
    expect_shape("router_h", a.router_h, tokens, width);
    QUIRE_CHECK(a.router_h.dtype == a.h.dtype && a.shared_router.empty(),
                "moe: router_h is {} and h is {}, with{} a router of the shared expert", dtype_name(a.router_h.dtype),
                dtype_name(a.h.dtype), a.shared_router.empty() ? "out" : "");
  }
  QUIRE_CHECK(a.x.dtype == DType::kF32, "moe: x is f32, not {}", dtype_name(a.x.dtype));
  QUIRE_CHECK(a.router.cols == width, "moe: the router has {} columns, but D = {}", a.router.cols, width.value);
  QUIRE_CHECK(a.top_k >= 1 && a.top_k <= a.router.rows && a.router.rows <= 1 << 14, "moe: top {} of {} experts",
              a.top_k, a.router.rows);
  check_experts("expert", a.gate, a.up, a.down, a.gate.experts, width);
  QUIRE_CHECK(a.first_expert >= 0 && a.gate.experts >= 1 && a.first_expert + a.gate.experts <= a.router.rows,
              "moe: experts {} to {} of {}", a.first_expert, a.first_expert + a.gate.experts - 1, a.router.rows);
  check_biases(a);
  if (!a.shared_gate.empty()) check_experts("shared", a.shared_gate, a.shared_up, a.shared_down, 1, width);
  const ExpertChoice& c = a.choice;
  QUIRE_CHECK(c.groups >= 1 && a.router.rows % c.groups == 0 && c.used_groups >= 1 && c.used_groups <= c.groups &&
                  a.router.rows / c.groups * c.used_groups >= a.top_k,
              "moe: top {} of {} experts in {} of {} groups", a.top_k, a.router.rows, c.used_groups, c.groups);
  if (!c.selection_bias.empty()) expect_shape("selection_bias", c.selection_bias, a.router.rows);
  if (!a.shared_router.empty()) expect_shape("shared_router", a.shared_router, width);
  if (!a.chosen.empty()) expect_shape("chosen", a.chosen, tokens, a.top_k);
}

// The share of experts that so many tokens choose, if they choose independently and any expert as likely as another.
double touched_share(const MoeArgs& a) {
  const double share = static_cast<double>(a.top_k) / static_cast<double>(a.router.rows);
  return 1.0 - std::pow(1.0 - share, static_cast<double>(a.h.dim(0)));
}

Traffic traffic_of(const MoeArgs& a) {
  const int64_t experts =
      a.gate.bytes() + a.up.bytes() + a.down.bytes() + a.gate_bias.bytes() + a.up_bias.bytes() + a.down_bias.bytes();
  const int64_t shared = a.shared_gate.bytes() + a.shared_up.bytes() + a.shared_down.bytes();
  const int64_t expert_params = (a.gate.params() + a.up.params() + a.down.params()) / a.router.rows;
  const int64_t shared_params = a.shared_gate.params() + a.shared_up.params() + a.shared_down.params();
  const int64_t inner = a.top_k * a.gate.rows + a.shared_gate.rows;
  const int64_t results = a.top_k + (a.shared_gate.empty() ? 0 : 1);  // of a token, each weighted and added
  return {.bytes = a.router.bytes() + a.router_bias.bytes() +
                   std::llround(touched_share(a) * static_cast<double>(experts)) + shared + a.shared_router.bytes() +
                   a.choice.selection_bias.bytes() + a.h.bytes() + a.router_h.bytes() +
                   a.x.bytes() * (a.add_to_x ? 2 : 1) + a.chosen.bytes(),
          .flops = a.h.dim(0) * (2 * (a.router.params() + a.top_k * expert_params + shared_params) +
                                 inner * (kSiluFlops + 1) + 2 * results * a.h.dim(1))};
}

std::string describe_args(const MoeArgs& a) {
  const std::string part = a.has_all_experts() ? std::string() : fmt::format(" of which {} are here", a.gate.experts);
  return fmt::format("h {}, top {} of {} experts{}{}{}{}{}, router {}, gate {}, up {}, down {}, shared {}{}",
                     describe(a.h), a.top_k, a.router.rows, part,
                     a.choice.plain() ? "" : " by sigmoids, biases or groups",
                     a.gate_bias.empty() ? "" : " with biases", a.router_h.empty() ? "" : " by rows of their own",
                     activation_note(a.activation), describe(a.router), describe(a.gate), describe(a.up),
                     describe(a.down), describe(a.shared_gate), gemm::note(a.rounded));
}

}  // namespace

constinit const Operator<MoeArgs> kMoeOp{"moe", kKernels, traffic_of, describe_args};

void moe(const OpContext& ctx, const MoeArgs& a) {
  check(a);
  const int64_t tokens = a.h.dim(0);
  if (tokens == 0) return;
  MoeArgs seen = a;
  seen.rounded =
      gemm::rounded_beside({&a.gate, &a.up, &a.down, &a.shared_gate, &a.shared_up, &a.shared_down}, a.rounded);
  const auto run = [&](const MoeArgs& part) { dispatch(kMoeOp, ctx, part); };
  if (ctx.observer == nullptr) return gemm::split_rows(seen, tokens, run);
  Workspace::Scope scope(ctx.workspace);
  if (seen.chosen.empty()) seen.chosen = make_tensor(scope.take<int32_t>(tokens * a.top_k), {tokens, int64_t{a.top_k}});
  gemm::split_rows(seen, tokens, run);
  moe_detail::observe(ctx, seen);
}

MoeArgs MoeArgs::rows(int64_t begin, int64_t count) const {
  MoeArgs a = *this;
  a.h = h.rows(begin, count);
  if (!router_h.empty()) a.router_h = router_h.rows(begin, count);
  a.x = x.rows(begin, count);
  if (!chosen.empty()) a.chosen = chosen.rows(begin, count);
  a.latency_rows = std::clamp<int64_t>(latency_rows - begin, 0, count);
  a.rounded.rows = std::clamp<int64_t>(begin + count - (h.dim(0) - rounded.rows), 0, count);
  return a;
}

}  // namespace quire
