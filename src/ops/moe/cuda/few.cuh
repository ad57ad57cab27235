// The kernel of few.h. Every block
//   1. chooses experts for all rows, which takes no longer than waiting for another block to do it, and sorts them;
//   2. multiplies its share of the (expert, row tile) pairs of gate and up, and writes SwiGLU of them;
//   3. waits for the others, while the weights of its row tiles of down arrive;
//   4. multiplies these for all experts, and adds them to the residual stream in the order of their rank.
// Weights stream through a ring of each warp, across the phases. Sums are those of the kernels of ops/gemm: bit for
// bit.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/cuda/cooperative.h"
#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/grid_barrier.cuh"
#include "core/cuda/launch.h"
#include "core/cuda/prefetch.cuh"
#include "ops/gemm/cuda/copy.cuh"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/warp_products.cuh"
#include "ops/moe/cuda/few_plan.cuh"
#include "ops/moe/cuda/routing.cuh"

namespace quire::moe_cuda {

// By one warp, for a token with these keys.
template <int kPerLane>
__device__ inline void choose_of(const Routing& r, const Routes& to, const uint32_t* keys, int32_t token) {
  const int lane = threadIdx.x % 32;
  uint32_t left[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) left[i] = i * 32 + lane < r.experts ? keys[i * 32 + lane] : 0;
  int32_t* const chosen =
      r.chosen == nullptr || blockIdx.x > 0 ? nullptr : r.chosen + static_cast<int64_t>(token) * r.top_k;
  const int e = choose_experts(r, left, lane, to.choice + token * r.top_k, to.weights + token * r.results, chosen);
  if (lane < r.top_k) atomicOr(to.present + e / 32, 1u << (e % 32));
}
// By all threads, after `present` was cleared; synchronises. `keys`: room for [rows][experts].
__device__ inline void choose(const Routing& r, const Routes& to, uint32_t* keys) {
  const auto own = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
#pragma unroll 2
  for (int32_t i = own; i < r.rows * r.experts; i += threads) keys[i] = routing_key(r, i / r.experts, i % r.experts);
  __syncthreads();
  for (int32_t t = own / 32; t < r.rows; t += threads / 32) {
    if (r.experts <= kFewExperts / 2)
      choose_of<kFewExperts / 64>(r, to, keys + t * r.experts, t);
    else
      choose_of<kFewExperts / 32>(r, to, keys + t * r.experts, t);
  }
  __syncthreads();
}
// What nobody waits for before the end, by the warps that have the least to do.
__device__ inline void weigh_shared(const Routing& r, const Routes& to) {
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int32_t t = warps - 1 - static_cast<int>(threadIdx.x) / 32; t < r.rows; t += warps)
    weigh_shared(r, t, threadIdx.x % 32, to.weights + t * r.results);
}

// To be waited for with the copies of rows.
__device__ inline void fetch_scale(float* to, const float* scales, int32_t expert) {
  if (scales == nullptr)
    *to = 1.0f;
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"(gemm::shared_address(to)), "l"(scales + expert)
                 : "memory");
}
__device__ inline void begin_group(const FewRows& f, const Routes& to, int32_t group, int32_t expert, int32_t begin) {
  to.expert[group] = expert;
  to.begin[group] = begin;
  fetch_scale(to.gate_scale + group, f.up.scale, expert);
  fetch_scale(to.up_scale + group, f.up.scale2, expert);
  fetch_scale(to.down_scale + group, f.down.scale, expert);
}

// How many experts before this one anybody chose. Not a loop over the words before its own, which would be a chain.
__device__ inline int32_t present_before(const Routes& of, int32_t expert) {
  int32_t count = 0;
#pragma unroll
  for (int32_t w = 0; w < kFewExperts / 32; ++w) {
    const int32_t bits = min(max(expert - w * 32, 0), 32);  // of this word
    count += __popc(of.present[w] & (bits == 32 ? ~0u : (1u << bits) - 1));
  }
  return count;
}
// By all threads; synchronises. Eight of them for each choice count those that come before it.
__device__ inline void sort(const FewRows& f, const Routes& to) {
  const Routing& r = f.routing;
  const auto own = static_cast<int32_t>(threadIdx.x), threads = static_cast<int32_t>(blockDim.x);
  const uint32_t eight = 0xffu << (own % 32 / 8 * 8);
  const int32_t count = r.rows * r.top_k;
  for (int32_t i = own / 8; i < count; i += threads / 8) {
    const int32_t e = to.choice[i];
    int32_t before = 0;  // choices of experts before it; and, times 2^16, of the same expert
#pragma unroll 1
    for (int32_t first = own % 8 * 8; first < count; first += 64) {
      alignas(16) uint16_t c[8];
      *reinterpret_cast<uint4*>(c) = *reinterpret_cast<const uint4*>(to.choice + first);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        before += c[k] < e && first + k < count;
        before += c[k] == e && first + k < i ? 1 << 16 : 0;
      }
    }
    for (int d = 4; d > 0; d /= 2) before += __shfl_xor_sync(eight, before, d);
    if (own % 8 != 0) continue;
    const int32_t others = before & 0xffff, same = before >> 16;
    to.token[others + same] = i / r.top_k;
    to.slot[others + same] = i / r.top_k * r.results + i % r.top_k;
    if (same != 0) continue;
    begin_group(f, to, present_before(to, e), e, others);
  }
  if (own == threads - 1) {
    int32_t groups = present_before(to, kFewExperts);
    if (r.shared_sorted) begin_group(f, to, groups++, r.experts, count);
    to.begin[groups] = Routes::positions(r);
    *to.groups = groups;
  }
  if (r.shared_sorted && own < r.rows) {  // every token chose the shared expert
    to.token[count + own] = own;
    to.slot[count + own] = own * r.results + r.top_k;
  }
  __syncthreads();
}

// Rows of `elems` elements, a multiple of 8, into rows `pitch` apart in shared memory, with zeros up to whole column
// tiles. By all threads; what they write is to be waited for with wait_copies and synchronised.
__device__ inline void copy_matrix(uint32_t to, int pitch, const __nv_bfloat16* from, int64_t stride, int32_t rows,
                                   int32_t elems) {
  const int32_t pieces = (elems + gemm::kTileCols - 1) / gemm::kTileCols * 8;
  for (int32_t i = threadIdx.x; i < rows * pieces; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = i / pieces, piece = i % pieces;
    const bool there = piece * 8 < elems;
    gemm::copy_async_16(to + row * pitch + piece * 16, from + row * stride + (there ? piece * 8 : 0), there);
  }
}

template <class U, class D>
class FewWarp {
 public:
  __device__ FewWarp(const FewRows& few, const Routes& routes, uint8_t* shared)
      : f_(few),
        r_(routes),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        ring_(gemm::shared_address(shared) + warp_ * kFewStages * few.plan.stage_bytes),
        full_(gemm::shared_address(shared) + few.plan.barriers_at + warp_ * kFewStages * 8) {}

  __device__ void init_barriers() const {
    if (lane_ < kFewStages) gemm::barrier_init(full_ + 8 * lane_, gemm::kCopyArrivals);
  }
  // The block's shares of both products, once it is known who chose what. Begins to load.
  __device__ void begin() {
    groups_ = *r_.groups;
    const uint32_t blocks = gridDim.x, block = blockIdx.x;
    const auto units = static_cast<uint32_t>(groups_ * f_.up.row_tiles);
    const uint32_t first = units * block / blocks;
    up_ = {static_cast<int32_t>(first) + warp_, static_cast<int32_t>(units * (block + 1) / blocks)};
    const auto tiles = static_cast<uint32_t>(f_.down.row_tiles);
    down_ = {warp_, block < tiles ? static_cast<int32_t>((tiles - block + blocks - 1) / blocks) * groups_ : 0};
    load_ = up_;
    settle();
#pragma unroll 1
    for (int s = 0; s < kFewStages; ++s) fill(s);
  }
  // The warp's share of a product, by rows that lie at `rows`: of h, or of what gate_and_up has written. The latter
  // goes to `results`, [row tiles of the block][rows * results of each][16 outputs], in shared memory.
  template <class Decoder>
  __device__ void compute(bool down, uint32_t rows, __nv_bfloat16* results) {
    const FewWeights& w = down ? f_.down : f_.up;
    const int32_t each = down ? groups_ : w.row_tiles, slots = f_.routing.rows * f_.routing.results;
    for (Share i = down ? down_ : up_; i.next < i.end; i.next += f_.plan.warps) {
      const int32_t of = i.next / each, rest = i.next - of * each;
      const int32_t group = down ? rest : of, begin = r_.begin[group], count = r_.begin[group + 1] - begin;
      const int32_t position = begin + min(lane_ % 8, count - 1);
      gemm::LaneRows lane{};
      lane.scale = __fmul_rn(Decoder::kUnit, (down ? r_.down_scale : r_.gate_scale)[group]);
      lane.scale8 = down ? lane.scale : __fmul_rn(Decoder::kUnit, r_.up_scale[group]);
      add_biases(w, down, r_.expert[group], down ? of : rest, lane);
      float sum[4];
      multiply<Decoder>(w, rows, down ? position * f_.plan.mid_pitch : r_.token[position] * f_.plan.h_pitch, sum);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = lane_ % 4 * 2 + c;
        if (token >= count) continue;
        const float v = lane.value(sum[c]), v8 = lane.value8(sum[2 + c]);
        if (down) {
          __nv_bfloat16* const to = results + (of * slots + r_.slot[begin + token]) * 16 + lane_ / 4;
          to[0] = __float2bfloat16_rn(v);
          to[8] = __float2bfloat16_rn(v8);
        } else if (const int32_t n = rest * 8 + lane_ / 4; n < w.rows) {
          f_.mid[static_cast<int64_t>(begin + token) * w.rows + n] =
              __float2bfloat16_rn(gemm::gated(f_.activation, v, v8));
        }
      }
    }
  }
  // Of the residual stream.
  __device__ static int32_t row_tile(int32_t tile) {
    return static_cast<int32_t>(blockIdx.x) + tile * static_cast<int32_t>(gridDim.x);
  }

 private:
  // Units of work, of which the warp takes one in so many as there are warps: pairs of a group and a row tile.
  struct Share {
    int32_t next, end;
  };

  // Of the rows of weights that the lane holds, before anybody waits for these.
  __device__ void add_biases(const FewWeights& w, bool down, int32_t expert, int32_t unit, gemm::LaneRows& lane) const {
    if (w.bias == nullptr) return;
    const float* const own = w.bias + static_cast<int64_t>(expert) * w.rows;
    const int32_t n = (down ? row_tile(unit) * 16 : unit * 8) + lane_ / 4, n8 = n + 8;
    if (n < w.rows) lane.bias = own[n];
    if (down)
      lane.bias8 = n8 < w.rows ? own[n8] : 0.0f;
    else if (n < w.rows)
      lane.bias8 = w.bias2[static_cast<int64_t>(expert) * w.rows + n];
  }
  // Where the warp is in its copying: first its share of `up`, then of `down`.
  __device__ void settle() {
    if (!loads_down_ && load_.next >= load_.end) loads_down_ = true, load_ = down_;
    if (load_.next >= load_.end) return;
    const int32_t each = loads_down_ ? groups_ : f_.up.row_tiles, of = load_.next / each, rest = load_.next - of * each;
    const int32_t expert = r_.expert[loads_down_ ? rest : of], tile = loads_down_ ? row_tile(of) : rest;
    const FewWeights& w = loads_down_ ? f_.down : f_.up;
    weight_ = w.data + expert * w.expert_bytes + static_cast<int64_t>(tile) * (w.col_tiles * tile_bytes());
    left_ = w.col_tiles;
  }
  __device__ int tile_bytes() const {
    return loads_down_ ? D::kTileBytes : U::kTileBytes;
  }
  __device__ void fill(int stage) {
    if (load_.next >= load_.end) return;
    const int bytes = min(f_.plan.chunk_tiles, left_) * tile_bytes();
    const uint32_t barrier = full_ + 8 * stage;
    gemm::expect_copies(barrier, lane_, bytes);
    gemm::copy_run(ring_ + stage * f_.plan.stage_bytes, weight_, bytes, barrier, lane_);
    gemm::end_copies(barrier);
    weight_ += bytes;
    left_ -= f_.plan.chunk_tiles;
    if (left_ > 0) return;
    load_.next += f_.plan.warps;
    settle();
  }

  // The next tile of rows of the weight, by the rows of x that lie at `rows` + the lane's `row`.
  template <class Decoder>
  __device__ void multiply(const FewWeights& p, uint32_t rows, int row, float (&total)[4]) {
    gemm::WarpProducts<Decoder, 1, gemm::OneRow> products(lane_, {row});
    for (int32_t k_slice = 0; k_slice < p.k_slices; ++k_slice) {
      products.clear();
      const int32_t end = min((k_slice + 1) * p.k_slice_tiles, p.col_tiles);
      for (int32_t tile = k_slice * p.k_slice_tiles; tile < end; tile += f_.plan.chunk_tiles) {
        gemm::barrier_wait(full_ + 8 * stage_, phase_);
        __syncwarp();
        // The stage that was multiplied before this one is free: all lanes have passed the barrier above.
        if (emptied_) fill(stage_ == 0 ? kFewStages - 1 : stage_ - 1);
        emptied_ = true;
        products.multiply(ring_ + stage_ * f_.plan.stage_bytes, rows + tile * 128,
                          min(f_.plan.chunk_tiles, end - tile));
        if (++stage_ == kFewStages) stage_ = 0, phase_ ^= 1u;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        total[i] = k_slice == 0 ? products.sum[0][i] : __fadd_rn(total[i], products.sum[0][i]);
    }
  }

  const FewRows& f_;
  const Routes& r_;
  int lane_, warp_;
  uint32_t ring_, full_;
  int32_t groups_ = 0;
  Share up_{}, down_{}, load_{};
  bool loads_down_ = false;
  const uint8_t* weight_ = nullptr;  // what is copied next
  int32_t left_ = 0;                 // column tiles
  int stage_ = 0;
  uint32_t phase_ = 0;
  bool emptied_ = false;  // a stage was multiplied
};

// The i-th number that a block adds up, of f.plan.row_tiles * rows * 16: where it goes, or null.
__device__ inline float* combined(const FewRows& f, int32_t i) {
  const int32_t each = f.routing.rows * 16, tile = i / each, t = i % each / 16;
  const int32_t column = (static_cast<int32_t>(blockIdx.x) + tile * static_cast<int32_t>(gridDim.x)) * 16 + i % 16;
  return tile < f.plan.row_tiles && column < f.down.rows ? f.x + t * f.x_stride + column : nullptr;
}
// x += the weighted results, in ascending rank: as combine_kernel does it. `first`: what the thread's first number is
// added to.
__device__ inline void combine(const FewRows& f, const Routes& routes, const __nv_bfloat16* results, float first) {
  const Routing& r = f.routing;
  const auto own = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = own; i < f.plan.row_tiles * r.rows * 16; i += static_cast<int32_t>(blockDim.x)) {
    float* const x = combined(f, i);
    if (x == nullptr) continue;
    const int32_t tile = i / (r.rows * 16), t = i / 16 - tile * r.rows, n = i % 16;
    float sum = i == own ? first : f.add_to_x ? *x : 0.0f;
    for (int32_t k = 0; k < r.results; ++k)
      sum = __fmaf_rn(routes.weights[t * r.results + k],
                      __bfloat162float(results[(tile * r.rows + t) * r.results * 16 + k * 16 + n]), sum);
    *x = sum;
  }
}

template <class U, class D>
__global__ void __launch_bounds__(kFewWarps * 32, 1) few_rows_kernel(const __grid_constant__ FewRows f) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Routing& r = f.routing;
  cuda::let_next_kernel_start();
  cuda::touch(f);
  // While the router's product runs, and again while blocks wait for each other, memory has little to do.
  cuda::prefetch(f.next, 0, 2);
  Routes routes;
  routes.lay_out(r, shared + f.plan.routes_at);
  FewWarp<U, D> warp(f, routes, shared);
  warp.init_barriers();
  if (threadIdx.x < kFewExperts / 32) routes.present[threadIdx.x] = 0;
  gemm::order_before_copies();
  __syncthreads();
  cuda::wait_for_previous_kernels();

  const uint32_t rows = gemm::shared_address(shared + f.plan.rows_at);
  auto* const results = reinterpret_cast<__nv_bfloat16*>(shared + f.plan.results_at);
  float before = 0;  // what the thread adds to
  copy_matrix(rows, f.plan.h_pitch, r.h, r.h_stride, r.rows, f.up.cols);
  choose(r, routes, reinterpret_cast<uint32_t*>(shared));  // the rings are empty still
  gemm::order_before_copies();
  sort(f, routes);
  warp.begin();
  // One loop, not two, so that the second product finds the instructions of the first.
#pragma unroll 1
  for (int down = 0; down < 2; ++down) {
    if (down != 0) {
      const float* const x = f.add_to_x ? combined(f, static_cast<int32_t>(threadIdx.x)) : nullptr;
      if (x != nullptr) before = *x;
      weigh_shared(r, routes);
      cuda::prefetch(f.next, 1, 2);
      cuda::wait_for_grid(f.barrier);
      copy_matrix(rows, f.plan.mid_pitch, f.mid, f.up.rows, Routes::positions(r), f.down.cols);
    }
    gemm::commit_copies();
    gemm::wait_copies<0>();
    __syncthreads();
    if constexpr (std::is_same_v<U, D>) {
      warp.template compute<U>(down != 0, rows, results);
    } else {
      if (down == 0)
        warp.template compute<U>(false, rows, results);
      else
        warp.template compute<D>(true, rows, results);
    }
  }
  __syncthreads();
  combine(f, routes, results, before);
}

template <gemm::TileFormat Up, gemm::TileFormat Down>
Status launch_few(cudaStream_t stream, const FewRows& few, const cuda::DeviceLimits& device) {
  return cuda::launch_cooperative(stream, "moe: few rows", few_rows_kernel<gemm::Decoder<Up>, gemm::Decoder<Down>>,
                                  dim3(static_cast<unsigned>(device.multiprocessors)), few.plan.warps * 32,
                                  few.plan.shared_bytes, few);
}

}  // namespace quire::moe_cuda
