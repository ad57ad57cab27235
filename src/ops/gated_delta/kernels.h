// Inside gated_delta/: what the vector kernels work on. Plain pointers, so that the files compiled for newer
// CPUs instantiate nothing that others share. bf16 is passed as its bits; strides count elements.
#pragma once

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
  const int32_t* token_slots;  // null: none
  bool bf16;                   // activations: qkv, q, k, v
  const void *qkv, *a, *b;
  bool a_bf16, b_bf16;
  const float *conv_weight, *ssm_a, *dt_bias;
  float* conv;  // [slots, Kc - 1, C]
  void *q, *k, *v;
  float *g, *beta;
  int64_t qkv_stride, a_stride, b_stride, q_stride, k_stride, v_stride, g_stride, beta_stride;
  int64_t C, Kc, Hk, Dk, Hv, Dv;
  // Units of a segment: a head of q, k or v each, and one for g and beta.
  int64_t units() const { return 2 * Hk + Hv + 1; }
};
// Units [begin, end) of all segments, segment by segment.
void prepare_avx2(const PrepareWork& w, int64_t begin, int64_t end);
void prepare_avx512(const PrepareWork& w, int64_t begin, int64_t end);

struct DeltaWork {
  const Segment* segments;
  const int32_t* chosen;       // indices of the segments that the operator handles
  const int32_t* token_slots;  // null: none
  bool bf16;
  bool tiled;  // HeadMap::kTiled
  const void *q, *k, *v;
  const float *g, *beta;
  float* state;  // [slots, Hv, Dv, Dk]
  void* out;
  int64_t q_stride, k_stride, v_stride, g_stride, beta_stride, out_stride;
  int64_t Hk, Dk, Hv, Dv;
  int64_t key_head(int64_t hv) const { return tiled ? hv % Hk : hv / (Hv / Hk); }
};

// The recurrent form. Units: (chosen segment, value head, block of kRecurrentColumns value columns).
inline constexpr int64_t kRecurrentColumns = 32;
void recurrent_avx2(const DeltaWork& w, int64_t begin, int64_t end);
void recurrent_avx512(const DeltaWork& w, int64_t begin, int64_t end);

}  // namespace quire::gdn
