// llama, qwen2, qwen3, qwen3moe (and Mixtral-style llama with experts): pre-norm transformers with
// grouped-query attention, rotary positions and a SwiGLU or mixture-of-experts feed-forward. Sources: "LLaMA"
// (arXiv:2302.13971), "Qwen2" (arXiv:2407.10671), "Qwen3" (arXiv:2505.09388).
#include "model/activations.h"
#include "model/model.h"
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
  AttentionActivations attention;
};

Activations lay_out(const ModelConfig& c, ActivationMemory mem) {
  const int64_t hd = int64_t{c.heads} * c.head_dim, kd = int64_t{c.kv_heads} * c.head_dim;
  Activations a;
  a.x = mem.f32(c.d_model);
  a.h = mem.act(c.d_model);
  a.attention.q_proj = mem.act(hd);
  a.attention.k_proj = mem.act(kd);
  a.attention.v_proj = mem.act(kd);
  a.attention.q = mem.act(c.heads, c.head_dim);
  a.attention.mix = mem.act(hd);
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

  void visit_layers(WeightVisitor& v) override {
    for (Layer& l : layers_) {
      v.vector(l.attn_norm);
      quire::visit(l.attn, v);
      v.vector(l.ffn_norm);
      quire::visit(l.ffn, v);
    }
  }

  void forward(const OpContext& ctx, const StepBatch& step, const CacheViews& cache,
               const ForwardOptions& options, const ForwardOutputs& out) const override {
    Workspace::Scope scope(ctx.workspace);
    const Pass pass{ctx, step, cache, options};
    const Activations s = lay_out(config_, {scope, activation_type(ctx.machine.device), step.rows()});
    embed(ctx, {.tokens = step.tokens,
                .sources = step.sources,
                .sampled = step.sampled,
                .table = embedding_,
                .x = s.x});
    pass.probe("embed", -1, s.x);
    for (int i = 0; i < config_.layers; ++i) {
      const Layer& l = layers_[static_cast<size_t>(i)];
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.attn_norm, .eps = config_.eps, .h = s.h});
      pass.probe("attn_norm", i, s.h);
      attention(pass, i, l.attn, cache.kv(i), s.h, s.attention, s.x);
      pass.probe("attn_out", i, s.x);
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.ffn_norm, .eps = config_.eps, .h = s.h});
      pass.probe("ffn_norm", i, s.h);
      feed_forward(pass, l.ffn, s.h, s.x);
      pass.probe("layer_out", i, s.x);
    }
    head(pass, s.x, out);
  }

 private:
  std::vector<Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_transformer(ModelConfig config, const gguf::File& file) {
  auto m = std::make_unique<Transformer>(std::move(config));
  QUIRE_CHECKED(m->load_layers(file));
  return std::unique_ptr<Model>(std::move(m));
}

}  // namespace quire
