// How the keys and values of a block of 16 tokens, in shared memory as the cache has them, become operands A of mma:
// keys [16 tokens x 16 columns], values transposed [16 columns x 16 tokens].
#pragma once

#include "core/cuda/tensor_core.cuh"
#include "ops/attention/cuda/layout.h"
#include "ops/attention/cuda/widen.cuh"

namespace quire::cuda::decode {

// A lane's part in it. Addresses repeat with every slab of 64 columns, four steps of 16.
template <int D, KvFormat kFormat>
class BlockOperands;

template <int D>
class BlockOperands<D, KvFormat::kBf16> {
 public:
  __device__ __forceinline__ explicit BlockOperands(int lane) {
    const int row = lane % 16, token = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      key_offset[k] = row * 128 + ((2 * k + lane / 16) ^ (row % 8)) * 16;
      value_offset[k] = kv_head_bytes(KvFormat::kBf16, D) + token * 128 + ((2 * k + lane / 8 % 2) ^ (token % 8)) * 16;
    }
  }

  struct Block {
    uint32_t keys_at[4], values_at[4];

    // Steps [step, step + kCount).
    template <int kCount>
    __device__ __forceinline__ void load_keys(uint32_t (&keys)[kCount][4], int step) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) load_matrices(keys[i], keys_at[(step + i) % 4] + (step + i) / 4 * 2048);
    }
    template <int kCount>
    __device__ __forceinline__ void load_values(uint32_t (&values)[kCount][4], int step) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        load_matrices_transposed(values[i], values_at[(step + i) % 4] + (step + i) / 4 * 2048);
    }
  };
  // Keys at `stage`, values after them.
  __device__ __forceinline__ Block of_block(uint32_t stage, int /*valid*/) const {
    Block b;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      b.keys_at[k] = stage + key_offset[k];
      b.values_at[k] = stage + value_offset[k];
    }
    return b;
  }

 private:
  uint32_t key_offset[4], value_offset[4];
};

// A load brings two steps. The matrices of keys and of values are the same ones.
template <int D>
class BlockOperands<D, KvFormat::kE4m3> {
  static constexpr int kBlockBytes = kv_head_bytes(KvFormat::kE4m3, D), kScalesAt = kBlockTokens * D;

 public:
  __device__ __forceinline__ explicit BlockOperands(int l) : lane(l) {
    const int row = lane % 16;
#pragma unroll
    for (int k = 0; k < 2; ++k) offset[k] = row * 64 + ((2 * k + lane / 16) ^ (row / 2 % 4)) * 16;
  }

  struct Block {
    uint32_t at[2];
    uint32_t key_factors[2];    // of tokens lane / 4 and lane / 4 + 8, each twice
    uint32_t value_factors[2];  // of tokens 2 (lane % 4) and the next, and of those 8 further

    template <int kCount>
    __device__ __forceinline__ void load_keys(uint32_t (&keys)[kCount][4], int step) const {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        uint32_t codes[4];
        load_matrices(codes, at[(step + i) / 2 % 2] + (step + i) / 4 * 1024);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          keys[i + r / 2][r % 2] = widen_even(codes[r], key_factors[r % 2]);
          keys[i + r / 2][r % 2 + 2] = widen_odd(codes[r], key_factors[r % 2]);
        }
      }
    }
    template <int kCount>
    __device__ __forceinline__ void load_values(uint32_t (&values)[kCount][4], int step) const {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        uint32_t codes[4];
        load_matrices_transposed(codes, at[(step + i) / 2 % 2] + (step + i) / 4 * 1024 + kBlockBytes);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          values[i + r / 2][r % 2 * 2] = widen_even(codes[r], value_factors[r % 2]);
          values[i + r / 2][r % 2 * 2 + 1] = widen_odd(codes[r], value_factors[r % 2]);
        }
      }
    }
  };
  // valid: how many tokens there are (or more than 16). The codes of the others are 0, and their scales anything.
  __device__ __forceinline__ Block of_block(uint32_t stage, int valid) const {
    Block b;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      b.at[i] = stage + offset[i];
      const int token = 2 * (lane % 4) + 8 * i;
      uint32_t key, pair;
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(key) : "r"(stage + kScalesAt + lane / 4 + 8 * i) : "memory");
      asm volatile("ld.shared.u16 %0, [%1];" : "=r"(pair) : "r"(stage + kBlockBytes + kScalesAt + token) : "memory");
      b.key_factors[i] = both_halves(widening_factor(key));
      b.value_factors[i] = (token < valid ? widening_factor(pair & 0xff) : 0) |
                           (token + 1 < valid ? widening_factor(pair >> 8) << 16 : 0);
    }
    return b;
  }

 private:
  int lane;
  uint32_t offset[2];
};

}  // namespace quire::cuda::decode
