#include "engine/pooling.h"

#include <cmath>

namespace quire {

void PooledRows::add(std::span<const float> row) {
  sum_.resize(row.size());
  for (size_t i = 0; i < row.size(); ++i) sum_[i] += static_cast<double>(row[i]);
}

std::vector<float> PooledRows::normalised() const {
  double squares = 0.0;
  for (const double x : sum_) squares += x * x;
  const double length = std::sqrt(squares);
  if (!std::isfinite(length) || length == 0.0) return {};
  std::vector<float> v(sum_.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(sum_[i] / length);
  return v;
}

}  // namespace quire
