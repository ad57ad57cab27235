#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "ops/gemm/reference.h"
#include "ops/moe/kernels.h"

namespace quire::moe_detail {
namespace {

struct ExpertMlp {
  const Weight &gate, &up, &down;
  Tensor gate_bias = {}, up_bias = {}, down_bias = {};  // [E, n], or empty
  GateActivation activation = GateActivation::kSilu;
  RoundedTokens rounded = {};  // of the input of each product
};

double bias_of(const Tensor& bias, int64_t expert, int64_t n) {
  return bias.empty() ? 0.0 : static_cast<double>(bias.row<float>(expert)[n]);
}

// out[i][n] = down gated(gate h_i, up h_i) of one expert in float64, gated(g, u) rounded as h is.
void expert_mlp(const OpContext& ctx, const ExpertMlp& m, int64_t expert, DType rounding,
                const std::vector<const float*>& rows, std::vector<double>& out) {
  const int64_t count = static_cast<int64_t>(rows.size()), inner = m.gate.rows, width = m.down.rows;
  std::vector<double> g(static_cast<size_t>(count * inner));
  std::vector<float> mid(g.size());
  const gemm::TokensBeside of_gate(m.gate, m.rounded, rows.data(), count), of_up(m.up, m.rounded, rows.data(), count);
  gemm::reference_gemm(ctx, m.gate, expert, of_gate.rows(), count, [&](int64_t i, int64_t n, double v) {
    g[static_cast<size_t>(i * inner + n)] = v + bias_of(m.gate_bias, expert, n);
  });
  gemm::reference_gemm(ctx, m.up, expert, of_up.rows(), count, [&](int64_t i, int64_t n, double v) {
    const size_t at = static_cast<size_t>(i * inner + n);
    const float value = static_cast<float>(gated(m.activation, g[at], v + bias_of(m.up_bias, expert, n)));
    mid[at] = rounding == DType::kBF16 ? to_float(to_bf16(value)) : value;
  });
  std::vector<const float*> mids(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) mids[i] = mid.data() + static_cast<int64_t>(i) * inner;
  const gemm::TokensBeside of_down(m.down, m.rounded, mids.data(), count);
  out.assign(static_cast<size_t>(count * width), 0.0);
  gemm::reference_gemm(ctx, m.down, expert, of_down.rows(), count, [&](int64_t i, int64_t n, double v) {
    out[static_cast<size_t>(i * width + n)] = v + bias_of(m.down_bias, expert, n);
  });
}

struct Choice {
  int32_t expert;
  double weight;
};

// The scores of a token's experts; of a softmax over all, or sigmoids.
std::vector<double> scores_of(const ExpertChoice& c, const double* logits, size_t experts) {
  std::vector<double> s(logits, logits + experts);
  if (c.scores == ExpertChoice::Scores::kSigmoid) {
    for (double& x : s) x = 1.0 / (1.0 + std::exp(-x));
    return s;
  }
  const double top = *std::max_element(s.begin(), s.end());
  double sum = 0.0;
  for (double& x : s) sum += x = std::exp(x - top);
  for (double& x : s) x /= sum;
  return s;
}

// Which experts may be chosen: those of the best groups.
std::vector<bool> allowed(const ExpertChoice& c, const std::vector<double>& keys) {
  const size_t size = keys.size() / static_cast<size_t>(c.groups);
  std::vector<std::pair<double, size_t>> groups;
  for (size_t g = 0; g < static_cast<size_t>(c.groups); ++g) {
    std::vector<double> of(keys.begin() + static_cast<int64_t>(g * size),
                           keys.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(of.begin(), of.end(), std::greater<>());
    groups.emplace_back(of[0] + (size > 1 ? of[1] : 0.0), g);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<bool> may(keys.size(), false);
  for (size_t i = 0; i < static_cast<size_t>(c.used_groups); ++i)
    for (size_t e = 0; e < size; ++e) may[groups[i].second * size + e] = true;
  return may;
}

std::vector<Choice> choose(const ExpertChoice& c, const double* logits, int64_t experts, int k) {
  const std::vector<double> scores = scores_of(c, logits, static_cast<size_t>(experts));
  // A softmax is compared by its logits, whose order is the same but for underflow.
  std::vector<double> keys = scores;
  if (c.selection_bias.empty() && c.scores == ExpertChoice::Scores::kSoftmax && c.used_groups == c.groups)
    keys.assign(logits, logits + experts);
  for (size_t e = 0; e < keys.size() && !c.selection_bias.empty(); ++e)
    keys[e] += static_cast<double>(c.selection_bias.as<float>()[e]);
  const std::vector<bool> may = allowed(c, keys);
  std::vector<Choice> p;
  for (size_t e = 0; e < keys.size(); ++e)
    if (may[e]) p.push_back({static_cast<int32_t>(e), scores[e]});
  std::stable_sort(p.begin(), p.end(), [&](const Choice& a, const Choice& b) {
    return keys[static_cast<size_t>(a.expert)] > keys[static_cast<size_t>(b.expert)];
  });
  p.resize(static_cast<size_t>(k));
  double kept = 0.0;
  for (const Choice& x : p) kept += x.weight;
  const double least = c.scores == ExpertChoice::Scores::kSigmoid ? 1e-20 : 0x1p-14;
  for (Choice& x : p) x.weight = x.weight / (c.normalised ? std::max(kept, least) : 1.0) * static_cast<double>(c.scale);
  return p;
}

}  // namespace

void reference(const OpContext& ctx, const MoeArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1), experts = a.router.rows;
  const float* h = gemm::rows_f32(scope, a.h);
  std::vector<const float*> rows(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) rows[static_cast<size_t>(t)] = h + t * width;
  std::vector<const float*> router_rows = rows;
  if (!a.router_h.empty()) {
    const float* const own = gemm::rows_f32(scope, a.router_h);
    for (int64_t t = 0; t < tokens; ++t) router_rows[static_cast<size_t>(t)] = own + t * width;
  }

  std::vector<double> logits(static_cast<size_t>(tokens * experts));
  gemm::reference_gemm(ctx, a.router, 0, router_rows.data(), tokens, [&](int64_t t, int64_t e, double v) {
    logits[static_cast<size_t>(t * experts + e)] = static_cast<double>(
        static_cast<float>(v + (a.router_bias.empty() ? 0.0 : double{a.router_bias.as<float>()[e]})));
  });
  std::vector<std::vector<Choice>> chosen(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    auto& c = chosen[static_cast<size_t>(t)];
    c = choose(a.choice, logits.data() + t * experts, experts, a.top_k);
    if (!a.chosen.empty())
      for (size_t r = 0; r < c.size(); ++r) a.chosen.row<int32_t>(t)[r] = c[r].expert;
  }

  // Every (token, rank) keeps its own result, so that each token adds in the order of its ranks.
  std::vector<double> ranked(static_cast<size_t>(tokens * a.top_k * width));
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<const float*> in;
    std::vector<size_t> slot;
    for (size_t t = 0; t < chosen.size(); ++t)
      for (size_t r = 0; r < chosen[t].size(); ++r)
        if (chosen[t][r].expert == e) {
          in.push_back(rows[t]);
          slot.push_back(t * static_cast<size_t>(a.top_k) + r);
        }
    if (in.empty() || a.here(e) < 0) continue;  // the others' results stay 0
    std::vector<double> out;
    expert_mlp(ctx, {a.gate, a.up, a.down, a.gate_bias, a.up_bias, a.down_bias, a.activation, a.rounded}, a.here(e),
               a.h.dtype, in, out);
    for (size_t i = 0; i < slot.size(); ++i)
      std::copy_n(out.begin() + static_cast<int64_t>(i) * width, width,
                  ranked.begin() + static_cast<int64_t>(slot[i]) * width);
  }
  std::vector<double> shared;
  if (!a.shared_gate.empty())
    expert_mlp(ctx, {a.shared_gate, a.shared_up, a.shared_down, {}, {}, {}, a.activation, a.rounded}, 0, a.h.dtype,
               rows, shared);

  for (int64_t t = 0; t < tokens; ++t) {
    double gate = 1.0;
    if (!a.shared_router.empty())
      gate = 1.0 / (1.0 + std::exp(-gemm::dot_f64(a.shared_router.as<float>(), h + t * width, width)));
    float* x = a.x.row<float>(t);
    for (int64_t d = 0; d < width; ++d) {
      double sum = a.add_to_x ? static_cast<double>(x[d]) : 0.0;
      for (int r = 0; r < a.top_k; ++r)
        sum += chosen[static_cast<size_t>(t)][static_cast<size_t>(r)].weight *
               ranked[static_cast<size_t>((t * a.top_k + r) * width + d)];
      if (!shared.empty()) sum += gate * shared[static_cast<size_t>(t * width + d)];
      x[d] = static_cast<float>(sum);
    }
  }
}

}  // namespace quire::moe_detail
