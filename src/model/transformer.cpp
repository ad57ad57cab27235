// llama, qwen2, qwen3, qwen3moe (and Mixtral-style llama with experts): pre-norm transformers with
// grouped-query attention, rotary positions and a SwiGLU or mixture-of-experts feed-forward. Sources: "LLaMA"
// (arXiv:2302.13971), "Qwen2" (arXiv:2407.10671), "Qwen3" (arXiv:2505.09388).
#include "model/activations.h"
#include "model/model.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

struct Layer {
  Tensor attn_norm, ffn_norm;
  AttentionWeights attn;
  FfnWeights ffn;
};

struct Activations {
  Tensor x;  // [T, D] f32 residual stream
  Tensor h;  // [T, D] normalised input of a sub-block
  Tensor q_proj, k_proj, v_proj;
  Tensor q;    // [T, H, d] rotated
  Tensor mix;  // [T, H d] attention output
};

Activations lay_out(const ModelConfig& c, ActivationMemory mem) {
  const int64_t hd = int64_t{c.heads} * c.head_dim, kd = int64_t{c.kv_heads} * c.head_dim;
  Activations a;
  a.x = mem.f32(c.d_model);
  a.h = mem.act(c.d_model);
  a.q_proj = mem.act(hd);
  a.k_proj = mem.act(kd);
  a.v_proj = mem.act(kd);
  a.q = mem.act(c.heads, c.head_dim);
  a.mix = mem.act(hd);
  return a;
}

class Transformer final : public Model {
 public:
  explicit Transformer(ModelConfig config) : Model(std::move(config)) {}

  Status load_layers(const gguf::File& file) {
    WeightLoader w(file, arena_);
    QUIRE_CHECKED(load_common(w));
    for (int i = 0; i < config_.layers; ++i) {
      const std::string p = fmt::format("blk.{}.", i);
      Layer l;
      QUIRE_TRY(l.attn_norm, w.vector(p + "attn_norm.weight", config_.d_model));
      QUIRE_TRY(l.attn, load_attention(w, config_, p));
      QUIRE_TRY(l.ffn_norm, w.vector(p + "ffn_norm.weight", config_.d_model));
      QUIRE_TRY(l.ffn, load_ffn(w, config_, p));
      layers_.push_back(l);
    }
    return {};
  }

  std::vector<Weight> matrices() const override {
    std::vector<Weight> all;
    for (const Layer& l : layers_) {
      add_matrices(l.attn, all);
      add_matrices(l.ffn, all);
    }
    all.push_back(head_);
    return all;
  }

  void forward(const OpContext& ctx, const StepInputs& in, const CacheStorage& cache,
               Tensor logits) const override {
    Workspace::Scope scope(ctx.workspace);
    const auto rows = static_cast<int64_t>(in.tokens.size());
    const Activations s = lay_out(config_, {scope, activation_type(ctx.device), rows});
    const auto probe = [&](std::string_view name, int layer, const Tensor& t) {
      if (in.probe != nullptr) (*in.probe)(name, layer, t);
    };

    embed(ctx, {.tokens = in.tokens, .table = embedding_, .x = s.x});
    probe("embed", -1, s.x);
    for (int i = 0; i < config_.layers; ++i) {
      const Layer& l = layers_[static_cast<size_t>(i)];
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.attn_norm, .eps = config_.eps, .h = s.h});
      probe("attn_norm", i, s.h);
      attention(ctx, in, cache, i, s);
      probe("attn_out", i, s.x);
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.ffn_norm, .eps = config_.eps, .h = s.h});
      probe("ffn_norm", i, s.h);
      feed_forward(ctx, in, l.ffn, s.h, s.x);
      probe("layer_out", i, s.x);
    }
    head(ctx, in, s.x, logits);
  }

 private:
  void attention(const OpContext& ctx, const StepInputs& in, const CacheStorage& cache, int layer,
                 const Activations& s) const {
    const AttentionWeights& w = layers_[static_cast<size_t>(layer)].attn;
    const KvLayer& kv = cache.kv(layer);
    const LinearPart qkv[] = {{.w = w.q, .bias = w.q_bias, .y = s.q_proj},
                              {.w = w.k, .bias = w.k_bias, .y = s.k_proj},
                              {.w = w.v, .bias = w.v_bias, .y = s.v_proj}};
    linear(ctx, {.x = s.h, .parts = qkv, .generated = in.generated});
    attention_prepare(ctx, {.q_proj = s.q_proj,
                            .k_proj = s.k_proj,
                            .v_proj = s.v_proj,
                            .q_norm = w.q_norm,
                            .k_norm = w.k_norm,
                            .eps = config_.eps,
                            .rope = rope(),
                            .segments = in.segments,
                            .q = s.q,
                            .gate = {},
                            .kv = kv});
    paged_attention(ctx, {.q = s.q,
                          .gate = {},
                          .kv = kv,
                          .segments = in.segments,
                          .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                          .out = s.mix});
    if (in.probe != nullptr) (*in.probe)("attn_mix", layer, s.mix);
    const LinearPart out{.w = w.out, .bias = w.out_bias, .y = s.x, .add_to_y = true};
    linear(ctx, {.x = s.mix, .parts = {&out, 1}, .generated = in.generated});
  }

  std::vector<Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_transformer(ModelConfig config, const gguf::File& file) {
  auto m = std::make_unique<Transformer>(std::move(config));
  QUIRE_CHECKED(m->load_layers(file));
  return std::unique_ptr<Model>(std::move(m));
}

}  // namespace quire
