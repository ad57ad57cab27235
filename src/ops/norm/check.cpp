#include "ops/norm/check.h"

namespace quire::norm {
namespace {

void expect_activation(std::string_view name, const Tensor& t) {
  QUIRE_CHECK(t.dtype == DType::kF32 || t.dtype == DType::kBF16, "{}: is {}, but f32 or bf16 is required", name,
              dtype_name(t.dtype));
  QUIRE_CHECK(t.stride[static_cast<size_t>(t.rank - 1)] == 1, "{}: rows must be contiguous", name);
}

}  // namespace

AddRmsNormSizes check(const AddRmsNormArgs& a) {
  Dim T{"T"}, D{"D"};
  expect_shape("x", a.x, T, D);
  expect_shape("weight", a.weight, D);
  expect_shape("h", a.h, T, D);
  if (!a.add.empty()) {
    expect_shape("add", a.add, T, D);
    expect_activation("add", a.add);
  }
  QUIRE_CHECK(a.x.dtype == DType::kF32 && a.x.stride[1] == 1, "x: must be f32 with contiguous rows");
  QUIRE_CHECK(a.weight.dtype == DType::kF32 && a.weight.stride[0] == 1, "weight: must be f32 and contiguous");
  expect_activation("h", a.h);
  return {T, D};
}

GatedRmsNormSizes check(const GatedRmsNormArgs& a) {
  Dim T{"T"}, Hv{"Hv"}, Dv{"Dv"};
  expect_shape("o", a.o, T, Hv, Dv);
  expect_shape("z", a.z, T, int64_t{Hv * Dv});
  expect_shape("y", a.y, T, int64_t{Hv * Dv});
  expect_shape("weight", a.weight, Dv);
  QUIRE_CHECK(a.o.stride[1] == Dv && a.o.stride[2] == 1, "o: heads must be contiguous within a row");
  QUIRE_CHECK(a.weight.dtype == DType::kF32 && a.weight.stride[0] == 1, "weight: must be f32 and contiguous");
  expect_activation("o", a.o);
  expect_activation("z", a.z);
  expect_activation("y", a.y);
  QUIRE_CHECK(a.z.dtype == a.o.dtype && a.y.dtype == a.o.dtype, "z, y: must have the type of o");
  return {T, Hv, Dv};
}

}  // namespace quire::norm
