// One persistent thread block per multiprocessor walks over the (segment, value head) pairs. What a pair
// needs besides reading S0 is a long chain of dependent small steps, which takes longer than the read; so
// warps are specialised:
//
//   two groups of 4 warps take turns in preparing a pair: they start the asynchronous copies of the pending
//   tokens into their half of shared memory, convolve, norm and gate, and form inner products with them;
//   8 warps ask for a pair's S0, wait until it is prepared, and apply it to S0, which they keep in registers:
//   16 value columns a warp, 4 keys a lane.
//
// Tried before, without specialised warps: two blocks per multiprocessor, a pair each, reach 66% of the bandwidth
// at 32 sequences and 79% at 128; the same with S0 of the next pair in flight, 59% and 71%; a cluster of four
// blocks per head, half of that. S0 by way of shared memory, with the next one in flight, is no faster than
// registers alone, and takes 128 KiB.
#include <algorithm>

#include "core/cuda/launch.h"
#include "ops/gated_delta/cuda/decode.h"
#include "ops/gated_delta/cuda/device.cuh"

namespace quire::cuda {
namespace {

constexpr int kD = kDeltaHead;
constexpr float kScale = 0.08838834764831845f;  // Dk^(-1/2)
constexpr int kMainWarps = 8, kGroupWarps = 4, kGroups = 2;
constexpr int kMain = kMainWarps * 32, kGroup = kGroupWarps * 32, kThreads = kMain + kGroups * kGroup;
constexpr int kColumns = kD / kMainWarps;  // value columns of a main warp
constexpr int kRows = kDeltaMaxDecodeRows;

// What a group of preparing warps leaves for the main warps. Followed, for both groups, by the pending tokens: u
// [pending, kD] f32, then k [pending, kD] bf16, by position - anchor.
struct alignas(16) Prepared {
  float q[kRows][kD], k[kRows][kD], v[kRows][kD];
  uint2 z[kRows][32];
  // e^(G_t - G_j) (k_j . k_t), e^(G_t - G_j) (k_j . q_t) of the tokens since the last fold, the row's own included.
  float to_u[kRows][kPendingTokens], to_o[kRows][kPendingTokens];
  float beta[kRows], decay[kRows];  // decay: e^(G_t), what is left of S0
  float g[kDeltaMaxPending];        // log decay of each pending token
};
struct Shared {
  Prepared prepared[kGroups];
  float o[2][kRows][kD];  // by parity of the pair
  float norm[kD];
};
static_assert(sizeof(Shared) % 16 == 0);

// Barriers of the block by number: 1, 2: a group's pair is prepared; 3, 4: its place is free; 5: main warps;
// 6, 7: the group.
__device__ __forceinline__ void wait_prepared(int group) {
  barrier_sync<kMain + kGroup>(1 + group);
}
__device__ __forceinline__ void signal_prepared(int group) {
  barrier_arrive<kMain + kGroup>(1 + group);
}
__device__ __forceinline__ void wait_free(int group) {
  barrier_sync<kMain + kGroup>(3 + group);
}
__device__ __forceinline__ void signal_free(int group) {
  barrier_arrive<kMain + kGroup>(3 + group);
}

// Four channels of the convolution's inputs and their taps.
struct ConvInput {
  uint2 x[kDeltaTaps];
  float4 taps[4];
};

__device__ __forceinline__ float dot(float4 a, float4 b) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x)));
}
__device__ __forceinline__ float4 scaled(float4 x, float f) {
  return {x.x * f, x.y * f, x.z * f, x.w * f};
}
__device__ __forceinline__ int ring_token(const GdnDecodeParams& p, int t) {
  return t % p.slots.pending;
}
// Tokens that S0 contains when the row of token t comes.
__device__ __forceinline__ int folded_before(const Segment& seg, int t) {
  return max(seg.anchor, t / kPendingTokens * kPendingTokens);
}

constexpr int pending_bytes(int pending) {
  return pending * kD * 6;
}
constexpr int64_t shared_bytes(int pending) {
  return static_cast<int64_t>(sizeof(Shared)) + kGroups * pending_bytes(pending);
}
static_assert(shared_bytes(kDeltaMaxPending) <= 99 << 10, "every GPU has that");

// What a main thread has of the state of a slot and head: kColumns times 4 keys, kD apart.
__device__ __forceinline__ float* own_state(const GdnDecodeParams& p, const Segment& seg, int head) {
  return of_slot(p.slots.state, seg.state_slot) + head * (kD * kD) +
         static_cast<int>(threadIdx.x) / 32 * (kColumns * kD) + static_cast<int>(threadIdx.x) % 32 * 4;
}

// The work of a group of warps on one pair.
struct Preparing {
  const GdnDecodeParams& p;
  const Segment seg;
  const int head;
  Prepared& sh;
  float* const u;
  __nv_bfloat16* const keys;
  const int group;
  const int thread = (static_cast<int>(threadIdx.x) - kMain) % kGroup, warp = thread / 32, lane = thread % 32;
  const int key_head = key_head_of(p.shape, head);
  const bool owner = owns_key_head(p.shape, head);  // writes what belongs to the key head

  __device__ void stage_pending() const {
    constexpr int kPiecesK = kD * 2 / 16;
    static_assert(kD * 4 / 16 == 32 && kPiecesK == 16);
    const int tokens = seg.position - seg.anchor;
    const __nv_bfloat16* from_k = of_slot(p.slots.pending_k, seg.state_slot) + key_head * kD;
    const float* from_u = of_slot(p.slots.pending_u, seg.state_slot) + head * kD;
    const float* from_g = of_slot(p.slots.pending_g, seg.state_slot) + head;
    for (int token = warp; token < tokens; token += kGroupWarps) {
      const int64_t at = ring_token(p, seg.anchor + token);
      copy_async(u + token * kD + lane * 4, from_u + at * p.shape.Hv * kD + lane * 4);
      if (lane < kPiecesK)
        copy_async(keys + token * kD + lane * 8, from_k + at * p.shape.Hk * kD + lane * 8);
      else if (lane == kPiecesK)
        copy_async_4(&sh.g[token], from_g + at * p.shape.Hv);
    }
  }
  __device__ void stage_gates() const {
    if (p.norm_weight == nullptr) return;
    for (int row = warp; row < seg.count; row += kGroupWarps)
      copy_async_8(&sh.z[row][lane], p.z + (seg.row + row) * p.z_stride + head * kD + lane * 4);
  }

  // A task is a row and what to convolve: 0 q, 1 k, 2 v.
  __device__ int task_channel(int task) const {
    const int part = task % 3;
    const int first = part == 0 ? key_head : part == 1 ? p.shape.Hk + key_head : 2 * p.shape.Hk + head;
    return first * kD + lane * 4;
  }
  __device__ __nv_bfloat16* conv_ring(int t, int c) const {
    return of_slot(p.slots.conv, seg.state_slot) + static_cast<int64_t>(t & (p.slots.ring - 1)) * p.shape.channels() +
           c;
  }
  // What earlier steps left, and the taps.
  __device__ void load_past(int task, ConvInput& in) const {
    const int t = seg.position + task / 3, c = task_channel(task);
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i) {
      const int at = t - (kDeltaTaps - 1) + i;
      if (at >= seg.position) break;
      in.x[i] = at < 0 ? make_uint2(0, 0) : *reinterpret_cast<const uint2*>(conv_ring(at, c));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) in.taps[i] = reinterpret_cast<const float4*>(p.weights.conv)[c + i];
  }
  // What this step's projections computed.
  __device__ void load_rows(int task, ConvInput& in) const {
    const int t = seg.position + task / 3, c = task_channel(task);
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i) {
      const int row = t - (kDeltaTaps - 1) + i - seg.position;
      if (row < 0) continue;
      in.x[i] = *reinterpret_cast<const uint2*>(p.qkv + static_cast<int64_t>(seg.row + row) * p.qkv_stride + c);
    }
  }
  __device__ void finish_task(int task, const ConvInput& in) const {
    const int row = task / 3, part = task % 3, t = seg.position + row;
    if (part == 2 || owner) *reinterpret_cast<uint2*>(conv_ring(t, task_channel(task))) = in.x[kDeltaTaps - 1];
    float y[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < kDeltaTaps; ++i) {
      const float4 x = unpack_bf16(in.x[i]);
      const auto tap = [&](const float4& w) { return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w; };
      y[0] = fmaf(tap(in.taps[0]), x.x, y[0]);
      y[1] = fmaf(tap(in.taps[1]), x.y, y[1]);
      y[2] = fmaf(tap(in.taps[2]), x.z, y[2]);
      y[3] = fmaf(tap(in.taps[3]), x.w, y[3]);
    }
    float4 x = {silu(y[0]), silu(y[1]), silu(y[2]), silu(y[3])};
    if (part == 2) {
      reinterpret_cast<float4*>(sh.v[row])[lane] = x;
      return;
    }
    x = scaled(x, rsqrtf(warp_sum(dot(x, x)) + 1e-6f));
    if (part == 0) {
      reinterpret_cast<float4*>(sh.q[row])[lane] = x;
      return;
    }
    const uint2 rounded = {pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    reinterpret_cast<float4*>(sh.k[row])[lane] = unpack_bf16(rounded);
    reinterpret_cast<uint2*>(keys + (t - seg.anchor) * kD)[lane] = rounded;
    if (owner)
      reinterpret_cast<uint2*>(of_slot(p.slots.pending_k, seg.state_slot) +
                               (static_cast<int64_t>(ring_token(p, t)) * p.shape.Hk + key_head) * kD)[lane] = rounded;
  }
  __device__ void gates(int row, float a, float b, float ssm_a, float dt_bias) const {
    const int t = seg.position + row;
    const float g = ssm_a * softplus(a + dt_bias);
    sh.beta[row] = sigmoid(b);
    sh.g[t - seg.anchor] = g;
    of_slot(p.slots.pending_g, seg.state_slot)[static_cast<int64_t>(ring_token(p, t)) * p.shape.Hv + head] = g;
  }

  // Inner products of a row's token with the tokens since the last fold, itself included, and what decayed
  // since each.
  __device__ void weigh_pending(int row) const {
    constexpr int kEach = kPendingTokens / kGroupWarps;
    const int t = seg.position + row, folded = folded_before(seg, t);
    const int n = t - folded, base = folded - seg.anchor;  // token t is number n
    const float4 k = reinterpret_cast<const float4*>(sh.k[row])[lane];
    const float4 q = reinterpret_cast<const float4*>(sh.q[row])[lane];
    const float g = lane <= n ? sh.g[base + min(lane, n)] : 0.0f;
    if (warp == 0) {
      const float whole = warp_sum(g);
      if (lane == 0) sh.decay[row] = __expf(whole);
    }
    float kk[kEach], kq[kEach], decay[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = min(warp + i * kGroupWarps, n);
      const float4 other = unpack_bf16(reinterpret_cast<const uint2*>(keys + (base + j) * kD)[lane]);
      kk[i] = dot(other, k);
      kq[i] = dot(other, q);
      decay[i] = lane > j ? g : 0.0f;
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        kk[i] += __shfl_xor_sync(kAllLanes, kk[i], mask);
        kq[i] += __shfl_xor_sync(kAllLanes, kq[i], mask);
        decay[i] += __shfl_xor_sync(kAllLanes, decay[i], mask);
      }
    }
    if (lane != 0) return;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int j = warp + i * kGroupWarps;
      if (j > n) break;
      const float left = __expf(decay[i]);
      sh.to_u[row][j] = left * kk[i];
      sh.to_o[row][j] = left * kq[i];
    }
  }

  __device__ void run() const {
    const int tasks = seg.count * 3;
    ConvInput in;
    const bool has_task = warp < tasks, has_row = warp == kGroupWarps - 1 && lane < seg.count;
    float a = 0.0f, b = 0.0f, ssm_a = 0.0f, dt_bias = 0.0f;
    if (!p.states_at_rest) wait_for_previous_kernels();
    if (has_task) load_past(warp, in);
    if (has_row) ssm_a = p.weights.ssm_a[head], dt_bias = p.weights.dt_bias[head];
    stage_pending();
    wait_for_previous_kernels();
    if (has_row) a = gate_input(p.a, seg.row + lane, head), b = gate_input(p.b, seg.row + lane, head);
    if (has_task) load_rows(warp, in);
    stage_gates();
    copy_commit();
    if (has_row) gates(lane, a, b, ssm_a, dt_bias);
    if (has_task) finish_task(warp, in);
#pragma unroll 1
    for (int task = warp + kGroupWarps; task < tasks; task += kGroupWarps) {
      load_past(task, in);
      load_rows(task, in);
      finish_task(task, in);
    }
    copy_wait<0>();
    barrier_sync<kGroup>(6 + group);
#pragma unroll 1
    for (int row = 0; row < seg.count; ++row) weigh_pending(row);
    // Arriving alone would order the writes too, but the race checker does not follow single lanes' writes
    // across it.
    barrier_sync<kGroup>(6 + group);
  }
};

// The work of the main warps on one pair.
struct Applying {
  const GdnDecodeParams& p;
  const Segment seg;
  const int head;
  Prepared& sh;
  float* const u;
  const __nv_bfloat16* const keys;
  float (*const o)[kD];
  const float* norm;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int commit = anchor_after_decode(seg);

  // One step of a tree over the lanes that adds up 2 kValues numbers at once: each lane keeps half of them.
  template <int kValues>
  __device__ void transpose_sum(float* x) const {
    const bool upper = (lane & kValues) != 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float send = upper ? x[i] : x[i + kValues], keep = upper ? x[i + kValues] : x[i];
      x[i] = keep + __shfl_xor_sync(kAllLanes, send, kValues);
    }
    if constexpr (kValues > 1) transpose_sum<kValues / 2>(x);
  }

  // S0 k of the warp's 16 columns, in lanes 0-15; S0 q, in lanes 16-31.
  __device__ float state_products(const float4* s, int row) const {
    const float4 k = reinterpret_cast<const float4*>(sh.k[row])[lane];
    const float4 q = reinterpret_cast<const float4*>(sh.q[row])[lane];
    float x[2 * kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      x[i] = dot(s[i], k);
      x[kColumns + i] = dot(s[i], q);
    }
    transpose_sum<kColumns>(x);
    return x[0];
  }

  // u_t and o_t of the warp's columns.
  __device__ void recur(const float4* s, int row) const {
    const int t = seg.position + row, folded = folded_before(seg, t), n = t - folded;
    const bool side_q = lane >= 16;
    const int column = warp * kColumns + lane % 16;
    const float product = state_products(s, row);
    const float* weight = side_q ? sh.to_o[row] : sh.to_u[row];
    const float* old = u + (folded - seg.anchor) * kD + column;
    float sum = 0.0f;
#pragma unroll 4
    for (int j = 0; j < n; ++j) sum = fmaf(weight[j], old[j * kD], sum);
    const float value = fmaf(sh.decay[row], product, sum);
    const float change = sh.beta[row] * (sh.v[row][column] - value);  // u_t, in the lanes of k
    const float change_q = __shfl_xor_sync(kAllLanes, change, 16);
    if (side_q) {
      o[row][column] = fmaf(weight[n], change_q, value) * kScale;
    } else {
      u[(t - seg.anchor) * kD + column] = change;
      of_slot(p.slots.pending_u,
              seg.state_slot)[(static_cast<int64_t>(ring_token(p, t)) * p.shape.Hv + head) * kD + column] = change;
    }
    __syncwarp();  // the next row reads u
  }

  // Folds the tokens [folded, to) into s; at most 16. Stores it where no token is tentative.
  __device__ void fold(float4* s, int folded, int to) const {
    const int n = to - folded, base = folded - seg.anchor;
    float after = lane < n ? sh.g[base + lane] : 0.0f;  // log decay of token `lane` and all later ones
#pragma unroll
    for (int step = 1; step < kPendingTokens; step *= 2) {
      const float other = __shfl_down_sync(kAllLanes, after, step);
      after += lane + step < 32 ? other : 0.0f;
    }
    const float whole = __expf(__shfl_sync(kAllLanes, after, 0));
    const float left = __expf(__shfl_down_sync(kAllLanes, after, 1));
#pragma unroll
    for (int i = 0; i < kColumns; ++i) s[i] = scaled(s[i], whole);
#pragma unroll 1
    for (int j = 0; j < n; ++j) {
      const float4 k = unpack_bf16(reinterpret_cast<const uint2*>(keys + (base + j) * kD)[lane]);
      const float weight = __shfl_sync(kAllLanes, left, j);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float x = weight * u[(base + j) * kD + warp * kColumns + i];
        s[i] = {fmaf(x, k.x, s[i].x), fmaf(x, k.y, s[i].y), fmaf(x, k.z, s[i].z), fmaf(x, k.w, s[i].w)};
      }
    }
    if (to > commit) return;
    float* slot = own_state(p, seg, head);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) *reinterpret_cast<float4*>(slot + i * kD) = s[i];
  }

  // Gated norm of one row by one warp, four columns per lane.
  __device__ void write_row(int row) const {
    float4 y = reinterpret_cast<const float4*>(o[row])[lane];
    if (p.norm_weight != nullptr) {
      y = scaled(y, rsqrtf(warp_sum(dot(y, y)) * (1.0f / kD) + p.eps));
      const float4 gate = unpack_bf16(sh.z[row][lane]), weight = reinterpret_cast<const float4*>(norm)[lane];
      y = {y.x * weight.x * silu(gate.x), y.y * weight.y * silu(gate.y), y.z * weight.z * silu(gate.z),
           y.w * weight.w * silu(gate.w)};
    }
    *reinterpret_cast<uint2*>(p.y + (seg.row + row) * p.y_stride + head * kD + lane * 4) = {pack_bf16(y.x, y.y),
                                                                                            pack_bf16(y.z, y.w)};
  }

  // s: S0, or what it was folded to; keys 4 lane .. 4 lane + 3.
  __device__ void run(float4 (&s)[kColumns]) const {
    int folded = seg.anchor;
    const auto fold_until = [&](int t) {
      while (folded / kPendingTokens < t / kPendingTokens) {
        const int to = (folded / kPendingTokens + 1) * kPendingTokens;
        fold(s, folded, to);
        folded = to;
      }
    };
#pragma unroll 1
    for (int row = 0; row < seg.count; ++row) {
      fold_until(seg.position + row);
      recur(s, row);
    }
    barrier_sync<kMain>(5);
    if (warp < seg.count) write_row(warp);
    fold_until(commit);
  }
};

__device__ void check_segment(const Segment& seg, const DeltaSlots& slots) {
  const bool fits = seg.anchor >= 0 && seg.position >= seg.anchor && seg.state_slot >= 0 && seg.tentative >= 0 &&
                    seg.position + seg.count - seg.anchor <= slots.pending && seg.count <= kRows &&
                    seg.count + kDeltaTaps - 1 <= slots.ring;
  if (!fits) __trap();
}

__global__ void __launch_bounds__(kThreads, 1) decode_kernel(const __grid_constant__ GdnDecodeParams p) {
  let_next_kernel_start();
  extern __shared__ float4 memory[];
  Shared& sh = *reinterpret_cast<Shared*>(memory);
  const int units = p.segments.decodes * p.shape.Hv;
  char* const behind = reinterpret_cast<char*>(memory) + sizeof(Shared);
  const auto pending_u = [&](int group) {
    return reinterpret_cast<float*>(behind + group * pending_bytes(p.slots.pending));
  };
  const auto pending_k = [&](int group) {
    return reinterpret_cast<__nv_bfloat16*>(pending_u(group) + p.slots.pending * kD);
  };
  const int stride = static_cast<int>(gridDim.x);
  if (threadIdx.x < kMain) {
    if (p.norm_weight != nullptr && threadIdx.x < kD) sh.norm[threadIdx.x] = p.norm_weight[threadIdx.x];
    if (!p.states_at_rest) wait_for_previous_kernels();
    int group = 0;
    for (int unit = static_cast<int>(blockIdx.x); unit < units; unit += stride, group ^= 1) {
      Prepared& prepared = sh.prepared[group];
      const Segment seg = p.segments.data[unit / p.shape.Hv];
      const int head = unit % p.shape.Hv;
      // The S0 of a sequence without folded tokens is zero, whatever its slot holds: it is not read.
      const bool folded = seg.count > 0 && seg.anchor > 0;
      const float* from = own_state(p, seg, head);
      float4 s[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i)
        s[i] = folded ? *reinterpret_cast<const float4*>(from + i * kD) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      wait_for_previous_kernels();
      wait_prepared(group);
      if (seg.count > 0)
        Applying{p, seg, head, prepared, pending_u(group), pending_k(group), sh.o[group], sh.norm}.run(s);
      if (unit + 2 * stride < units) signal_free(group);
    }
    return;
  }
  const int group = (static_cast<int>(threadIdx.x) - kMain) / kGroup;
  for (int unit = static_cast<int>(blockIdx.x) + group * stride; unit < units; unit += 2 * stride) {
    const Segment seg = p.segments.data[unit / p.shape.Hv];
    if (unit >= 2 * stride) wait_free(group);
    if (seg.count > 0) {
      check_segment(seg, p.slots);
      Preparing{p, seg, unit % p.shape.Hv, sh.prepared[group], pending_u(group), pending_k(group), group}.run();
    }
    signal_prepared(group);
  }
  wait_for_previous_kernels();  // also where all segments are padding
}

}  // namespace

Status launch_gdn_decode(cudaStream_t stream, const GdnDecodeParams& p) {
  if (p.segments.decodes <= 0) return {};
  const int64_t units = int64_t{p.segments.decodes} * p.shape.Hv;
  QUIRE_TRY(const DeviceLimits device, device_limits());
  return launch(stream, "gdn_decode", decode_kernel,
                dim3(static_cast<unsigned>(std::min<int64_t>(units, device.multiprocessors))), kThreads,
                shared_bytes(p.slots.pending), p);
}

}  // namespace quire::cuda
