#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/gemm/reference.h"
#include "ops/moe/kernels.h"

namespace quire::moe_detail {
namespace {

// out[i][n] = down (SiLU(gate h_i) * up h_i) of one expert in float64, SiLU(g) * u rounded as h is.
void expert_mlp(const OpContext& ctx, const Weight& gate, const Weight& up, const Weight& down, int64_t expert,
                DType rounding, const std::vector<const float*>& rows, std::vector<double>& out) {
  const int64_t count = static_cast<int64_t>(rows.size()), inner = gate.rows, width = down.rows;
  std::vector<double> g(static_cast<size_t>(count * inner));
  std::vector<float> mid(g.size());
  gemm::reference_gemm(ctx, gate, expert, rows.data(), count,
                       [&](int64_t i, int64_t n, double v) { g[static_cast<size_t>(i * inner + n)] = v; });
  gemm::reference_gemm(ctx, up, expert, rows.data(), count, [&](int64_t i, int64_t n, double v) {
    const size_t at = static_cast<size_t>(i * inner + n);
    const float m = static_cast<float>(g[at] / (1.0 + std::exp(-g[at])) * v);
    mid[at] = rounding == DType::kBF16 ? to_float(to_bf16(m)) : m;
  });
  std::vector<const float*> mids(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) mids[i] = mid.data() + static_cast<int64_t>(i) * inner;
  out.assign(static_cast<size_t>(count * width), 0.0);
  gemm::reference_gemm(ctx, down, expert, mids.data(), count,
                       [&](int64_t i, int64_t n, double v) { out[static_cast<size_t>(i * width + n)] = v; });
}

struct Choice {
  int32_t expert;
  double weight;
};

std::vector<Choice> choose(const double* logits, int64_t experts, int k) {
  std::vector<Choice> p(static_cast<size_t>(experts));
  const double top = *std::max_element(logits, logits + experts);
  double sum = 0.0;
  for (int64_t e = 0; e < experts; ++e) {
    p[static_cast<size_t>(e)] = {static_cast<int32_t>(e), std::exp(logits[e] - top)};
    sum += p[static_cast<size_t>(e)].weight;
  }
  for (Choice& c : p) c.weight /= sum;
  // By logits, whose order is that of the probabilities but for underflow.
  std::stable_sort(p.begin(), p.end(),
                   [&](const Choice& a, const Choice& b) { return logits[a.expert] > logits[b.expert]; });
  p.resize(static_cast<size_t>(k));
  double kept = 0.0;
  for (const Choice& c : p) kept += c.weight;
  for (Choice& c : p) c.weight /= std::max(kept, 0x1p-14);
  return p;
}

}  // namespace

void reference(const OpContext& ctx, const MoeArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1), experts = a.router.rows;
  const float* h = gemm::rows_f32(scope, a.h);
  std::vector<const float*> rows(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) rows[static_cast<size_t>(t)] = h + t * width;

  std::vector<double> logits(static_cast<size_t>(tokens * experts));
  gemm::reference_gemm(ctx, a.router, 0, rows.data(), tokens, [&](int64_t t, int64_t e, double v) {
    logits[static_cast<size_t>(t * experts + e)] = static_cast<double>(static_cast<float>(v));
  });
  std::vector<std::vector<Choice>> chosen(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) {
    auto& c = chosen[static_cast<size_t>(t)];
    c = choose(logits.data() + t * experts, experts, a.top_k);
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
    if (in.empty()) continue;
    std::vector<double> out;
    expert_mlp(ctx, a.gate, a.up, a.down, e, a.h.dtype, in, out);
    for (size_t i = 0; i < slot.size(); ++i)
      std::copy_n(out.begin() + static_cast<int64_t>(i) * width, width,
                  ranked.begin() + static_cast<int64_t>(slot[i]) * width);
  }
  std::vector<double> shared;
  if (!a.shared_gate.empty()) expert_mlp(ctx, a.shared_gate, a.shared_up, a.shared_down, 0, a.h.dtype, rows, shared);

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
