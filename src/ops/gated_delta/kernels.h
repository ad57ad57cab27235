// Inside gated_delta/: what the vector kernels work on. Plain pointers, so that the files compiled for newer
// CPUs instantiate nothing that others share. bf16 is passed as its bits; strides count elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {
struct Segment;
}

namespace quire::gdn {

// Heads and taps up to these sizes have room in the kernels' stack buffers; larger ones go to the reference.
inline constexpr int64_t kMaxHeadDim = 256;
inline constexpr int64_t kMaxTaps = 8;

struct PrepareWork {
  const Segment* segments;
  bool bf16;  // activations: qkv, q, k, v
  const void *qkv, *a, *b;
  bool a_bf16, b_bf16;
  const float *conv_weight, *ssm_a, *dt_bias;
  void* conv;  // [slots, R, C], slots conv_slot_stride elements apart
  void *q, *k, *v;
  float *g, *beta;
  int64_t qkv_stride, a_stride, b_stride, q_stride, k_stride, v_stride, g_stride, beta_stride;
  int64_t conv_slot_stride;
  int64_t C, Kc, R, Hk, Dk, Hv, Dv;
  // Units of a segment: a head of q, k or v each, and one for g and beta.
  int64_t units() const { return 2 * Hk + Hv + 1; }
};
// Units [begin, end) of all segments, segment by segment.
void prepare_avx2(const PrepareWork& w, int64_t begin, int64_t end);
void prepare_avx512(const PrepareWork& w, int64_t begin, int64_t end);

struct DeltaWork {
  const Segment* segments;  // those that the operator handles
  bool bf16;
  bool tiled;  // HeadMap::kTiled
  const void *q, *k, *v;
  const float *g, *beta;
  float* state;  // [slots, Hv, Dv, Dk]
  void* out;
  void* pending_k;               // [slots, W, Hk, Dk]; pending tokens are the recurrent form's
  float *pending_u, *pending_g;  // [slots, W, Hv, Dv], [slots, W, Hv]
  int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, out_stride;
  // From one slot to the next.
  int64_t state_slot_stride, pending_k_slot_stride, pending_u_slot_stride, pending_g_slot_stride;
  int64_t Hk, Dk, Hv, Dv;
  int64_t key_head(int64_t hv) const { return tiled ? hv % Hk : hv / (Hv / Hk); }
};

// The recurrent form. Units: (segment, value head, block of `columns` value columns). Writes S0 and pending_u
// of its columns; append_pending() does the rest once all units are done, because they read the keys and
// decays that it moves. `scratch`: room for `columns` * Dk floats, 64-byte aligned, one per thread; used by
// segments with tentative rows only.
struct RecurrentWork {
  DeltaWork delta;
  int64_t columns;
};
void recurrent_avx2(const RecurrentWork& w, int64_t begin, int64_t end, float* scratch);
void recurrent_avx512(const RecurrentWork& w, int64_t begin, int64_t end, float* scratch);

// The chunked form. Units: (segment, key head, group of `heads` of the value heads that it serves);
// `heads` divides Hv / Hk. `scratch`: chunked_scratch_*() bytes, 64-byte aligned, one per thread.
struct ChunkedWork {
  DeltaWork delta;
  int64_t heads;
  int64_t value_head(int64_t hk, int64_t m) const {
    return delta.tiled ? m * delta.Hk + hk : hk * (delta.Hv / delta.Hk) + m;
  }
};
int64_t chunked_scratch_f32(int64_t Dk, int64_t Dv, int64_t heads);
void chunked_avx2(const ChunkedWork& w, int64_t begin, int64_t end, std::byte* scratch);  // Dk, Dv % 8 == 0
void chunked_avx512(const ChunkedWork& w, int64_t begin, int64_t end,
                    std::byte* scratch);  // Dk, Dv % 16 == 0
int64_t chunked_scratch_amx(int64_t Dk, int64_t Dv, int64_t heads);
void chunked_amx(const ChunkedWork& w, int64_t begin, int64_t end,
                 std::byte* scratch);  // Dk, Dv % 32 == 0, bf16

}  // namespace quire::gdn
