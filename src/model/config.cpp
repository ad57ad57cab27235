#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "arch/architecture.h"

namespace quire {
namespace {

// Reads one model's keys "<architecture>.<key>", with ranges.
class Keys {
 public:
  Keys(const gguf::File& file, std::string architecture) : file_(file), arch_(std::move(architecture)) {}

  std::string full(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  Status number(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    QUIRE_TRY(const uint32_t v, file_.get_u32(full(key)));
    return ranged(key, v, lo, hi, out);
  }
  Status number_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int64_t& out) const {
    if (!has(key)) {
      out = absent;
      return {};
    }
    return number(key, lo, hi, out);
  }
  Status number32(std::string_view key, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number(key, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  Status number32_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number_or(key, absent, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  // A value that files may give once or per block: of the executed layers.
  Status each(std::string_view key, const ModelConfig& c, int64_t lo, int64_t hi, std::vector<int64_t>& out) const {
    QUIRE_TRY(const std::vector<uint32_t> v, file_.get_u32_per_layer(full(key), c.layers + c.mtp_layers));
    out.assign(v.begin(), v.begin() + c.layers);
    for (int64_t& x : out) QUIRE_CHECKED(ranged(key, x, lo, hi, x));
    return {};
  }
  // The same of those that must agree.
  Status uniform(std::string_view key, const ModelConfig& c, int64_t lo, int64_t hi, int64_t& out) const {
    std::vector<int64_t> all;
    QUIRE_CHECKED(each(key, c, lo, hi, all));
    out = all.front();
    if (std::any_of(all.begin(), all.end(), [&](int64_t x) { return x != out; }))
      return file_error("{}: differs between blocks, which is not supported", full(key));
    return {};
  }
  Status positive(std::string_view key, float& out) const {
    QUIRE_TRY(out, file_.get_f32_or(full(key), out));
    if (!(out > 0.0f)) return file_error("{}: {} is not positive", full(key), out);
    return {};
  }
  Status real(std::string_view key, float& out) const {
    QUIRE_TRY(out, file_.get_f32_or(full(key), out));
    return {};
  }
  // For values that no operator takes.
  Error unsupported(std::string_view key, std::string_view what) const {
    return file_error("{}: {} not supported", full(key), what);
  }
  const gguf::File& file() const { return file_; }

 private:
  Status ranged(std::string_view key, int64_t v, int64_t lo, int64_t hi, int64_t& out) const {
    if (v < lo || v > hi) return file_error("{}: {} is not between {} and {}", full(key), v, lo, hi);
    out = v;
    return {};
  }
  const gguf::File& file_;
  std::string arch_;
};

constexpr int64_t kMaxBlocks = 512, kMaxExperts = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxHeadDim = 1024;

// Files may give KV heads once or per block. Those of layers without keys and values, often 0, say nothing.
Status read_kv_heads(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kKey = "attention.head_count_kv";
  std::vector<uint32_t> all(static_cast<size_t>(c.layers + c.mtp_layers), static_cast<uint32_t>(c.attention.heads));
  if (k.has(kKey)) {
    QUIRE_TRY(all, k.file().get_u32_per_layer(k.full(kKey), c.layers + c.mtp_layers));
  }
  int64_t of_all = 0, of_window = 0;
  for (size_t i = 0; i < c.mixers.size(); ++i) {
    if (c.mixers[i] == Mixer::kDelta || !c.own_kv(static_cast<int64_t>(i))) continue;
    int64_t& kv = row.own_window_heads && c.mixers[i] == Mixer::kWindowAttention ? of_window : of_all;
    if (all[i] == 0) return file_error("{}: 0 KV heads in block {}, which is one of attention", k.full(kKey), i);
    if (kv != 0 && all[i] != kv) return file_error("{}: differs between blocks, which is not supported", k.full(kKey));
    kv = all[i];
  }
  if (of_all == 0) of_all = of_window > 0 ? of_window : c.attention.heads;  // no layer attends to all
  for (const int64_t kv : {of_all, std::max(of_window, int64_t{1})})
    if (c.attention.heads % kv != 0)
      return file_error("{}: {} heads cannot share {} KV heads", k.full(kKey), c.attention.heads, kv);
  c.attention.kv_heads = static_cast<int32_t>(of_all);
  c.attention.window_heads.kv_heads = static_cast<int32_t>(of_window);
  return {};
}

// How many elements a head has; keys and values must have the same number.
Status read_head_dim(const Keys& k, std::string_view of_layers, int64_t absent, int32_t& out) {
  const std::string key = fmt::format("attention.key_length{}", of_layers);
  const std::string value = fmt::format("attention.value_length{}", of_layers);
  int32_t value_dim = 0;
  QUIRE_CHECKED(k.number32_or(key, absent, 2, kMaxHeadDim, out));
  QUIRE_CHECKED(k.number32_or(value, out, 2, kMaxHeadDim, value_dim));
  if (value_dim == out && out % 2 == 0) return {};
  return file_error("{}: keys of {} and values of {} elements are not supported (must be equal and even)",
                    k.full(value), out, value_dim);
}

// Whether any block has a norm of queries or keys.
bool has_qk_norms(const gguf::File& file, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i)
    for (const TensorRole role : {TensorRole::kAttnQNorm, TensorRole::kAttnKNorm})
      if (file.find_tensor(tensor_name(role, i)) != nullptr) return true;
  return false;
}

Status read_score_scale(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kKey = "attention.scale";
  AttentionSpec& a = c.attention;
  const float own =
      row.score_scale > 0 ? static_cast<float>(row.score_scale) : 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  float said = 0.0f;
  QUIRE_CHECKED(k.real(kKey, said));
  a.scale = own;
  if (said == 0 && row.hidden_scaled_layers > 0 && c.layers == row.hidden_scaled_layers)
    a.scale = 1.0f / std::sqrt(static_cast<float>(c.d_model) / static_cast<float>(a.heads));
  if (said == 0 || std::fabs(said - own) <= 1e-5f * own) return {};
  if (!row.scaled_scores) return k.unsupported(kKey, fmt::format("another scale of attention than {} is", own));
  if (!(said > 0) || !std::isfinite(said)) return file_error("{}: {} is not positive", k.full(kKey), said);
  a.scale = said;
  return {};
}

Status read_attention(const Keys& k, const Architecture& row, ModelConfig& c) {
  AttentionSpec& a = c.attention;
  a.qk_norm = row.qk_norm == Presence::kAlways || (row.qk_norm == Presence::kMaybe && has_qk_norms(k.file(), c.layers));
  a.gated_query = row.gated_query;
  a.value_norm = row.value_norm;
  a.sinks = row.sinks;
  int64_t heads = 0;
  QUIRE_CHECKED(k.uniform("attention.head_count", c, 1, kMaxHeads, heads));
  a.heads = static_cast<int32_t>(heads);
  QUIRE_CHECKED(read_kv_heads(k, row, c));
  QUIRE_CHECKED(read_head_dim(k, "", c.d_model / heads, a.head_dim));
  if (a.window_heads.kv_heads > 0) QUIRE_CHECKED(read_head_dim(k, "_swa", a.head_dim, a.window_heads.head_dim));
  c.eps = 0.0f;
  QUIRE_CHECKED(k.positive("attention.layer_norm_rms_epsilon", c.eps));
  QUIRE_CHECKED(k.number_or("attention.sliding_window", 0, 0, UINT32_MAX, a.window));
  QUIRE_CHECKED(k.real("attn_logit_softcapping", a.soft_cap));
  QUIRE_CHECKED(read_score_scale(k, row, c));
  QUIRE_TRY(a.causal, k.file().get_bool_or(k.full("attention.causal"), true));
  return {};
}

// The paper's own numbers where a file says nothing.
Status read_yarn(const Keys& k, RopeSpec& r) {
  QUIRE_CHECKED(k.real("rope.scaling.yarn_ext_factor", r.extrapolation));
  if (r.extrapolation < 0.0f) r.extrapolation = 1.0f;  // as other programs have it
  if (r.extrapolation > 1.0f)
    return file_error("{}: {} is above 1", k.full("rope.scaling.yarn_ext_factor"), r.extrapolation);
  QUIRE_CHECKED(k.positive("rope.scaling.yarn_beta_fast", r.beta_fast));
  QUIRE_CHECKED(k.positive("rope.scaling.yarn_beta_slow", r.beta_slow));
  if (r.beta_fast <= r.beta_slow)
    return file_error("{}: {} is not above {}, that of the slow ones", k.full("rope.scaling.yarn_beta_fast"),
                      r.beta_fast, r.beta_slow);
  return {};
}

Status read_rope(const Keys& k, const Architecture& row, ModelConfig& c) {
  RopeSpec& r = c.attention.rope;
  r.style = row.rope == RopePairs::kNeighbours ? Rope::Style::kInterleaved : Rope::Style::kHalves;
  QUIRE_CHECKED(k.number32_or("rope.dimension_count", c.attention.head_dim, 2, c.attention.head_dim, r.n_rot));
  if (r.n_rot % 2 != 0) return file_error("{}: {} is odd", k.full("rope.dimension_count"), r.n_rot);
  r.exact_yarn = row.exact_yarn;
  QUIRE_CHECKED(k.positive("rope.freq_base", r.freq_base));
  QUIRE_TRY(const std::string_view type, k.file().get_string_or(k.full("rope.scaling.type"), "none"));
  QUIRE_CHECKED(k.positive("rope.scaling.factor", r.factor));
  QUIRE_CHECKED(k.positive("rope.scaling.attn_factor", r.attn_factor));
  QUIRE_CHECKED(
      k.number_or("rope.scaling.original_context_length", c.context_length, 1, INT32_MAX, r.original_context));
  using Scaling = RopeSpec::Scaling;
  if (type == "yarn") {
    r.scaling = Scaling::kYarn;
    QUIRE_CHECKED(read_yarn(k, r));
  } else if (type == "linear" || type == "none" || type == "longrope") {  // longrope: divisors are tensors
    r.scaling = type == "linear" && r.factor != 1.0f ? Scaling::kLinear : Scaling::kNone;
  } else {
    return file_error("{}: {} is not supported (none, linear, yarn and longrope are)", k.full("rope.scaling.type"),
                      gguf::printable(type));
  }
  // Beyond the context of the first training it has other frequencies: positions end there.
  if (k.file().find_tensor(tensor_name(TensorRole::kRopeShort)) != nullptr)
    c.context_length = std::min(c.context_length, r.original_context);
  c.attention.local_rope = r;
  if (row.local_rope_theta == 0) return {};
  c.attention.local_rope.scaling = Scaling::kNone;
  RopeSpec& local = c.attention.local_rope;
  local.freq_base = static_cast<float>(row.local_rope_theta);
  if (row.own_window_heads) {
    constexpr std::string_view kKey = "rope.dimension_count_swa";
    const int32_t head_dim = c.heads_of(Mixer::kWindowAttention).head_dim;
    QUIRE_CHECKED(k.number32_or(kKey, head_dim, 2, head_dim, local.n_rot));
    if (local.n_rot % 2 != 0) return file_error("{}: {} is odd", k.full(kKey), local.n_rot);
  }
  return k.positive("rope.freq_base_swa", local.freq_base);
}

// How experts are chosen and weighted.
Status read_router(const Keys& k, const Architecture& row, FeedForwardSpec& f) {
  ExpertChoice& r = f.choice;
  QUIRE_TRY(r.normalised, k.file().get_bool_or(k.full("expert_weights_norm"), true));
  int64_t gating = 0;  // 0: not said; 1: softmax; 2: sigmoid; 3: softmax over the chosen, as 1 where they add up to 1
  QUIRE_CHECKED(k.number_or("expert_gating_func", 0, 0, 3, gating));
  if (gating == 2) r.scores = ExpertChoice::Scores::kSigmoid;
  QUIRE_CHECKED(k.real("expert_weights_scale", r.scale));
  if (r.scale == 0) r.scale = 1;  // writers put 0 for none
  if (!row.any_router) {
    if (gating == 2) return k.unsupported("expert_gating_func", "a sigmoid router is");
    if (!r.normalised) return k.unsupported("expert_weights_norm", "experts' weights that do not add up to 1 are");
    return r.scale == 1 ? Status() : k.unsupported("expert_weights_scale", "a scale of the experts is");
  }
  if (!(r.scale > 0) || !std::isfinite(r.scale))
    return file_error("{}: {} is not positive", k.full("expert_weights_scale"), r.scale);
  QUIRE_CHECKED(k.number32_or("expert_group_count", 1, 1, f.experts, r.groups));
  QUIRE_CHECKED(k.number32_or("expert_group_used_count", r.groups, 1, r.groups, r.used_groups));
  if (f.experts % r.groups != 0 || f.experts / r.groups * r.used_groups < f.top_k)
    return file_error("{}: {} experts in {} groups, of which {} may be used by a token of {} experts, do not go up",
                      k.full("expert_group_count"), f.experts, r.groups, r.used_groups, f.top_k);
  return {};
}

Status read_activation(const Keys& k, const Architecture& row, FeedForwardSpec& f) {
  const std::string_view own = row.gelu ? "gelu_pytorch_tanh" : "silu";
  QUIRE_TRY(const std::string_view name, k.file().get_string_or(k.full("hidden_activation"), own));
  f.activation = row.gelu          ? GateActivation::kGeluTanh
                 : row.oai_experts ? GateActivation::kSwigluOai
                                   : GateActivation::kSilu;
  f.biases = row.oai_experts;
  if (name == own) return {};
  if (name.starts_with("gelu")) return k.unsupported("hidden_activation", "another activation than silu is");
  return file_error("{}: {} is not supported ({} is)", k.full("hidden_activation"), gguf::printable(name), own);
}

// How wide it is: a key says so, or how many experts' width it has.
Status read_shared_expert(const Keys& k, const Architecture& row, FeedForwardSpec& f) {
  int64_t count = 0;
  if (row.any_router) QUIRE_CHECKED(k.number_or("expert_shared_count", 0, 0, kMaxExperts, count));
  const int64_t width = count > 0 ? count * f.d_ff_expert : f.d_ff;
  return k.number_or("expert_shared_feed_forward_length", width, 1, kMaxWidth, f.d_ff_shared);
}

// Of the dense ones: layers may differ.
Status read_widths(const Keys& k, const ModelConfig& c, FeedForwardSpec& f) {
  QUIRE_CHECKED(k.each("feed_forward_length", c, 1, kMaxWidth, f.widths));
  f.d_ff = *std::max_element(f.widths.begin(), f.widths.end());
  if (f.d_ff == *std::min_element(f.widths.begin(), f.widths.end())) f.widths.clear();
  return {};
}

Status read_feed_forward(const Keys& k, const Architecture& row, ModelConfig& c) {
  FeedForwardSpec& f = c.ffn;
  QUIRE_CHECKED(read_activation(k, row, f));
  QUIRE_CHECKED(k.number32_or("expert_count", 0, 0, kMaxExperts, f.experts));
  if (row.experts == Presence::kAlways && f.experts == 0)
    return file_error("{}: a model of experts has none", k.full("expert_count"));
  if (row.experts == Presence::kNever && f.experts != 0)
    return file_error("{}: {} has no experts", k.full("expert_count"), c.architecture);
  if (f.experts == 0) return read_widths(k, c, f);
  QUIRE_CHECKED(k.number32("expert_used_count", 1, f.experts, f.top_k));
  f.beside_experts = row.dense_beside_experts;
  if (f.beside_experts)
    QUIRE_CHECKED(read_widths(k, c, f));
  else
    QUIRE_CHECKED(k.number_or("feed_forward_length", 0, 0, kMaxWidth, f.d_ff));
  const int64_t default_width = row.experts_as_wide ? f.d_ff : f.d_ff / f.top_k;
  QUIRE_CHECKED(k.number_or("expert_feed_forward_length", default_width, 1, kMaxWidth, f.d_ff_expert));
  if (f.d_ff_expert < 1) return file_error("{}: missing", k.full("expert_feed_forward_length"));
  if (row.shared_expert) QUIRE_CHECKED(read_shared_expert(k, row, f));
  if (row.any_router) {
    QUIRE_CHECKED(k.number32_or("leading_dense_block_count", 0, 0, c.layers - 1, f.dense_layers));
    if (f.dense_layers > 0 && f.d_ff == 0) return file_error("{}: missing", k.full("feed_forward_length"));
  }
  return read_router(k, row, f);
}

Status read_delta(const Keys& k, const Architecture& row, DeltaSpec& d) {
  d.grouped = row.grouped_value_heads;
  int64_t inner = 0;
  QUIRE_CHECKED(k.number32("ssm.conv_kernel", 2, 64, d.conv_kernel));
  QUIRE_CHECKED(k.number32("ssm.state_size", 1, kMaxHeadDim, d.key_dim));
  QUIRE_CHECKED(k.number32("ssm.group_count", 1, kMaxHeads, d.key_heads));
  QUIRE_CHECKED(k.number32("ssm.time_step_rank", 1, kMaxHeads, d.value_heads));
  QUIRE_CHECKED(k.number("ssm.inner_size", 1, kMaxWidth, inner));
  if (d.value_heads % d.key_heads != 0 || inner % d.value_heads != 0 || inner / d.value_heads > kMaxHeadDim)
    return file_error("{}: {} value heads over {} key heads with {} inner elements do not divide",
                      k.full("ssm.inner_size"), d.value_heads, d.key_heads, inner);
  d.value_dim = static_cast<int32_t>(inner / d.value_heads);
  return {};
}

// How many of the last layers attend to keys and values of others. There must be some that they can be those of.
Status read_shared_kv(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kKey = "attention.shared_kv_layers";
  QUIRE_CHECKED(k.number32_or(kKey, 0, 0, c.layers - 1, c.shared_kv_layers));
  if (c.shared_kv_layers == 0) return {};
  if (!row.shared_kv) return k.unsupported(kKey, "layers that read the keys and values of others are");
  for (int32_t i = c.layers - c.shared_kv_layers; i < c.layers; ++i)
    if (c.kv_layer(i) < 0)
      return file_error("{}: block {} is one of {} without keys and values, and no block before these {} a window",
                        k.full(kKey), i, c.shared_kv_layers,
                        c.mixers[static_cast<size_t>(i)] == Mixer::kWindowAttention ? "has" : "is without");
  return {};
}

Status read_per_layer_embeddings(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kKey = "embedding_length_per_layer_input";
  QUIRE_CHECKED(k.number_or(kKey, 0, 0, kMaxWidth / c.layers, c.d_per_layer));  // those of all layers are one row
  if (c.d_per_layer == 0 || row.per_layer_embeddings) return {};
  return k.unsupported(kKey, "embeddings of each layer are");
}

// Which layers attend to a window: a list says so, or every layer but each interval-th.
Status read_windows(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kKey = "attention.sliding_window_pattern";
  std::vector<bool> list;
  int64_t interval = row.window_interval;
  if (const gguf::Value* const v = k.file().find(k.full(kKey)); v != nullptr && v->is_array) {
    QUIRE_TRY(list, k.file().get_bool_per_layer(k.full(kKey), c.layers + c.mtp_layers));
  } else {
    QUIRE_CHECKED(k.number_or(kKey, row.window_interval, 1, kMaxBlocks, interval));
  }
  for (int32_t i = 0; i < c.layers; ++i)
    if (list.empty() ? (i + 1) % interval != 0 : list[static_cast<size_t>(i)])
      c.mixers[static_cast<size_t>(i)] = Mixer::kWindowAttention;
  return {};
}

// Which layers are gated delta nets: every layer but each interval-th, or as a list says.
Status read_mixers(const Keys& k, const Architecture& row, ModelConfig& c) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  c.mixers.assign(static_cast<size_t>(c.layers), Mixer::kAttention);
  if (row.window_interval > 0 && k.has("attention.sliding_window")) return read_windows(k, row, c);
  if (!row.delta_net) return {};
  std::vector<int32_t> list;
  int64_t interval = 0;
  if (k.has(kList)) {
    QUIRE_TRY(list, k.file().get_i32_per_layer(k.full(kList), c.layers + c.mtp_layers));
  } else {
    QUIRE_CHECKED(k.number_or("full_attention_interval", 4, 1, kMaxBlocks, interval));
  }
  for (int32_t i = 0; i < c.layers; ++i)
    if (list.empty() ? (i + 1) % interval != 0 : list[static_cast<size_t>(i)] != 0)
      c.mixers[static_cast<size_t>(i)] = Mixer::kDelta;
  return {};
}

// What the fields that are there for other models must be.
Status check_supported(const Keys& k, const Architecture& row, const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  // A window that no position of the context looks beyond is none.
  if (row.window_interval == 0 && a.window != 0 && a.window < c.context_length)
    return k.unsupported("attention.sliding_window", "sliding windows are");
  if (a.soft_cap != 0) return k.unsupported("attn_logit_softcapping", "soft caps of attention are");
  if (!a.causal) return k.unsupported("attention.causal", "attention to later positions is");
  if (!row.scaled_embedding && c.embedding_scale != 1)
    return k.unsupported("embedding_scale", "a scale of embeddings is");
  if (c.residual_scale != 1) return k.unsupported("residual_scale", "a scale of the residual stream is");
  if (c.logit_scale != 1) return k.unsupported("logit_scale", "a scale of logits is");
  if (!row.capped_logits && c.logit_soft_cap != 0)
    return k.unsupported("final_logit_softcapping", "a soft cap of logits is");
  return {};
}

}  // namespace

int32_t ModelConfig::attention_layers() const {
  return static_cast<int32_t>(std::ssize(mixers) - std::count(mixers.begin(), mixers.end(), Mixer::kDelta));
}

bool ModelConfig::has_windows() const {
  return attention.window > 0 && std::count(mixers.begin(), mixers.end(), Mixer::kWindowAttention) > 0;
}

int32_t ModelConfig::kv_layer(int32_t layer) const {
  const Mixer kind = mixers[static_cast<size_t>(layer)];
  while (layer >= 0 && (!own_kv(layer) || mixers[static_cast<size_t>(layer)] != kind)) --layer;
  return layer;
}

bool ModelConfig::leaves_out(const std::optional<TensorId>& id) const {
  using enum TensorRole;
  if (!id || id->block < 0 || id->block >= layers || own_kv(id->block)) return false;
  const TensorRole role = id->spec->role;
  return role == kAttnK || role == kAttnKBias || role == kAttnKNorm || role == kAttnV || role == kAttnVBias;
}

ModelSizes ModelConfig::layer_sizes(int64_t block, Mixer m) const {
  ModelSizes s = sizes(m);
  s.d_ff = ffn.width(block);
  return s;
}

ModelSizes ModelConfig::sizes(Mixer m) const {
  const HeadShape heads = heads_of(m);
  return {.vocab = vocab,
          .d_model = d_model,
          .layers = layers,
          .d_per_layer = d_per_layer,
          .heads = attention.heads,
          .kv_heads = heads.kv_heads,
          .head_dim = heads.head_dim,
          .n_rot = attention.rope.n_rot,
          .gated_query = attention.gated_query,
          .conv_kernel = delta.conv_kernel,
          .key_heads = delta.key_heads,
          .value_heads = delta.value_heads,
          .key_dim = delta.key_dim,
          .value_dim = delta.value_dim,
          .d_ff = ffn.d_ff,
          .experts = ffn.experts,
          .d_ff_expert = ffn.d_ff_expert,
          .d_ff_shared = ffn.d_ff_shared};
}

Result<ModelConfig> read_config(const gguf::File& file) {
  ModelConfig c;
  QUIRE_TRY(const std::string_view type, file.get_string_or("general.type", "model"));
  if (type != "model")
    return file_error("general.type is {}: this file holds no language model to run", gguf::printable(type));
  QUIRE_TRY(const std::string_view arch, file.get_string("general.architecture"));
  const Architecture* const row = find_architecture(arch);
  if (row == nullptr)
    return file_error("architecture {} is not supported (supported: {})", gguf::printable(arch), architecture_names());
  c.architecture = arch;
  QUIRE_TRY(const std::string_view name, file.get_string_or("general.name", ""));
  c.name = name;

  const Keys k(file, c.architecture);
  int64_t blocks = 0;
  QUIRE_CHECKED(k.number("block_count", 1, kMaxBlocks, blocks));
  if (row->mtp || row->mtp_left_out)
    QUIRE_CHECKED(k.number32_or("nextn_predict_layers", 0, 0, blocks - 1, c.mtp_layers));
  c.layers = static_cast<int32_t>(blocks) - c.mtp_layers;
  QUIRE_CHECKED(k.number("embedding_length", 1, kMaxWidth, c.d_model));
  QUIRE_CHECKED(k.number("context_length", 1, INT32_MAX, c.context_length));
  QUIRE_CHECKED(read_mixers(k, *row, c));
  QUIRE_CHECKED(read_shared_kv(k, *row, c));
  QUIRE_CHECKED(read_per_layer_embeddings(k, *row, c));
  QUIRE_CHECKED(read_attention(k, *row, c));
  QUIRE_CHECKED(read_rope(k, *row, c));
  QUIRE_CHECKED(read_feed_forward(k, *row, c));
  if (row->delta_net) QUIRE_CHECKED(read_delta(k, *row, c.delta));
  c.norms_after = row->norms_after;
  c.layer_scales = row->layer_scales;
  if (row->scaled_embedding) c.embedding_scale = std::sqrt(static_cast<float>(c.d_model));
  QUIRE_CHECKED(k.real("embedding_scale", c.embedding_scale));
  QUIRE_CHECKED(k.real("residual_scale", c.residual_scale));
  QUIRE_CHECKED(k.real("logit_scale", c.logit_scale));
  QUIRE_CHECKED(k.real("final_logit_softcapping", c.logit_soft_cap));
  if (!(c.logit_soft_cap >= 0) || !std::isfinite(c.logit_soft_cap))
    return file_error("{}: {} is not positive", k.full("final_logit_softcapping"), c.logit_soft_cap);
  QUIRE_CHECKED(check_supported(k, *row, c));
  const std::string embedding_name = tensor_name(TensorRole::kTokenEmbedding);
  const gguf::TensorInfo* embedding = file.find_tensor(embedding_name);
  if (embedding == nullptr) return file_error("tensor {} is missing", embedding_name);
  c.vocab = embedding->dims[1];
  if (c.vocab < 1 || c.vocab > INT32_MAX) return file_error("{}: a vocabulary of {} tokens", embedding_name, c.vocab);
  return c;
}

}  // namespace quire
