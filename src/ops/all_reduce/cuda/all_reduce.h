// all_reduce (ops/all_reduce/all_reduce.h) on GPUs that read each other's memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/result.h"

namespace quire::cuda {

inline constexpr int64_t kAllReduceColumns = 16384;
inline constexpr int32_t kMostPeers = 8;         // RankLink::kMost
inline constexpr int32_t kMeetingBlocks = 1024;  // blocks of a grid whose ranks meet

// Where a rank's blocks meet those of the others. Block b of every rank raises a flag at each of the others: the number
// of meetings that it has come to. Memory of zeros at first.
struct Meeting {
  int32_t rank = 0, of = 0;              // of = 0: nobody meets
  uint32_t* flags[kMostPeers] = {};      // of each rank, in its memory: [kMostPeers][kMeetingBlocks], by who raises
  uint32_t* meetings = nullptr;          // [kMeetingBlocks], this rank's own: how many each block has come to
  uint32_t* error = nullptr;             // the host's: 1 + the rank that somebody waited for in vain; or 0
  uint64_t patience_ns = 2'000'000'000;  // then a block goes on without the others, and waits for nobody any more
};

// Strides are elements between rows, multiples of 4; D is a multiple of 4, at most kAllReduceColumns; rows of float32
// are aligned to 16 bytes, of bf16 to 8. x [rows, D] f32, weight [D] f32 and h [rows, D] or null.
struct AllReduceParams {
  int64_t rows = 0, D = 0;
  const void* partials[kMostPeers] = {};  // [rows, D], in the memory of any GPU that this one can read
  int32_t count = 0;
  bool partial_bf16 = false;
  int64_t partial_stride = 0;
  float* x = nullptr;
  int64_t x_stride = 0;
  bool add_to_x = true;
  const float* weight = nullptr;
  float eps = 1e-6f;
  void* h = nullptr;
  bool h_bf16 = true;
  int64_t h_stride = 0;
  Meeting meeting;
};
// Enqueues one kernel, which can be captured. Looks at no limit: kernels.h does. Ranks that meet call it with equal
// sizes, on devices with equally many multiprocessors. The result is nonsense where the meeting failed.
Status launch_all_reduce(cudaStream_t stream, const AllReduceParams& params);

}  // namespace quire::cuda
