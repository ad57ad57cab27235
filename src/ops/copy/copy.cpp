#include "ops/copy/copy.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

// Bytes that one thread copies at a time: large enough to hide the hand-out, small enough that a single
// recurrent state (2 MB) spreads over the team.
constexpr int64_t kPieceBytes = int64_t{256} << 10;

struct Rows {
  std::byte* base;
  int64_t stride;  // bytes from row to row
  int64_t bytes;   // of one row
  std::byte* at(int32_t slot) const { return base + slot * stride; }
};

Rows rows_of(const Tensor& pool) {
  const int64_t row_elems = pool.dim(0) == 0 ? 0 : pool.elems() / pool.dim(0);
  return {static_cast<std::byte*>(pool.data), dtype_bytes(pool.dtype, pool.stride[0]),
          dtype_bytes(pool.dtype, row_elems)};
}

void reference(const OpContext&, const CopySlotsArgs& a) {
  for (const Tensor& pool : a.pools) {
    const Rows rows = rows_of(pool);
    for (const auto& [src, dst] : a.pairs)
      std::memcpy(rows.at(dst), rows.at(src), static_cast<size_t>(rows.bytes));
  }
}

void cpu(const OpContext& ctx, const CopySlotsArgs& a) {
  for (const Tensor& pool : a.pools) {
    const Rows rows = rows_of(pool);
    const int64_t pieces = (rows.bytes + kPieceBytes - 1) / kPieceBytes;
    ctx.pool.parallel_for(pieces * std::ssize(a.pairs), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto& [src, dst] = a.pairs[static_cast<size_t>(i / pieces)];
        const int64_t from = i % pieces * kPieceBytes, to = std::min(from + kPieceBytes, rows.bytes);
        std::memcpy(rows.at(dst) + from, rows.at(src) + from, static_cast<size_t>(to - from));
      }
    });
  }
}

constexpr Kernel<CopySlotsArgs> kKernels[] = {
    {"cpu", [](const CpuFeatures&, const CopySlotsArgs&) { return true; }, cpu},
    {"reference", [](const CpuFeatures&, const CopySlotsArgs&) { return true; }, reference},
};

}  // namespace

std::span<const Kernel<CopySlotsArgs>> copy_slots_kernels() {
  return kKernels;
}

void copy_slots(const OpContext& ctx, const CopySlotsArgs& a) {
  for (const Tensor& pool : a.pools) {
    QUIRE_CHECK(pool.rank >= 2, "a pool has rank {}, but slots and elements are required", pool.rank);
    for (const auto& [src, dst] : a.pairs)
      QUIRE_CHECK(src >= 0 && dst >= 0 && src < pool.dim(0) && dst < pool.dim(0) && src != dst,
                  "copy of slot {} to {} in a pool of {}", src, dst, pool.dim(0));
  }
  dispatch("copy_slots", copy_slots_kernels(), ctx, a);
}

}  // namespace quire
