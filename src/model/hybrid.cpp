// qwen35, qwen35moe: three gated-delta-net blocks for each gated full-attention block, dense or
// mixture-of-experts feed-forward, and an optional multi-token-prediction block. Sources: "Gated Delta
// Networks" (arXiv:2412.06464), the Qwen3-Next and Qwen3.5 model definitions.
#include "model/activations.h"
#include "model/model.h"
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
  Tensor x;                       // [T, D] f32 residual stream
  Tensor h;                       // [T, D] normalised input of a sub-block
  Tensor mix;                     // [T, H d] or [T, Hv Dv] mixer output
  Tensor q_proj, k_proj, v_proj;  // attention projections; q_proj holds query and gate per head
  Tensor q, gate;                 // [T, H, d]
  Tensor qkv, z;                  // delta-net projections: [T, C], [T, Hv Dv]
  Tensor a, b;                    // [T, Hv] f32
  Tensor dq, dk, dv;              // [T, Hk, Dk], [T, Hk, Dk], [T, Hv, Dv]
  Tensor g, beta;                 // [T, Hv] f32
  Tensor o;                       // [T, Hv, Dv] delta-net output before the gated norm
};

Activations lay_out(const ModelConfig& c, ActivationMemory mem) {
  const int64_t hd = int64_t{c.heads} * c.head_dim, kd = int64_t{c.kv_heads} * c.head_dim;
  const DeltaConfig& n = c.delta;
  const int64_t inner = int64_t{n.value_heads} * n.value_dim;
  Activations s;
  s.x = mem.f32(c.d_model);
  s.h = mem.act(c.d_model);
  s.mix = mem.act(std::max(hd, inner));
  s.q_proj = mem.act(2 * hd);
  s.k_proj = mem.act(kd);
  s.v_proj = mem.act(kd);
  s.q = mem.act(c.heads, c.head_dim);
  s.gate = mem.act(c.heads, c.head_dim);
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

  std::vector<Weight> matrices() const override {
    std::vector<Weight> all;
    for (const Layer& l : layers_) {
      if (l.recurrent)
        add_matrices(l.delta, all);
      else
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

    embed(ctx, {.tokens = in.tokens, .table = embedding_, .x = s.x});
    probe(in, "embed", -1, s.x);
    for (int i = 0; i < config_.layers; ++i) {
      const Layer& l = layers_[static_cast<size_t>(i)];
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.attn_norm, .eps = config_.eps, .h = s.h});
      probe(in, "attn_norm", i, s.h);
      if (l.recurrent) {
        delta_net(ctx, in, cache, i, s);
      } else {
        attention(ctx, in, cache, i, s);
      }
      probe(in, "attn_out", i, s.x);
      add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.ffn_norm, .eps = config_.eps, .h = s.h});
      probe(in, "ffn_norm", i, s.h);
      feed_forward(ctx, in, l.ffn, s.h, s.x);
      probe(in, "layer_out", i, s.x);
    }
    head(ctx, in, s.x, logits);
  }

 private:
  static void probe(const StepInputs& in, std::string_view name, int layer, const Tensor& t) {
    if (in.probe != nullptr) (*in.probe)(name, layer, t);
  }

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

  void attention(const OpContext& ctx, const StepInputs& in, const CacheStorage& cache, int layer,
                 const Activations& s) const {
    const Layer& l = layers_[static_cast<size_t>(layer)];
    const AttentionWeights& w = l.attn;
    const KvLayer& kv = cache.kv(l.cache_index);
    const Tensor mix = s.mix.cols(0, int64_t{config_.heads} * config_.head_dim);
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
                            .gate = s.gate,
                            .kv = kv});
    paged_attention(ctx, {.q = s.q,
                          .gate = s.gate,
                          .kv = kv,
                          .segments = in.segments,
                          .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                          .out = mix});
    probe(in, "attn_mix", layer, mix);
    const LinearPart out{.w = w.out, .bias = w.out_bias, .y = s.x, .add_to_y = true};
    linear(ctx, {.x = mix, .parts = {&out, 1}, .generated = in.generated});
  }

  void delta_net(const OpContext& ctx, const StepInputs& in, const CacheStorage& cache, int layer,
                 const Activations& s) const {
    const Layer& l = layers_[static_cast<size_t>(layer)];
    const DeltaWeights& w = l.delta;
    const DeltaState& state = cache.state(l.cache_index);
    const Tensor mix = s.mix.cols(0, s.z.dim(1));
    const LinearPart projections[] = {
        {.w = w.qkv, .y = s.qkv}, {.w = w.z, .y = s.z}, {.w = w.alpha, .y = s.a}, {.w = w.beta, .y = s.b}};
    linear(ctx, {.x = s.h, .parts = projections, .generated = in.generated});
    gdn_prepare(ctx, {.qkv = s.qkv,
                      .a = s.a,
                      .b = s.b,
                      .conv_weight = w.conv,
                      .ssm_a = w.a,
                      .dt_bias = w.dt_bias,
                      .cache = state,
                      .segments = in.segments,
                      .token_slots = {},
                      .q = s.dq,
                      .k = s.dk,
                      .v = s.dv,
                      .g = s.g,
                      .beta = s.beta});
    const GatedDeltaArgs rule{.q = s.dq,
                              .k = s.dk,
                              .v = s.dv,
                              .g = s.g,
                              .beta = s.beta,
                              .heads = HeadMap::kTiled,
                              .state = state.state,
                              .segments = in.segments,
                              .token_slots = {},
                              .out = s.o};
    gdn_chunked(ctx, rule);
    gdn_recurrent(ctx, rule);
    probe(in, "delta_out", layer, s.o);
    gated_rms_norm(ctx, {.o = s.o, .z = s.z, .weight = w.norm, .eps = config_.eps, .y = mix});
    probe(in, "attn_mix", layer, mix);
    const LinearPart out{.w = w.out, .y = s.x, .add_to_y = true};
    linear(ctx, {.x = mix, .parts = {&out, 1}, .generated = in.generated});
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
