#include "eval/importance_collector.h"

namespace quire {
namespace {

// sum[c] += x[t][c]^2, tokens in order; threads share the columns.
template <class T, class ToFloat>
void add_squares(const OpContext& ctx, const Tensor& x, ToFloat&& to_float_of, double* sum) {
  const int64_t tokens = x.dim(0);
  ctx.pool.parallel_for(x.dim(1), 256, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* row = x.row<T>(t);
      for (int64_t c = begin; c < end; ++c) {
        const auto v = static_cast<double>(to_float_of(row[c]));
        sum[c] += v * v;
      }
    }
  });
}

}  // namespace

ImportanceCollector::ImportanceCollector(const gguf::File& file) {
  for (const gguf::TensorInfo& t : file.tensors())
    if (t.bytes > 0) names_.emplace(t.data, t.name);
}

ImportanceCollector::Site& ImportanceCollector::site_of(std::span<const Weight* const> weights) {
  const auto [at, is_new] = sites_.try_emplace(weights[0]->data);
  Site& s = at->second;
  if (!is_new) return s;
  for (const Weight* w : weights)
    if (const auto name = names_.find(w->data); name != names_.end()) s.tensors.push_back(name->second);
  s.columns = weights[0]->cols;
  s.sum2.resize(static_cast<size_t>(weights[0]->experts * s.columns));
  s.counts.resize(static_cast<size_t>(weights[0]->experts));
  return s;
}

void ImportanceCollector::inputs(const OpContext& ctx, std::span<const Weight* const> weights, int64_t expert,
                                 const Tensor& x) {
  Site& s = site_of(weights);
  QUIRE_CHECK(s.columns == x.dim(1) && expert < static_cast<int64_t>(s.counts.size()),
              "{} columns of matrix {} for a weight of {} matrices with {}", x.dim(1), expert, s.counts.size(),
              s.columns);
  double* const sum = s.sum2.data() + expert * s.columns;
  if (x.dtype == DType::kF32) {
    add_squares<float>(
        ctx, x, [](float v) { return v; }, sum);
  } else {
    add_squares<bf16>(
        ctx, x, [](bf16 v) { return to_float(v); }, sum);
  }
  s.counts[static_cast<size_t>(expert)] += static_cast<double>(x.dim(0));
}

Status ImportanceCollector::add_to(quant::ImportanceTotals& totals) const {
  for (const auto& [data, s] : sites_)
    for (const std::string_view tensor : s.tensors) QUIRE_CHECKED(totals.add(tensor, s.columns, s.sum2, s.counts));
  return {};
}

}  // namespace quire
