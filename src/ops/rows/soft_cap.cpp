// soft_cap: its checks, its reference, and its table of kernels.
#include "ops/rows/soft_cap.h"

#include <algorithm>
#include <cmath>

#include "ops/kernel_table.h"
#include "ops/rows/cuda/kernels.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

// A few microseconds of work. Rows of logits are long: they are cut into pieces.
constexpr int64_t kPieceElems = 16384;

void reference(const OpContext&, const SoftCapArgs& a) {
  const auto cap = static_cast<double>(a.cap);
  for (int64_t t = 0; t < a.x.dim(0); ++t)
    for (int64_t i = 0; i < a.x.dim(1); ++i) {
      float& x = a.x.row<float>(t)[i];
      x = static_cast<float>(cap * std::tanh(static_cast<double>(x) / cap));
    }
}

template <auto Row>
void cpu(const OpContext& ctx, const SoftCapArgs& a) {
  const rows::CappedRows r{.x = a.x.as<float>(), .stride = a.x.stride[0], .width = a.x.dim(1), .cap = a.cap};
  const int64_t pieces = (r.width + kPieceElems - 1) / kPieceElems;
  ctx.pool.parallel_for(a.x.dim(0) * pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * kPieceElems;
      Row(r, i / pieces, first, std::min(first + kPieceElems, r.width));
    }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<SoftCapArgs>({
        {"cuda", cuda::soft_cap_fits, cuda::soft_cap, GpuLevel::kMma, nullptr, cuda::kSoftCapTakes},
    }),
    x86_rows<SoftCapArgs>({
        {"avx512", has_avx512<SoftCapArgs>, cpu<rows::soft_cap_avx512>, CpuLevel::kAvx512},
    }),
    kernel_rows<SoftCapArgs>({
        {kBaseLevel, fits_always<SoftCapArgs>, cpu<rows::soft_cap_avx2>},
        {"reference", fits_always<SoftCapArgs>, reference},
    }));

Traffic traffic_of(const SoftCapArgs& a) {
  return {.bytes = 2 * a.x.bytes(), .flops = a.x.elems() * (kExpFlops + 5)};
}

std::string describe_args(const SoftCapArgs& a) {
  return fmt::format("x {}, cap {}", describe(a.x), a.cap);
}

}  // namespace

constinit const Operator<SoftCapArgs> kSoftCapOp{"soft_cap", kKernels, traffic_of, describe_args};

void soft_cap(const OpContext& ctx, const SoftCapArgs& a) {
  Dim T{"T"}, V{"V"};
  expect_shape("x", a.x, T, V);
  QUIRE_CHECK(a.x.dtype == DType::kF32, "soft_cap: x is f32, not {}", dtype_name(a.x.dtype));
  QUIRE_CHECK(a.cap > 0.0f && std::isfinite(a.cap), "soft_cap: a cap of {}", a.cap);
  if (T == 0) return;
  dispatch(kSoftCapOp, ctx, a);
}

}  // namespace quire
