// qwen35, qwen35moe: three gated-delta-net blocks for each gated full-attention block, dense or
// mixture-of-experts feed-forward, and an optional multi-token-prediction block. Sources: "Gated Delta
// Networks" (arXiv:2412.06464), the Qwen3-Next and Qwen3.5 model definitions.
#include "model/activations.h"
#include "model/model.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

struct Layer {
  Tensor attn_norm, ffn_norm;
  bool recurrent = false;
  int cache_index = 0;    // among the layers of its kind
  AttentionWeights attn;  // of a full-attention block
  DeltaWeights delta;     // of a gated-delta-net block
  FfnWeights ffn;
};

struct Activations {
  Tensor x;    // [T, D] f32 residual stream
  Tensor h;    // [T, D] normalised input of a sub-block
  Tensor mix;  // [T, Hv Dv] delta-net output, normalised; shares memory with attention.mix
  AttentionActivations attention;
  Tensor qkv, z;      // delta-net projections: [T, C], [T, Hv Dv]
  Tensor a, b;        // [T, Hv] f32
  Tensor dq, dk, dv;  // [T, Hk, Dk], [T, Hk, Dk], [T, Hv, Dv]
  Tensor g, beta;     // [T, Hv] f32
  Tensor o;           // [T, Hv, Dv] delta-net output before the gated norm
};

Activations lay_out(const ModelConfig& c, ActivationMemory mem) {
  const int64_t hd = int64_t{c.heads} * c.head_dim, kd = int64_t{c.kv_heads} * c.head_dim;
  const DeltaConfig& n = c.delta;
  const int64_t inner = int64_t{n.value_heads} * n.value_dim;
  Activations s;
  s.x = mem.f32(c.d_model);
  s.h = mem.act(c.d_model);
  const Tensor mix = mem.act(std::max(hd, inner));
  s.mix = mix.cols(0, inner);
  s.attention = {.q_proj = mem.act(2 * hd),
                 .k_proj = mem.act(kd),
                 .v_proj = mem.act(kd),
                 .q = mem.act(c.heads, c.head_dim),
                 .gate = mem.act(c.heads, c.head_dim),
                 .mix = mix.cols(0, hd)};
  s.qkv = mem.act(n.conv_channels());
  s.z = mem.act(inner);
  s.a = mem.f32(n.value_heads);
  s.b = mem.f32(n.value_heads);
  s.dq = mem.act(n.key_heads, n.key_dim);
  s.dk = mem.act(n.key_heads, n.key_dim);
  s.dv = mem.act(n.value_heads, n.value_dim);
  s.g = mem.f32(n.value_heads);
  s.beta = mem.f32(n.value_heads);
  s.o = mem.act(n.value_heads, n.value_dim);
  return s;
}

class Hybrid final : public Model {
 public:
  explicit Hybrid(ModelConfig config) : Model(std::move(config)) {}

  Status load_layers(const gguf::File& file) {
    WeightLoader w(file, arena_);
    QUIRE_CHECKED(load_common(w));
    int attention_layers = 0, delta_layers = 0;
    for (int i = 0; i < config_.layers; ++i) {
      const std::string p = fmt::format("blk.{}.", i);
      Layer l;
      l.recurrent = config_.recurrent[static_cast<size_t>(i)];
      l.cache_index = l.recurrent ? delta_layers++ : attention_layers++;
      QUIRE_TRY(l.attn_norm, w.vector(p + "attn_norm.weight", config_.d_model));
      QUIRE_TRY(l.ffn_norm, w.vector(p + "post_attention_norm.weight", config_.d_model));
      if (l.recurrent) {
        QUIRE_TRY(l.delta, load_delta(w, config_, p));
      } else {
        QUIRE_TRY(l.attn, load_attention(w, config_, p));
      }
      QUIRE_TRY(l.ffn, load_ffn(w, config_, p));
      layers_.push_back(l);
    }
    for (int i = 0; i < config_.mtp_layers; ++i) {
      QUIRE_TRY(MtpWeights m, load_mtp(w, fmt::format("blk.{}.", config_.layers + i)));
      mtp_.push_back(m);
    }
    return {};
  }

  void visit_layers(WeightVisitor& v) override {
    for (Layer& l : layers_) {
      v.vector(l.attn_norm);
      if (l.recurrent)
        quire::visit(l.delta, v);
      else
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
      if (l.recurrent) {
        delta_net(pass, i, l.delta, cache.state(l.cache_index), s);
      } else {
        attention(pass, i, l.attn, cache.kv(l.cache_index), s.h, s.attention, s.x);
      }
      pass.probe("attn_out", i, s.x);
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.ffn_norm, .eps = config_.eps, .h = s.h});
      pass.probe("ffn_norm", i, s.h);
      feed_forward(pass, l.ffn, s.h, s.x);
      pass.probe("layer_out", i, s.x);
    }
    head(pass, s.x, out);
  }

 private:
  Result<MtpWeights> load_mtp(WeightLoader& w, const std::string& p) const {
    MtpWeights m;
    const int64_t d = config_.d_model;
    QUIRE_TRY(m.eh_proj, w.matrix(p + "nextn.eh_proj", d, 2 * d));
    QUIRE_TRY(m.enorm, w.vector(p + "nextn.enorm.weight", d));
    QUIRE_TRY(m.hnorm, w.vector(p + "nextn.hnorm.weight", d));
    QUIRE_TRY(m.head_norm, w.optional_vector(p + "nextn.shared_head_norm.weight", d));
    QUIRE_TRY(m.embedding, w.optional_matrix(p + "nextn.embed_tokens", config_.vocab, d));
    QUIRE_TRY(m.head, w.optional_matrix(p + "nextn.shared_head_head", config_.vocab, d));
    QUIRE_TRY(m.attn_norm, w.vector(p + "attn_norm.weight", d));
    QUIRE_TRY(m.ffn_norm, w.vector(p + "post_attention_norm.weight", d));
    QUIRE_TRY(m.attention, load_attention(w, config_, p));
    QUIRE_TRY(m.ffn, load_ffn(w, config_, p));
    return m;
  }

  // The delta-net part of block `layer`, added to the residual stream.
  void delta_net(const Pass& pass, int layer, const DeltaWeights& w, const DeltaState& state,
                 const Activations& s) const {
    const OpContext& ctx = pass.ctx;
    linear(ctx, {.x = s.h,
                 .parts = {{.w = w.qkv, .y = s.qkv},
                           {.w = w.z, .y = s.z},
                           {.w = w.alpha, .y = s.a},
                           {.w = w.beta, .y = s.b}},
                 .latency_rows = pass.latency_rows()});
    gated_delta_net(ctx, {.qkv = s.qkv,
                          .z = s.z,
                          .a = s.a,
                          .b = s.b,
                          .conv_weight = w.conv,
                          .ssm_a = w.a,
                          .dt_bias = w.dt_bias,
                          .norm_weight = w.norm,
                          .eps = config_.eps,
                          .heads = HeadMap::kTiled,
                          .cache = state,
                          .segments = pass.step.segments,
                          .q = s.dq,
                          .k = s.dk,
                          .v = s.dv,
                          .g = s.g,
                          .beta = s.beta,
                          .o = s.o,
                          .y = s.mix});
    pass.probe("delta_out", layer, s.o);
    pass.probe("attn_mix", layer, s.mix);
    linear(ctx, {.x = s.mix,
                 .parts = {{.w = w.out, .y = s.x, .add_to_y = true}},
                 .latency_rows = pass.latency_rows()});
  }

  std::vector<Layer> layers_;
  std::vector<MtpWeights> mtp_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_hybrid(ModelConfig config, const gguf::File& file) {
  auto m = std::make_unique<Hybrid>(std::move(config));
  QUIRE_CHECKED(m->load_layers(file));
  return std::unique_ptr<Model>(std::move(m));
}

}  // namespace quire
