// Into which K slices products of packed weights are cut: what their bits depend on (docs/kernels-cuda-gemm.md).
#include <gtest/gtest.h>

#include "ops/gemm/cuda/packed.h"

namespace quire::test {
namespace {

using gemm::PackedWeight;

PackedWeight weight(int32_t rows, int32_t cols, bool paired = false, int32_t experts = 1) {
  PackedWeight w;
  w.rows = rows;
  w.cols = cols;
  w.paired = paired;
  w.experts = experts;
  return w;
}

TEST(KSlices, FollowFromTheShape) {
  struct Case {
    PackedWeight w;
    int32_t columns, slices;
  };
  const Case cases[] = {
      {weight(17408, 5120, true), 5120, 1},  // gate and up of a 27B
      {weight(16384, 5120), 5120, 1},
      {weight(12352, 2048), 2048, 1},
      {weight(10240, 2880), 3072, 1},  // whole pieces of 512, for sweeps
      {weight(8192, 28672), 2048, 14},
      {weight(8192, 2048), 2048, 1},
      {weight(5120, 17408), 1024, 17},
      {weight(5120, 6144), 2048, 3},
      {weight(5120, 2880), 1024, 3},
      {weight(4096, 4096), 1024, 4},
      {weight(4096, 1024), 512, 2},
      {weight(2048, 4096), 512, 8},
      {weight(512, 2048), 256, 8},
      {weight(40960, 131072), 131072, 1},
      {weight(512, 131072), 2048, 64},          // no more than 64
      {weight(2880, 2880, true, 32), 2048, 2},  // experts
      {weight(512, 2048, true, 256), 2048, 1},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.w.k_slice_columns(), c.columns) << c.w.rows << " x " << c.w.cols;
    EXPECT_EQ(c.w.k_slices(), c.slices) << c.w.rows << " x " << c.w.cols;
  }
}

}  // namespace
}  // namespace quire::test
