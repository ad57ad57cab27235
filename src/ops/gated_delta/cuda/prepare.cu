// A warp makes 16 rows of two neighbouring heads: 16 lanes of 8 channels each. Inputs are read once, 8 rows
// ahead of their use, and the last three stay in registers.
#include "core/cuda/launch.h"
#include "ops/gated_delta/cuda/device.cuh"
#include "ops/gated_delta/cuda/prepare.h"

namespace quire::cuda {
namespace {

constexpr int kD = kDeltaHead;
constexpr int kRows = kGdnPrepareRows;  // of a tile
constexpr int kAhead = 8;               // rows in flight
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kHistory = kDeltaTaps - 1;

struct Channels {
  float x[8];
};

__device__ __forceinline__ Channels unpack(uint4 v) {
  return {{low_bf16(v.x), high_bf16(v.x), low_bf16(v.y), high_bf16(v.y), low_bf16(v.z), high_bf16(v.z), low_bf16(v.w),
           high_bf16(v.w)}};
}

class HeadTile {
 public:
  __device__ HeadTile(const GdnPrepareParams& p, const SegmentTile& tile, int head, bool keeps)
      : p_(p), seg_(tile.segment), first_(tile.first), head_(head), c_(head * kD + lane() * 8), keeps_(keeps) {
    const float4* w = reinterpret_cast<const float4*>(p.weights.conv) + c_;
#pragma unroll
    for (int i = 0; i < 8; ++i) weight_[i] = w[i];
  }

  __device__ void run() {
    load_history();
    const int rows = min(kRows, seg_.count - first_);
    for (int base = 0; base < rows; base += kAhead) {
      uint4 in[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        in[i] = base + i < rows ? *reinterpret_cast<const uint4*>(input(first_ + base + i)) : uint4{};
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (base + i < rows) row(first_ + base + i, in[i]);
    }
    if (first_ == 0 && keeps_) keep_inputs();
  }

 private:
  static __device__ int lane() {
    return static_cast<int>(threadIdx.x) % 16;
  }
  __device__ const __nv_bfloat16* input(int t) const {
    return p_.qkv + static_cast<int64_t>(seg_.row + t) * p_.qkv_stride + c_;
  }
  __device__ uint4* ring(int position) const {
    const int64_t at = position & (p_.slots.ring - 1);
    return reinterpret_cast<uint4*>(of_slot(p_.slots.conv, seg_.state_slot) + at * p_.shape.channels() + c_);
  }

  __device__ void load_history() {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int t = first_ - kHistory + i;
      uint4 x{};
      if (t >= 0)
        x = *reinterpret_cast<const uint4*>(input(t));
      else if (seg_.position + t >= 0)
        x = *ring(seg_.position + t);
      history_[i] = unpack(x);
    }
  }

  // The tile that reads the ring also writes it: any other could write first.
  __device__ void keep_inputs() const {
#pragma unroll
    for (int i = 0; i < kHistory; ++i) {
      const int t = seg_.count - kHistory + i;
      if (t >= 0) *ring(seg_.position + t) = *reinterpret_cast<const uint4*>(input(t));
    }
  }

  __device__ void row(int t, uint4 in) {
    const Channels now = unpack(in);
    float y[8], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float x = weight_[i].x * history_[0].x[i];
      x = fmaf(weight_[i].y, history_[1].x[i], x);
      x = fmaf(weight_[i].z, history_[2].x[i], x);
      y[i] = silu(fmaf(weight_[i].w, now.x[i], x));
      sum = fmaf(y[i], y[i], sum);
    }
    history_[0] = history_[1];
    history_[1] = history_[2];
    history_[2] = now;
    sum = warp_sum<16>(sum);
    const int Hk = p_.shape.Hk;
    const float scale = head_ < 2 * Hk ? 1.0f / sqrtf(sum + 1e-6f) : 1.0f;
    const uint4 out = {pack_bf16(y[0] * scale, y[1] * scale), pack_bf16(y[2] * scale, y[3] * scale),
                       pack_bf16(y[4] * scale, y[5] * scale), pack_bf16(y[6] * scale, y[7] * scale)};
    __nv_bfloat16* to = head_ < Hk ? p_.q : head_ < 2 * Hk ? p_.k : p_.v;
    const int heads = head_ < 2 * Hk ? Hk : p_.shape.Hv, h = head_ < 2 * Hk ? head_ % Hk : head_ - 2 * Hk;
    *reinterpret_cast<uint4*>(to + (static_cast<int64_t>(seg_.row + t) * heads + h) * kD + lane() * 8) = out;
  }

  const GdnPrepareParams& p_;
  const Segment& seg_;
  const int first_, head_, c_;
  const bool keeps_;
  float4 weight_[8];
  Channels history_[kHistory];
};

__device__ void gates(const GdnPrepareParams& p, const SegmentTile& tile) {
  const int rows = min(kRows, tile.segment.count - tile.first), Hv = p.shape.Hv;
  for (int i = static_cast<int>(threadIdx.x); i < rows * Hv; i += kThreads) {
    const int64_t row = tile.segment.row + tile.first + i / Hv;
    const int h = i % Hv;
    p.g[row * Hv + h] = p.weights.ssm_a[h] * softplus(gate_input(p.a, row, h) + p.weights.dt_bias[h]);
    p.beta[row * Hv + h] = sigmoid(gate_input(p.b, row, h));
  }
}

// Blocks x: groups of 8 heads, the last one the gates; y: tiles.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ GdnPrepareParams p) {
  begin_kernel(p);
  const SegmentTile tile = find_tile(p.segments, static_cast<int>(blockIdx.y), kRows);
  if (tile.index < 0) return;
  if (blockIdx.x == gridDim.x - 1) return gates(p, tile);
  const int head = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 16;
  const int last = 2 * p.shape.Hk + p.shape.Hv - 1;
  if (head / 2 * 2 > last) return;
  // Both halves of a warp walk the same rows, so that their sums meet; a half without a head repeats the one
  // beside it, which writes the same values twice.
  HeadTile(p, tile, min(head, last), head <= last).run();
}

}  // namespace

Status launch_gdn_prepare(cudaStream_t stream, const GdnPrepareParams& p) {
  const int prompts = p.segments.count - p.segments.decodes;
  if (prompts <= 0 || p.prompt_rows <= 0) return {};
  const int64_t tiles = int64_t{p.prompt_rows} / kRows + prompts;
  const int heads = 2 * p.shape.Hk + p.shape.Hv, per_block = kThreads / 16;
  const dim3 grid(static_cast<unsigned>((heads + per_block - 1) / per_block + 1), static_cast<unsigned>(tiles));
  return launch(stream, "gdn_prepare", prepare_kernel, grid, kThreads, 0, p);
}

}  // namespace quire::cuda
