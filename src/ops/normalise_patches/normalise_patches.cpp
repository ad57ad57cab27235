// normalise_patches: its checks, its reference, and the table of its kernels.
#include "ops/normalise_patches/normalise_patches.h"

#include <algorithm>
#include <array>

#include "ops/kernel_table.h"
#include "ops/normalise_patches/cuda/kernels.h"

namespace quire {
namespace {

constexpr int64_t kGrain = 8;  // rows per piece of work

void check(const NormalisePatchesArgs& a) {
  Dim rows{"T"}, bytes{"V"}, columns{"D"};
  expect_shape("x", a.x, rows, bytes);
  expect_shape("table", a.table, 3, 256);
  expect_shape("y", a.y, rows, columns);
  QUIRE_CHECK(a.x.dtype == DType::kI8 && a.x.stride[1] == 1, "x: must be i8 with contiguous rows");
  QUIRE_CHECK(a.table.dtype == DType::kF32 && a.table.stride[0] == 256 && a.table.stride[1] == 1,
              "table: must be f32 and contiguous");
  QUIRE_CHECK((a.y.dtype == DType::kF32 || a.y.dtype == DType::kBF16) && a.y.stride[1] == 1,
              "y: must be f32 or bf16 with contiguous rows");
  QUIRE_CHECK(a.run >= 1 && bytes.value % (3 * a.run) == 0, "V = {} is no multiple of three runs of {}", bytes.value,
              a.run);
  QUIRE_CHECK(a.frames >= 1 && columns.value >= a.frames * bytes.value, "D = {} has no room for {} frames of {}",
              columns.value, a.frames, bytes.value);
}

const uint8_t* bytes_of(const NormalisePatchesArgs& a, int64_t row) {
  return reinterpret_cast<const uint8_t*>(a.x.bytes_at(row * a.x.stride[0]));
}

// The table in y's type: each number is rounded once.
template <class T>
std::array<T, 3 * 256> rounded(const Tensor& table) {
  std::array<T, 3 * 256> t;
  for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<T>(to_bf16(table.as<float>()[i]));
  return t;
}
template <>
std::array<float, 3 * 256> rounded<float>(const Tensor& table) {
  std::array<float, 3 * 256> t;
  std::copy_n(table.as<float>(), t.size(), t.begin());
  return t;
}

template <class T>
void write_row(const NormalisePatchesArgs& a, const std::array<T, 3 * 256>& table, int64_t row) {
  const uint8_t* const x = bytes_of(a, row);
  T* y = a.y.row<T>(row);
  T* const end = y + a.y.dim(1);
  for (int64_t at = 0, colour = 0; at < a.x.dim(1); at += a.run, colour = (colour + 1) % 3) {
    const T* const numbers = table.data() + 256 * colour;
    T* const first = y;
    for (int64_t i = 0; i < a.run; ++i) *y++ = numbers[x[at + i]];
    for (int64_t frame = 1; frame < a.frames; ++frame) y = std::copy_n(first, a.run, y);
  }
  std::fill(y, end, T{});
}

template <class T>
void run_as(const OpContext& ctx, const NormalisePatchesArgs& a) {
  const auto table = rounded<T>(a.table);
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) write_row<T>(a, table, row);
  });
}

void cpu(const OpContext& ctx, const NormalisePatchesArgs& a) {
  check(a);
  a.y.dtype == DType::kF32 ? run_as<float>(ctx, a) : run_as<bf16>(ctx, a);
}

// Element by element, as the contract says it.
void reference(const OpContext& ctx, const NormalisePatchesArgs& a) {
  check(a);
  ctx.pool.parallel_for(a.x.dim(0), kGrain, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i < a.y.dim(1); ++i) {
        const int64_t run = i / (a.run * a.frames), pixel = i % a.run;
        const int64_t from = run * a.run + pixel;
        const bool is_pixel = from < a.x.dim(1);
        const float value = is_pixel ? a.table.as<float>()[run % 3 * 256 + bytes_of(a, row)[from]] : 0.0f;
        store_float(a.y, row * a.y.stride[0] + i, value);
      }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<NormalisePatchesArgs>({
        {"cuda", cuda::normalise_patches_fits, cuda::normalise_patches, GpuLevel::kMma, nullptr,
         cuda::kNormalisePatchesTakes},
    }),
    kernel_rows<NormalisePatchesArgs>({
        {"cpu", fits_always<NormalisePatchesArgs>, cpu},
        {"reference", fits_always<NormalisePatchesArgs>, reference},
    }));

Traffic traffic_of(const NormalisePatchesArgs& a) {
  return {.bytes = a.x.bytes() + a.table.bytes() + a.y.bytes(), .flops = 0};
}

std::string describe_args(const NormalisePatchesArgs& a) {
  return fmt::format("x {} in runs of {}, {} frames, y {}", describe(a.x), a.run, a.frames, describe(a.y));
}

}  // namespace

constinit const Operator<NormalisePatchesArgs> kNormalisePatchesOp{"normalise_patches", kKernels, traffic_of,
                                                                   describe_args};

void normalise_patches(const OpContext& ctx, const NormalisePatchesArgs& a) {
  dispatch(kNormalisePatchesOp, ctx, a);
}

}  // namespace quire
