#include "ops/copy/copy.h"

#include <algorithm>
#include <cstring>

#include "ops/copy/cuda/kernels.h"
#include "ops/kernel_table.h"

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
  const Rows rows = rows_of(a.pool);
  for (int64_t i = 0; i < a.pairs.dim(0); ++i) {
    const int32_t* const pair = a.pairs.row<int32_t>(i);
    if (pair[0] < 0 || pair[1] < 0) continue;
    std::memcpy(rows.at(pair[1]), rows.at(pair[0]), static_cast<size_t>(rows.bytes));
  }
}

void cpu(const OpContext& ctx, const CopySlotsArgs& a) {
  const Rows rows = rows_of(a.pool);
  const int64_t pieces = (rows.bytes + kPieceBytes - 1) / kPieceBytes;
  ctx.pool.parallel_for(pieces * a.pairs.dim(0), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int32_t* const pair = a.pairs.row<int32_t>(i / pieces);
      if (pair[0] < 0 || pair[1] < 0) continue;
      const int64_t from = i % pieces * kPieceBytes, to = std::min(from + kPieceBytes, rows.bytes);
      std::memcpy(rows.at(pair[1]) + from, rows.at(pair[0]) + from, static_cast<size_t>(to - from));
    }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<CopySlotsArgs>({
        {"cuda", cuda::copy_slots_fits, cuda::copy_slots, GpuLevel::kMma, nullptr, cuda::kCopySlotsTakes},
    }),
    kernel_rows<CopySlotsArgs>({
        {"cpu", fits_always<CopySlotsArgs>, cpu},
        {"reference", fits_always<CopySlotsArgs>, reference},
    }));

Traffic traffic_of(const CopySlotsArgs& a) {
  return {.bytes = 2 * a.pairs.dim(0) * rows_of(a.pool).bytes + a.pairs.bytes()};
}

std::string describe_args(const CopySlotsArgs& a) {
  return fmt::format("pool {}, pairs {}", describe(a.pool), describe(a.pairs));
}

}  // namespace

constinit const Operator<CopySlotsArgs> kCopySlotsOp{"copy_slots", kKernels, traffic_of, describe_args};

void copy_slots(const OpContext& ctx, const CopySlotsArgs& a) {
  Dim pairs{"pairs"};
  expect_shape("pairs", a.pairs, pairs, 2);
  QUIRE_CHECK(a.pool.rank >= 2, "the pool has rank {}, but slots and elements are required", a.pool.rank);
  dispatch(kCopySlotsOp, ctx, a);
}

}  // namespace quire
