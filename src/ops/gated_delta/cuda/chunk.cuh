// What the two kernels of the chunked form share.
//
// A chunk of 64 tokens, one value head, entering state S [Dk, Dv], c_i = g_1 + ... + g_i:
//     A_ij = beta_i (k_i k_j) e^(c_i - c_j), j < i     P_ij = Dk^(-1/2) (q_i k_j) e^(c_i - c_j), j <= i
//     Z = V - e^c K S          R = (I + A)^-1 beta Z
//     O = Dk^(-1/2) e^c Q S + P R          S <- e^(c_64) S + K^T (e^(c_64 - c) R)
// The first kernel makes P and (I + A)^-1 beta for all chunks at once, the second one walks the chunks of a
// sequence.
#pragma once

#include <cuda_bf16.h>

#include "ops/gated_delta/cuda/chunked.h"
#include "ops/segments.h"

namespace quire::cuda {

inline constexpr int kChunk = kChunkTokens;

// Numbers of each row: e^(c_i), what is left of the entering state; e^(c_64 - c_i), what is left of row i at
// the end; beta.
enum ChunkFactor { kEntry, kExit, kBeta };

// Of a chunk and value head. Blocks of 16 x 16 above the diagonal are not written. Rows beyond the segment's
// tokens have beta 0 and the last row's decay.
struct ChunkData {
  __nv_bfloat16 solve[kChunk][kChunk];    // (I + A)^-1 beta below the diagonal; zeros on it, where it is beta
  __nv_bfloat16 weights[kChunk][kChunk];  // P
  float factors[3][kChunk];
};
static_assert(sizeof(ChunkData) % 16 == 0);

// Whether the 8 columns from 8 * piece are in a block on or below the diagonal.
__device__ __forceinline__ bool lower_piece(int row, int piece) {
  return piece / 2 <= row / 16;
}

Status launch_chunk_products(cudaStream_t stream, const GdnChunkedParams& p, int64_t chunks);
Status launch_chunk_scan(cudaStream_t stream, const GdnChunkedParams& p);

}  // namespace quire::cuda
