// Sampling on CUDA: the operators `sample` and `update_history` (ops/sampling/sampling.h, history.h) over plain device
// pointers. Logits never leave the device and are never sorted.
#pragma once

#include <cuda_runtime_api.h>

#include "core/result.h"
#include "ops/sampling/sample_row.h"

namespace quire::cuda {

// What SampleArgs says, in device memory; R = rows, V = vocab.
//   logits       [R, V] f32, rows `logits_stride` elements apart (a multiple of 4, the pointer 16-byte aligned)
//   rows         [R]
//   bias_ids, bias_values, suppressed, masks, ids, history   as in SampleArgs
//   tokens, logprobs, top_count [R];  top_ids, top_logprobs [R, max_top];  ranks [R], or null if no row has a target;
//   sampled [batch_slots], or null if no row has a batch slot
//
// How it agrees with the CPU: greedy tokens, penalties, biases, top-k, all ties and the draw are the same float32
// arithmetic and give the same tokens. Weights exp((logit - max) / temperature), by which the other filters go, are
// float32 within 1e-6 of the CPU's and summed exactly, as integers of 2^-44 (so in no order at all): a token differs
// only where a filter's limit falls within about 1e-6 of the border between two.
struct SampleParams {
  const float* logits = nullptr;
  int64_t logits_stride = 0;
  int rows = 0, vocab = 0;
  const SampleRow* row = nullptr;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  const int32_t* suppressed = nullptr;
  int32_t suppressed_count = 0;
  const uint32_t* masks = nullptr;
  const int32_t* ids = nullptr;
  TokenHistory history;
  int32_t* tokens = nullptr;
  float* logprobs = nullptr;
  int32_t* top_ids = nullptr;
  float* top_logprobs = nullptr;
  int32_t* top_count = nullptr;
  int32_t* ranks = nullptr;
  int max_top = 0;
  int32_t* sampled = nullptr;
};
inline constexpr int kMaxSampleVocab = 1 << 20, kMaxSampleTop = 1024;

// Two kernels: one reads all logits once (and, of rows with penalties, the history's counts), keeps each 512 logits'
// maximum and sum of weights, and draws for the rows that filter nothing; one picks per row, and reads again only what
// can matter. Bound: one read of the logits.
// Only enqueues; capturable. workspace: sample_workspace_bytes, 16-byte aligned, contents irrelevant.
int64_t sample_workspace_bytes(int rows, int vocab);
Status launch_sample(cudaStream_t stream, const SampleParams& p, void* workspace);

// Adds tokens to histories (UpdateHistoryArgs): tokens [...] i32, ranges [range_count] in device memory. Ranges of one
// call belong to different histories.
struct UpdateHistoryParams {
  const int32_t* tokens = nullptr;
  const HistoryUpdate* ranges = nullptr;
  int range_count = 0;
  TokenHistory history;
};
Status launch_update_history(cudaStream_t stream, const UpdateHistoryParams& p);

}  // namespace quire::cuda
