// What a rank has of a tensor: a view where it lies in one piece, and a copy otherwise.
#include <algorithm>
#include <cstring>

#include "parts/weight_loader.h"

namespace quire {

std::byte* WeightLoader::take(int64_t bytes) {
  arena_.bytes += bytes;
  return arena_.matrices.emplace_back(static_cast<size_t>(bytes)).data();
}

Result<Weight> WeightLoader::share(const Weight& whole, TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  const TensorShare& s = tensor_share(role);
  if (shard_.is_whole() || whole.empty()) return whole;
  if (s.by_expert && shard_.whole_experts) {
    const ShareRange mine = expert_share(whole.experts, shard_);
    Weight w = whole;
    w.data = whole.row(0, mine.begin);
    w.experts = mine.count;
    if (w.scale != nullptr) w.scale += mine.begin;
    return w;
  }
  if (s.division == Division::kColumns)
    return copy_columns(whole, share_of(spec.cols, whole_, shard_), tensor_name(role, block));
  if (s.division != Division::kRows) return whole;
  const std::vector<ShareRange> rows = share_of(spec.rows, whole_, shard_);
  return rows.size() == 1 ? whole.row_slice(rows[0].begin, rows[0].count) : copy_rows(whole, rows);
}

Weight WeightLoader::copy_rows(const Weight& w, std::span<const ShareRange> rows) {
  Weight mine = w;
  mine.rows = 0;
  for (const ShareRange& r : rows) mine.rows += r.count;
  mine.expert_stride = 0;
  std::byte* to = take(mine.bytes());
  mine.data = to;
  for (int64_t e = 0; e < w.experts; ++e)
    for (const ShareRange& r : rows) {
      const int64_t bytes = r.count * w.row_bytes();
      std::memcpy(to, w.row(r.begin, e), static_cast<size_t>(bytes));
      to += bytes;
    }
  return mine;
}

Result<Weight> WeightLoader::copy_columns(const Weight& w, std::span<const ShareRange> columns,
                                          const std::string& name) {
  const DTypeInfo& type = dtype_info(w.dtype);
  Weight mine = w;
  mine.cols = 0;
  for (const ShareRange& c : columns) {
    for (const int64_t at : {c.begin, c.count})
      if (at % type.block_elems != 0)
        return request_error(
            "tensor {}: {} has blocks of {} columns, and device {} of {} would have {} from column {} on; use fewer "
            "devices, or a file with another type",
            name, type.name, type.block_elems, shard_.rank + 1, shard_.of, c.count, c.begin);
    mine.cols += c.count;
  }
  mine.expert_stride = 0;
  std::byte* to = take(mine.bytes());
  mine.data = to;
  for (int64_t e = 0; e < w.experts; ++e)
    for (int64_t r = 0; r < w.rows; ++r)
      for (const ShareRange& c : columns) {
        const int64_t bytes = dtype_bytes(w.dtype, c.count);
        std::memcpy(to, w.row(r, e) + dtype_bytes(w.dtype, c.begin), static_cast<size_t>(bytes));
        to += bytes;
      }
  return mine;
}

// Rows and columns are the last dimensions; a vector is one row.
Tensor WeightLoader::share(const Tensor& whole, TensorRole role) {
  const TensorSpec& spec = tensor_spec(role);
  const TensorShare& s = tensor_share(role);
  if (shard_.is_whole() || whole.empty()) return whole;
  if (s.by_expert && shard_.whole_experts) {
    const ShareRange mine = expert_share(whole_.experts, shard_);
    return whole.rows(mine.begin, mine.count);
  }
  if (s.division == Division::kWhole || (s.division == Division::kFirst && shard_.rank == 0)) return whole;
  const bool one_row = whole.rank == 1, by_rows = s.division == Division::kRows;
  const int64_t width = whole.dim(whole.rank - 1), height = one_row ? 1 : whole.dim(0);
  std::vector<ShareRange> rows = {{0, height}}, columns = {{0, width}};
  if (by_rows) rows = share_of(spec.rows, whole_, shard_);
  if (s.division == Division::kColumns) columns = share_of(spec.cols, whole_, shard_);
  std::vector<float> values;
  for (const ShareRange& r : rows)
    for (int64_t i = r.begin; i < r.begin + r.count; ++i)
      for (const ShareRange& c : columns) {
        const float* const from = whole.as<float>() + i * width + c.begin;
        values.insert(values.end(), from, from + c.count);
      }
  if (s.division == Division::kFirst) std::fill(values.begin(), values.end(), 0.0f);
  const Tensor mine = keep(std::move(values));
  if (one_row) return mine;
  const int64_t kept_rows = by_rows ? mine.elems() / width : height;
  return mine.reshaped({kept_rows, mine.elems() / kept_rows});
}

}  // namespace quire
