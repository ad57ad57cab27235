// moe on a GPU. The contract is that of ops/moe/moe.h; nothing is read back by the host, whatever the router chooses.
#pragma once

#include "core/cuda/grid_barrier.h"
#include "core/cuda/weight_order.h"
#include "ops/gemm/cuda/gemm.h"

namespace quire::moe_cuda {

// Kernels, each one launch: router; top-k with softmax and counting sort (one kernel up to 8 rows, else two); gate-up
// with SwiGLU; down; combine. Up to 8 rows all after the router is one kernel (few.h), where there is one for the
// formats and a barrier. The shared expert is one more expert of the stacked weights, chosen by every token, where it
// has the experts' format and inner size (gate_up.experts == experts + 1), else two products of its own.
//
// Each (token, expert) result is rounded to bf16 before it is weighted and added in float32: x, then the top-k experts
// in the order of their rank, then the shared one.
inline constexpr int kMaxExperts = 1024, kMaxTopK = 32;

// How what comes after the router is computed. The bits are the same.
enum class Experts : uint8_t {
  kAuto,    // kFew if that is possible, else by how many tokens an expert gets on average
  kFew,     // one kernel (few.h)
  kStream,  // sorted by expert; products as streams,
  kTile,    // or as tiles
};

struct MoeParams {
  const __nv_bfloat16* h = nullptr;  // [rows, D] device, rows aligned to 16 bytes, h_stride a multiple of 8
  int64_t h_stride = 0;
  int32_t rows = 0;
  int32_t experts = 0, top_k = 0;

  gemm::PackedWeight router;            // [E, D]
  const float* router_scale = nullptr;  // device [1] or null for 1
  gemm::PackedWeight gate_up;           // paired, E or E + 1 experts of [Fe, D]
  gemm::PackedWeight down;              // as many experts of [D, Fe]
  const float *gate_scale = nullptr, *up_scale = nullptr,
              *down_scale = nullptr;  // device [experts], null for 1

  gemm::PackedWeight shared_gate_up, shared_down;  // empty: none, or stacked with the others
  const float *shared_gate_scale = nullptr, *shared_up_scale = nullptr, *shared_down_scale = nullptr;
  const float* shared_router = nullptr;  // device [D], aligned to 16 bytes, or null: the shared expert's weight is 1

  float* x = nullptr;  // [rows, D] device: residual stream, added to; rows aligned to 16 bytes
  int64_t x_stride = 0;
  bool add_to_x = true;       // or overwritten, as if it were 0
  int32_t* chosen = nullptr;  // device [rows, top_k] or null: receives the chosen experts in rank order

  std::byte* workspace = nullptr;        // moe_workspace_bytes, aligned to 256 bytes
  cuda::GridBarrier* barrier = nullptr;  // of the stream, or null
  cuda::WeightOrder::Read next;          // what the stream's next product reads, if that is known
  Experts by = Experts::kAuto;
  gemm::Path path = gemm::Path::kAuto;  // of all products, for tests; but for kAuto, kFew is out of the question

  bool shared_stacked() const { return gate_up.experts == experts + 1; }
  bool has_shared() const { return shared_stacked() || !shared_gate_up.empty(); }
};

// Of the shapes alone: pointers are not looked at but for whether a weight is empty.
int64_t moe_workspace_bytes(const MoeParams& p);
// Whether kFew can be, and whether tiles are expected to be faster than streams.
bool few_rows_fit(const MoeParams& p, const cuda::DeviceLimits& device);
bool experts_take_tiles(const MoeParams& p, const cuda::DeviceLimits& device);
// Enqueues. E is at most kMaxExperts, top_k kMaxTopK, and D and Fe are multiples of 8: kernels.h looks at it.
Status launch_moe(cudaStream_t stream, const MoeParams& p);

}  // namespace quire::moe_cuda
