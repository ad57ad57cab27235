// What a warp multiplies by mma.m16n8k16: 16 rows of a packed weight, decoded in registers, by up to 8 kGroups rows of
// x.
#pragma once

#include "core/cuda/tensor_core.cuh"
#include "ops/gemm/cuda/decode.cuh"

namespace quire::gemm {

// Where a lane's row of the i-th group of eight rows of x is, in bytes: rows that follow each other, `pitch` apart.
// Rows past the last are those of another: their results are not used.
struct RowsInOrder {
  int lane, rows, pitch;
  __device__ int operator()(int i) const { return min(8 * i + lane % 8, rows - 1) * pitch; }
};
// A row of one group that is known.
struct OneRow {
  int at;
  __device__ int operator()(int) const { return at; }
};

template <class D, int kGroups, class Rows = RowsInOrder>
class WarpProducts {
 public:
  static constexpr int kBlock = 8 * kGroups;

  // Rows of x lie in shared memory, a multiple of 128 and 16 bytes apart, so that ldmatrix meets no bank twice.
  __device__ WarpProducts(int lane, const Rows& of) : rows(of), lane_(lane) {}

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      for (float& v : sum[i]) v = 0;
  }
  // sum += the products of `tiles` column tiles. A column tile is loaded while the one before it is multiplied.
  __device__ void multiply(uint32_t weights, uint32_t tokens, int tiles) {
    if constexpr (kGroups > 1) {  // no registers for that
      for (int t = 0; t < tiles; ++t) {
        Operands o;
        load(o, weights + t * D::kTileBytes, tokens + t * 128);
        multiply(o);
      }
      return;
    }
    // Two tiles at a time, so that all but the last addition to an address is part of the load.
    Operands o[2];
    load(o[0], weights, tokens);
    for (int left = tiles;; left -= 2) {
      if (left > 1) load(o[1], weights + D::kTileBytes, tokens + 128);
      multiply(o[0]);
      if (left == 1) return;
      weights += 2 * D::kTileBytes, tokens += 256;
      if (left > 2) load(o[0], weights, tokens);
      multiply(o[1]);
      if (left == 2) return;
    }
  }

  // Sums leave for shared memory, where they take kSumFloats, and come back: a float4 of a lane for each eight rows.
  static constexpr int kSumFloats = 128 * kGroups;
  __device__ void put(float* to) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      *reinterpret_cast<float4*>(to + i * 128 + lane_ * 4) = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
  }
  __device__ void get(const float* from) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(from + i * 128 + lane_ * 4);
      sum[i][0] = v.x, sum[i][1] = v.y, sum[i][2] = v.z, sum[i][3] = v.w;
    }
  }
  // sum += other, rounded once each.
  __device__ void add(const float* other) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(other + i * 128 + lane_ * 4);
      sum[i][0] = __fadd_rn(sum[i][0], v.x);
      sum[i][1] = __fadd_rn(sum[i][1], v.y);
      sum[i][2] = __fadd_rn(sum[i][2], v.z);
      sum[i][3] = __fadd_rn(sum[i][3], v.w);
    }
  }

  // [i]: of rows 8 i + lane % 4 * 2 and the next, the weight's row lane / 4, then row lane / 4 + 8.
  float sum[kGroups][4];
  Rows rows;

 private:
  // Of a column tile.
  struct Operands {
    typename D::Regs weights;
    uint32_t tokens[kGroups][2][4];
  };
  __device__ void load(Operands& o, uint32_t weights, uint32_t tokens) const {
    o.weights = D::load(weights, lane_);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const uint32_t row = tokens + rows(i);
      cuda::load_matrices(o.tokens[i][0], row + lane_ / 8 * 16);
      cuda::load_matrices(o.tokens[i][1], row + (4 + lane_ / 8) * 16);
    }
  }
  template <int J, int P>
  __device__ void step(const Operands& o) {
    uint32_t a[4];
    D::template fragment<false, J, P>(o.weights, a);
#pragma unroll
    for (int i = 0; i < kGroups; ++i)
      cuda::mma_bf16(sum[i], a, o.tokens[i][J / 2][J % 2 * 2], o.tokens[i][J / 2][J % 2 * 2 + 1]);
    if constexpr (P + 1 < D::kPlanes) step<J, P + 1>(o);
  }
  __device__ void multiply(const Operands& o) {
    step<0, 0>(o);
    step<1, 0>(o);
    step<2, 0>(o);
    step<3, 0>(o);
  }

  int lane_;
};

}  // namespace quire::gemm
