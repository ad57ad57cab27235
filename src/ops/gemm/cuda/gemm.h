// Products of packed weights with rows of tokens, dense and grouped by experts: what linear, swiglu_mlp and moe launch.
//
//   y[i] = epilogue(scale[e] * W[e] x[i])
//
// The sum over K is float32 accumulators of one segment each (PackedWeight::segment_columns), walked in ascending steps
// of 16 columns by tensor cores, and segments added in ascending order in float32: the same in every kernel here, so a
// row's bits depend on that row alone. Then, each rounded once: times the scale, plus bias, plus the residual.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "core/cuda/limits.h"
#include "core/result.h"
#include "ops/gemm/cuda/packed.h"
#include "ops/gemm/cuda/paths.h"

namespace quire::gemm {

inline constexpr int kMaxParts = 8;

enum class Out : uint8_t {
  kBf16,
  kF32,
  kAddF32,  // y += result
};

// One matrix of a launch. Where it goes:
//   not paired   y[row, n] for n < rows; bias [rows] or null
//   paired       y[row, n] = bf16 of SiLU(g) * u with g = gate, u = up of output n; bias, bias2 theirs
struct GemmPart {
  PackedWeight weight;
  const float* scale = nullptr;   // device [experts], null for 1; of the gate if paired
  const float* scale2 = nullptr;  // of the up matrices
  const float* bias = nullptr;    // device [rows] (dense only), null for 0
  const float* bias2 = nullptr;
  void* y = nullptr;     // device; aligned to its element
  int64_t y_stride = 0;  // elements from row to row
  Out out = Out::kBf16;
};

// Rows sorted by expert. Sorted position i, with offsets[e] <= i < offsets[e + 1], is multiplied by expert e; it reads
// row x_rows[i] of x and writes row y_rows[i] of y. All arrays in device memory; positions from offsets[experts] on
// are not touched. Each row of y at most once.
struct GroupedRows {
  const int32_t* offsets = nullptr;  // [experts + 1]; null: a dense product, all rows for expert 0
  const int32_t* x_rows = nullptr;   // null: i, as tiles need it
  const int32_t* y_rows = nullptr;   // null: i
  int32_t most = 0;                  // host: no expert has more rows; 0 if unknown
};

struct GemmParams {
  const GemmPart* parts = nullptr;   // host; all of the same format, columns, segment and pairedness
  int32_t part_count = 0;            // at most kMaxParts; exactly 1 if grouped
  const __nv_bfloat16* x = nullptr;  // device [*, K], rows aligned to 16 bytes
  int64_t x_stride = 0;              // elements from row to row, a multiple of 8
  int32_t rows = 0;  // dense: rows of x and y. Grouped: bound on offsets[experts], for choosing tiles only
  GroupedRows grouped;
  Path path = Path::kAuto;
  int32_t tile_rows = 0;  // kTile: rows of x in a tile, 0 for choosing; for tests
  // Stores the sum of each segment, [segments()][rows] rows of y, instead of adding them up: for weights with few rows
  // (routers), whose reader adds them, in ascending order, to the bits that it would find otherwise. Dense, one part,
  // no scale or bias, Out::kF32; always the stream kernel.
  bool split = false;
  // Whether the launch has room for sums; without, kAuto neither splits nor deals out.
  bool room = false;
  float* sums = nullptr;  // device: split_floats() of room, aligned to 256 bytes, where there is any
};

// The path that kAuto means for a product: what is expected to be fastest (ops/cuda/card_costs.h). Of kTile rows of x
// that belong together must lie together (GroupedRows::x_rows null).
Path choose_path(const GemmParams& p, const cuda::DeviceLimits& device);

// Whether the product can be computed by p.path. K must be a multiple of 8, and rows of x aligned.
bool takes(const GemmParams& p, const cuda::DeviceLimits& device);

// What `sums` must have room for, in floats: never less for more rows. 0 where neither splitting nor dealing out helps.
int64_t split_floats(const GemmParams& p, const cuda::DeviceLimits& device);

// Enqueues; allocates nothing, waits for nothing. Fault::kBug for what takes() refuses.
Status launch_gemm(cudaStream_t stream, const GemmParams& p);

}  // namespace quire::gemm
