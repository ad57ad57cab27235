#include "ops/rows/rows.h"

#include <algorithm>
#include <cstring>

#include "ops/kernel_table.h"
#include "ops/rows/cuda/kernels.h"
#include "quant/format.h"

namespace quire {
namespace {

// A decoded or copied row costs a few microseconds; pieces of this many elements are worth handing to a
// thread.
constexpr int64_t kPieceElems = 16384;

int64_t rows_per_piece(int64_t row_elems) {
  return std::max<int64_t>(1, kPieceElems / std::max<int64_t>(1, row_elems));
}

int32_t token_of(const EmbedArgs& a, int64_t r) {
  const int32_t source = a.sources.empty() ? -1 : a.sources.as<int32_t>()[r];
  const int32_t token = source < 0 ? a.tokens.as<int32_t>()[r] : std::max(0, a.sampled.as<int32_t>()[source]);
  QUIRE_CHECK(token >= 0 && token < a.table.rows, "token {} of a vocabulary of {}", token, a.table.rows);
  return token;
}

void embed_row(const EmbedArgs& a, int64_t r) {
  float* x = a.x.row<float>(r);
  quant::decode_row(a.table.dtype, a.table.row(token_of(a, r)), a.table.cols, x);
  if (a.table.scale == nullptr) return;
  for (int64_t i = 0; i < a.table.cols; ++i) x[i] *= *a.table.scale;
}

void embed_reference(const OpContext&, const EmbedArgs& a) {
  for (int64_t r = 0; r < a.x.dim(0); ++r) embed_row(a, r);
}

void embed_cpu(const OpContext& ctx, const EmbedArgs& a) {
  ctx.pool.parallel_for(a.x.dim(0), rows_per_piece(a.x.dim(1)), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) embed_row(a, r);
  });
}

void gather_row(const GatherRowsArgs& a, int64_t i) {
  const int32_t row = a.rows.as<int32_t>()[i];
  if (row < 0) return;
  QUIRE_CHECK(row < a.x.dim(0), "row {} of {}", row, a.x.dim(0));
  if (a.add_to_y) {
    const auto* const from = a.x.row<float>(row);
    auto* const to = a.y.row<float>(i);
    for (int64_t d = 0; d < a.x.dim(1); ++d) to[d] += from[d];
    return;
  }
  std::memcpy(a.y.bytes_at(i * a.y.stride[0]), a.x.bytes_at(row * a.x.stride[0]),
              static_cast<size_t>(dtype_bytes(a.x.dtype, a.x.dim(1))));
}

void gather_reference(const OpContext&, const GatherRowsArgs& a) {
  for (int64_t i = 0; i < a.y.dim(0); ++i) gather_row(a, i);
}

void gather_cpu(const OpContext& ctx, const GatherRowsArgs& a) {
  ctx.pool.parallel_for(a.y.dim(0), rows_per_piece(a.y.dim(1)), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) gather_row(a, i);
  });
}

constexpr auto kEmbedKernels = joined(  //
    cuda_rows<EmbedArgs>({
        {"cuda", cuda::embed_fits, cuda::embed, GpuLevel::kMma, nullptr, cuda::kEmbedTakes},
    }),
    kernel_rows<EmbedArgs>({
        {"cpu", fits_always<EmbedArgs>, embed_cpu},
        {"reference", fits_always<EmbedArgs>, embed_reference},
    }));
constexpr auto kGatherRowsKernels = joined(  //
    cuda_rows<GatherRowsArgs>({
        {"cuda", fits_always<GatherRowsArgs>, cuda::gather_rows, GpuLevel::kMma},
    }),
    kernel_rows<GatherRowsArgs>({
        {"cpu", fits_always<GatherRowsArgs>, gather_cpu},
        {"reference", fits_always<GatherRowsArgs>, gather_reference},
    }));

Traffic traffic_of(const EmbedArgs& a) {
  const int64_t rows = a.x.dim(0);
  return {.bytes = rows * a.table.row_bytes() + a.tokens.bytes() + a.sources.bytes() + a.x.bytes(),
          .flops = a.table.scale == nullptr ? 0 : a.x.elems()};
}

Traffic traffic_of(const GatherRowsArgs& a) {
  return {.bytes = (a.add_to_y ? 3 : 2) * a.y.bytes() + a.rows.bytes(), .flops = a.add_to_y ? a.y.elems() : 0};
}

std::string describe_args(const EmbedArgs& a) {
  return fmt::format("table {}, x {}", describe(a.table), describe(a.x));
}
std::string describe_args(const GatherRowsArgs& a) {
  return fmt::format("x {}, {}y {}", describe(a.x), a.add_to_y ? "added to " : "", describe(a.y));
}

}  // namespace

constinit const Operator<EmbedArgs> kEmbedOp{"embed", kEmbedKernels, traffic_of, describe_args};
constinit const Operator<GatherRowsArgs> kGatherRowsOp{"gather_rows", kGatherRowsKernels, traffic_of, describe_args};

void embed(const OpContext& ctx, const EmbedArgs& a) {
  Dim T{"T"}, batch_slots{"batch_slots"};
  expect_shape("tokens", a.tokens, T);
  expect_shape("x", a.x, T, a.table.cols);
  if (!a.sources.empty()) {
    expect_shape("sources", a.sources, T);
    expect_shape("sampled", a.sampled, batch_slots);
  }
  QUIRE_CHECK(a.table.experts == 1, "the table is {} matrices", a.table.experts);
  QUIRE_CHECK(quant::can_decode(a.table.dtype), "a table of {}", dtype_name(a.table.dtype));
  dispatch(kEmbedOp, ctx, a);
}

void gather_rows(const OpContext& ctx, const GatherRowsArgs& a) {
  Dim T{"T"}, D{"D"}, R{"R"};
  expect_shape("x", a.x, T, D);
  expect_shape("rows", a.rows, R);
  expect_shape("y", a.y, R, D);
  QUIRE_CHECK(a.x.dtype == a.y.dtype, "x is {}, y is {}", dtype_name(a.x.dtype), dtype_name(a.y.dtype));
  QUIRE_CHECK(!a.add_to_y || a.x.dtype == DType::kF32, "only f32 is added, not {}", dtype_name(a.x.dtype));
  dispatch(kGatherRowsOp, ctx, a);
}

}  // namespace quire
