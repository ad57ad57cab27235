#include "core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace quire {
namespace {

TEST(Tensor, ViewsRowsAndColumns) {
  std::vector<float> data(2 * 3 * 4);
  std::iota(data.begin(), data.end(), 0.0f);
  const Tensor t = make_tensor(data.data(), {2, 3, 4});
  EXPECT_EQ(t.elems(), 24);
  EXPECT_EQ(*t.row<float>(1), 12.0f);
  const Tensor m = t.reshaped({6, 4});
  EXPECT_EQ(*m.row<float>(5), 20.0f);
  const Tensor rows = m.rows(2, 3);
  EXPECT_EQ(rows.dim(0), 3);
  EXPECT_EQ(*rows.row<float>(0), 8.0f);
  const Tensor cols = m.cols(1, 2);
  EXPECT_EQ(cols.dim(1), 2);
  EXPECT_EQ(cols.row<float>(2)[1], 10.0f) << "the row stride stays";
  EXPECT_EQ(cols.rows(1, 1).as<float>()[0], 5.0f);
  EXPECT_TRUE(Tensor{}.empty());
  EXPECT_FALSE(t.empty());
}

TEST(Tensor, LoadsAndStoresActivationsOfEitherType) {
  std::vector<bf16> b(2);
  const Tensor t = make_tensor(b.data(), {2});
  store_float(t, 1, 1.00390625f);  // a tie between 1 and 1 + 2^-7
  EXPECT_EQ(b[1].bits, 0x3f80);
  EXPECT_EQ(load_float(t, 1), 1.0f);
  std::vector<float> f(2);
  const Tensor u = make_tensor(f.data(), {2});
  store_float(u, 0, 1.1f);
  EXPECT_EQ(load_float(u, 0), 1.1f);
}

TEST(TensorDeathTest, ChecksTypesAndShapes) {
  std::vector<float> data(24);
  const Tensor t = make_tensor(data.data(), {6, 4});
  EXPECT_DEATH(t.row<bf16>(0), "tensor is f32");
  EXPECT_DEATH((void)t.reshaped({5, 5}), "cannot reshape");
  EXPECT_DEATH((void)t.cols(0, 2).reshaped({12}), "cannot reshape");
  std::vector<int32_t> ids(4);
  EXPECT_DEATH(load_float(make_tensor(ids.data(), {4}), 0), "activations are f32 or bf16, not i32");
}

TEST(ExpectShape, BindsNamesOnFirstUse) {
  std::vector<float> data(128);
  Dim n{"N"}, d{"D"};
  expect_shape("q", make_tensor(data.data(), {4, 8}), n, d);
  EXPECT_EQ(n, 4);
  EXPECT_EQ(d, 8);
  expect_shape("k", make_tensor(data.data(), {8, 4, 2}), d, n, 2);
}

TEST(ExpectShapeDeathTest, SaysWhatDisagreesWithWhat) {
  std::vector<float> data(128);
  Dim n{"N"}, d{"D"};
  expect_shape("q", make_tensor(data.data(), {4, 8}), n, d);
  EXPECT_DEATH(expect_shape("state", make_tensor(data.data(), {4, 2, 4}), n, 2, d), "state: dim 2 is 4, but D = 8");
  EXPECT_DEATH(expect_shape("q", make_tensor(data.data(), {4, 8}), n, 7), "q: dim 1 is 8, but 7 is required");
  EXPECT_DEATH(expect_shape("q", make_tensor(data.data(), {4, 8}), n), "q: rank is 2, but 1 is required");
}

}  // namespace
}  // namespace quire
