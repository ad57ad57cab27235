#include "ops/all_gather/all_gather.h"

#include <algorithm>
#include <cstring>

#include "ops/all_reduce/meet.h"
#include "ops/kernel_table.h"

namespace quire {
namespace {

// Some microseconds of copying.
constexpr int64_t kPieceElems = 32768;

void copy_row(const AllGatherArgs& a, int64_t t) {
  for (int32_t r = 0; r < a.count; ++r)
    if (const int64_t n = a.columns(r); n > 0)
      std::memcpy(a.y.row<float>(t) + a.begins[static_cast<size_t>(r)],
                  a.parts[static_cast<size_t>(r)].as<float>() + t * n, static_cast<size_t>(n) * sizeof(float));
}

void reference(const OpContext&, const AllGatherArgs& a) {
  for (int64_t t = 0; t < a.y.dim(0); ++t) copy_row(a, t);
}

void cpu(const OpContext& ctx, const AllGatherArgs& a) {
  const int64_t rows = std::max<int64_t>(1, kPieceElems / std::max<int64_t>(1, a.y.dim(1)));
  ctx.pool.parallel_for(a.y.dim(0), rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) copy_row(a, t);
  });
}

constexpr auto kKernels = kernel_rows<AllGatherArgs>({
    {"cpu", fits_always<AllGatherArgs>, cpu},
    {"reference", fits_always<AllGatherArgs>, reference},
});

Traffic traffic_of(const AllGatherArgs& a) {
  return {.bytes = 2 * a.y.bytes(), .flops = 0};
}

std::string describe_args(const AllGatherArgs& a) {
  return fmt::format("of {} ranks, y {}", a.count, describe(a.y));
}

void check(const AllGatherArgs& a) {
  QUIRE_CHECK(a.count >= 1 && a.count <= RankLink::kMost && (a.link == nullptr || a.link->of() == a.count),
              "all_gather: {} ranks, 1 to {} are possible", a.count, RankLink::kMost);
  QUIRE_CHECK(a.y.rank == 2 && a.y.dtype == DType::kF32 && a.begins[0] == 0 &&
                  a.begins[static_cast<size_t>(a.count)] == a.y.dim(1),
              "all_gather: y is {}, and the ranks' columns end at {}", describe(a.y),
              a.begins[static_cast<size_t>(a.count)]);
  for (int32_t r = 0; r < a.count; ++r) {
    QUIRE_CHECK(a.columns(r) >= 0, "all_gather: rank {} has {} columns", r, a.columns(r));
    if ((a.link != nullptr && r != a.link->rank()) || a.columns(r) == 0) continue;
    const Tensor& p = a.parts[static_cast<size_t>(r)];
    expect_shape("part", p, a.y.dim(0), a.columns(r));
    QUIRE_CHECK(p.dtype == DType::kF32 && p.stride[0] == p.dim(1), "all_gather: a part is no contiguous f32");
  }
}

}  // namespace

constinit const Operator<AllGatherArgs> kAllGatherOp{"all_gather", kKernels, traffic_of, describe_args};

void all_gather(const OpContext& ctx, const AllGatherArgs& a) {
  check(a);
  if (a.y.dim(0) == 0) return;
  AllGatherArgs seen = a;
  if (a.link != nullptr) {
    const auto own = static_cast<size_t>(a.link->rank());
    const RankLink::Places places = meet(ctx, *a.link, static_cast<std::byte*>(a.parts[own].data));
    for (int32_t r = 0; r < a.count; ++r) {
      Tensor& part = seen.parts[static_cast<size_t>(r)];
      part = make_tensor(places[static_cast<size_t>(r)], DType::kF32, {a.y.dim(0), a.columns(r)});
    }
  }
  dispatch(kAllGatherOp, ctx, seen);
  if (a.link != nullptr) meet(ctx, *a.link, nullptr);
}

}  // namespace quire
