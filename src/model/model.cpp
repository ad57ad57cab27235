#include "model/model.h"

#include "model/memory.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {

Result<std::unique_ptr<Model>> Model::load(const gguf::File& file) {
  QUIRE_TRY(ModelConfig config, read_config(file));
  return config.hybrid ? load_hybrid(std::move(config), file) : load_transformer(std::move(config), file);
}

CacheShape Model::cache_shape(Device device) const {
  return quire::cache_shape(config_, activation_type(device));
}

Status Model::load_common(WeightLoader& w) {
  QUIRE_TRY(embedding_, w.matrix("token_embd", config_.vocab, config_.d_model));
  QUIRE_TRY(output_norm_, w.vector("output_norm.weight", config_.d_model));
  QUIRE_TRY(head_, w.optional_matrix("output", config_.vocab, config_.d_model));
  if (head_.empty()) head_ = embedding_;  // tied
  QUIRE_TRY(output_bias_, w.optional_vector("output.bias", config_.vocab));
  QUIRE_TRY(const Tensor divisors, w.optional_vector("rope_freqs.weight", config_.rope.n_rot / 2));
  std::span<const float> d;
  if (!divisors.empty()) d = {divisors.as<float>(), static_cast<size_t>(divisors.dim(0))};
  for (float f : d)
    if (!(f > 0.0f)) return file_error("tensor rope_freqs.weight: divisor {} is not positive", f);
  rope_table_ = make_rope_table(config_.rope, d);
  return {};
}

void Model::head(const OpContext& ctx, const StepInputs& in, const Tensor& x, Tensor logits) const {
  const auto rows = static_cast<int64_t>(in.logit_rows.size());
  if (rows == 0) return;
  Workspace::Scope ws(ctx.workspace);
  const int64_t d = config_.d_model;
  const Tensor last = make_tensor(ws.take<float>(rows * d), {rows, d});
  const DType act = activation_type(ctx.device);
  const Tensor h = make_tensor(ws.take<std::byte>(dtype_bytes(act, rows * d)), act, {rows, d});
  gather_rows(ctx, {.x = x, .rows = in.logit_rows, .y = last});
  add_rms_norm(ctx, {.x = last, .add = {}, .weight = output_norm_, .eps = config_.eps, .h = h});
  const LinearPart part{.w = head_, .bias = output_bias_, .y = logits};
  linear(ctx, {.x = h, .parts = {&part, 1}, .generated = in.generated});
  if (in.probe != nullptr) {
    (*in.probe)("output_norm", -1, h);
    (*in.probe)("logits", -1, logits);
  }
}

void Model::feed_forward(const OpContext& ctx, const StepInputs& in, const FfnWeights& f, const Tensor& h,
                         const Tensor& x) const {
  if (f.router.empty()) {
    swiglu_mlp(ctx, {.h = h,
                     .gate = f.gate,
                     .up = f.up,
                     .down = f.down,
                     .gate_bias = f.gate_bias,
                     .up_bias = f.up_bias,
                     .down_bias = f.down_bias,
                     .x = x,
                     .generated = in.generated});
    return;
  }
  moe(ctx, {.h = h,
            .router = f.router,
            .gate = f.gate,
            .up = f.up,
            .down = f.down,
            .top_k = config_.top_k,
            .shared_gate = f.shared_gate,
            .shared_up = f.shared_up,
            .shared_down = f.shared_down,
            .shared_router = f.shared_router,
            .x = x,
            .chosen = {},
            .generated = in.generated});
}

}  // namespace quire
