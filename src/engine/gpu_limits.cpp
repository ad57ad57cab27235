#include "engine/gpu_limits.h"

#include "ops/moe/cuda/limits.h"

namespace quire {

Status check_gpu_limits(const ModelConfig& c) {
  const int32_t head_dim = c.attention.head_dim;
  if (c.attention_layers() > 0 && head_dim != 64 && head_dim != 128 && head_dim != 256)
    return request_error("attention heads of {}: on a GPU there are kernels for 64, 128 and 256", head_dim);
  if (c.has_state() && (c.delta.key_dim != 128 || c.delta.value_dim != 128 || c.delta.conv_kernel != 4))
    return request_error(
        "delta-net heads of {} and {} with {} taps: on a GPU there are kernels for 128 and 4 taps",
        c.delta.key_dim, c.delta.value_dim, c.delta.conv_kernel);
  const FeedForwardSpec& f = c.ffn;
  if (f.experts > moe_cuda::kMaxExperts || f.top_k > moe_cuda::kMaxTopK)
    return request_error(
        "moe: {} of {} experts for each token: on a GPU there are kernels for up to {} of up to {}", f.top_k,
        f.experts, moe_cuda::kMaxTopK, moe_cuda::kMaxExperts);
  constexpr int64_t kMostWidth = 32768;  // of add_rms_norm
  if (c.d_model > kMostWidth)
    return request_error("add_rms_norm: a d_model of {}: on a GPU there are kernels for up to {}", c.d_model,
                         kMostWidth);
  if (c.d_model % 8 != 0 || f.d_ff % 8 != 0 || f.d_ff_expert % 8 != 0 || f.d_ff_shared % 8 != 0)
    return request_error("on a GPU widths must be multiples of 8: d_model is {}, d_ff {}, {} and {}",
                         c.d_model, f.d_ff, f.d_ff_expert, f.d_ff_shared);
  return {};
}

}  // namespace quire
