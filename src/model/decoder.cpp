#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/activations.h"
#include "ops/all_gather/all_gather.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"
#include "parts/rank_sums.h"

namespace quire {

int64_t logits_slice(int64_t vocab) {
  return std::clamp<int64_t>((int64_t{1} << 24) / vocab / kChunkTokens * kChunkTokens, kChunkTokens, 512);
}

// What all layers of one pass share. `layer` and `caches_only` change from one to the next.
struct Decoder::Pass : LayerPass {
  const StepBatch& step;
  const CacheViews& cache;
  const ForwardOptions& options;

  EmbedArgs tokens(const Weight& table) const {
    return {.tokens = step.tokens(), .sources = step.sources(), .sampled = step.sampled, .table = table, .x = {}};
  }
};

// The caches' layers so far, which are counted by kind.
struct Decoder::CachesSoFar {
  int kv, delta = 0;
  int newest_kv[2] = {};  // of layers without a window, and with one
};

// What a part has put out, and what becomes of it.
struct Decoder::PartResult {
  PartOutput to;       // where it is
  const Tensor& norm;  // of what is added to the residual stream; empty: that is added as it is
  float scale = 1;     // of the stream behind it
  Tensor h = {};       // takes the stream as products want it, where there is a norm
  Tensor next = {};    // the norm of what comes behind, which reads s.h; empty: nothing does at once
  bool whole = false;  // on every rank, though ranks share the model
};

// What is there before the first layer.
void Decoder::input(const Pass& pass, const Activations& s) const {
  EmbedArgs tokens = pass.tokens(w_.embedding);
  tokens.x = s.x;
  if (w_.input.projection.empty()) {
    embed(pass.ctx, tokens);
    if (pass.step.shape.pictures)
      gather_rows(pass.ctx, {.x = pass.step.pictures, .rows = pass.step.picture_rows(), .y = s.x});
  } else
    mtp_input(pass, w_.input, tokens, pass.step.hidden, s.h.dtype, s.x);
  pass.show("embed", s.x);
  if (config_->per_layer.width > 0)
    per_layer_input(pass, config_->per_layer, w_.per_layer, pass.tokens({}), s.per_layer, s.x, s.h, s.normed);
}

void Decoder::forward(const OpContext& ctx, const StepBatch& step, const CacheViews& cache,
                      const ForwardOptions& options, const ForwardOutputs& outputs) const {
  Workspace::Scope scope(ctx.workspace);
  Pass pass{{.ctx = ctx,
             .eps = config_->eps,
             .latency_rows = options.latency ? step.shape.decode_rows : 0,
             .rounded = {step.rows() - step.shape.decode_rows, options.prompts},
             .probe = options.probe},
            step,
            cache,
            options};
  ActivationMemory memory(scope, activation_type(ctx.machine.device), step.rows());
  const Activations s = lay_out(*config_, memory, step.stream);
  QUIRE_CHECK((options.ranks == nullptr ? 1 : options.ranks->of()) == config_->ranks, "the model is shared by {} ranks",
              config_->ranks);
  std::optional<RankSums> sums;
  if (options.ranks != nullptr) pass.ranks = &sums.emplace(*options.ranks, s.partials[0], s.partials[1]);
  if (begins()) input(pass, s);
  CachesSoFar caches{.kv = w_.first_kv_layer};
  const auto to = [&] {
    return sums ? sums->next() : config_->norms_after ? PartOutput{s.part, false} : PartOutput{s.x, true};
  };
  bool normed = false;  // s.h is what the layer begins with
  for (pass.layer = range_.first; pass.layer < range_.end; ++pass.layer) {
    const LayerWeights& l = w_.layers[static_cast<size_t>(pass.layer)];
    pass.caches_only = options.caches_only && pass.layer + 1 == range_.end;
    if (!normed) add_rms_norm(ctx, {.x = s.x, .add = {}, .weight = l.mixer_norm, .eps = pass.eps, .h = s.h});
    pass.show("attn_norm", s.h);
    PartOutput out = to();
    mix(pass, l, caches, out, s);
    if (pass.caches_only) break;
    add_result(pass, {.to = out, .norm = l.mixer_out_norm, .next = l.ffn_norm}, s);
    pass.show("attn_out", s.x);
    pass.show("ffn_norm", s.h);
    const bool more = config_->per_layer.width > 0, parallel = std::holds_alternative<ParallelWeights>(l.ffn);
    const bool pictures = pass.step.shape.pictures && pass.layer < pass.step.deepstack_levels();
    out = parallel ? PartOutput{s.part, false} : to();
    feed_forward(pass, l, out, s);
    // Ranks add up and normalise in one pass where nothing comes between.
    normed = sums && !config_->norms_after && !pictures && pass.layer + 1 < range_.end;
    add_result(pass,
               {.to = out,
                .norm = l.ffn_out_norm,
                .scale = more ? 1.0f : l.out_scale,
                .h = more ? s.h : Tensor{},
                .next = normed ? w_.layers[static_cast<size_t>(pass.layer) + 1].mixer_norm : Tensor{},
                .whole = parallel},
               s);
    if (more) {
      pass.show("ffn_out", s.x);
      per_layer_output(pass, config_->per_layer, l.per_layer, s.per_layer, s.h, s.part);
      add_result(pass, {.to = {s.part, false}, .norm = l.per_layer.norm, .scale = l.out_scale, .whole = true}, s);
    }
    if (pictures)
      gather_rows(
          ctx,
          {.x = pass.step.deepstack_level(pass.layer), .rows = pass.step.picture_rows(), .y = s.x, .add_to_y = true});
    pass.show("layer_out", s.x);
  }
  pass.layer = -1;
  if (ends() && !pass.caches_only) head(pass, s.x, outputs);
  if (sums) sums->leave(pass);
}

// It becomes part of the residual stream: of several ranks their sum does.
void Decoder::add_result(const Pass& pass, const PartResult& r, const Activations& s) const {
  const bool partial = pass.ranks != nullptr && !r.whole;
  const auto norm = [&](const Tensor& from, const Tensor& weight, const Tensor& h) {
    add_rms_norm(pass.ctx, {.x = from, .add = {}, .weight = weight, .eps = pass.eps, .h = h});
  };
  if (partial && !config_->norms_after) return pass.ranks->sum(pass, s.x, true, r.next, s.h);
  if (partial)
    pass.ranks->sum(pass, s.part, false, r.norm, s.normed);
  else if (!r.to.add)
    norm(s.part, r.norm, s.normed);
  if (!r.to.add) {
    const int64_t rows = s.x.dim(0), d = s.x.dim(1);
    reduce_partials(pass.ctx, {.partials = s.normed.reshaped({1, rows, d}), .x = s.x, .scale = r.scale, .h = r.h});
  }
  if (!r.next.empty()) norm(s.x, r.next, s.h);
}

void Decoder::mix(const Pass& pass, const LayerWeights& l, CachesSoFar& caches, const PartOutput& to,
                  const Activations& s) const {
  if (const auto* delta = std::get_if<DeltaWeights>(&l.mixer)) {
    const DeltaState& state = pass.cache.state(caches.delta++);
    return delta_net(pass, config_->delta, *delta, state, pass.step.segments, s.delta, s.h, to);
  }
  const auto& weights = std::get<AttentionWeights>(l.mixer);
  const Mixer mixer = config_->mixers[static_cast<size_t>(pass.layer)];
  const bool window = mixer == Mixer::kWindowAttention;
  int& kv = caches.newest_kv[window ? 1 : 0];
  if (!weights.k.empty()) kv = caches.kv++;  // a layer without keys of its own attends to the newest ones of its kind
  attention(pass, config_->attention, weights,
            {.kv = pass.cache.kv(kv),
             .segments = pass.step.segments_in(pass.cache.kv_pool(kv)),
             .rope = window ? w_.local_rope : w_.rope,
             .window = config_->attention.window_of(mixer),
             .coordinates = window ? Tensor{} : pass.step.coordinates,
             .ends = window || !config_->pictures_in_windows ? pass.step.ends : Tensor{}},
            s.attention.of(mixer), s.h, to);
}

void Decoder::feed_forward(const Pass& pass, const LayerWeights& l, const PartOutput& to, const Activations& s) const {
  if (const auto* dense = std::get_if<DenseWeights>(&l.ffn))
    dense_mlp(pass, config_->dense, *dense, s.h, to);
  else if (const auto* experts = std::get_if<ExpertWeights>(&l.ffn))
    expert_mlps(pass, config_->experts, *experts, s.h, {}, to);
  else
    parallel_mlps(pass, config_->dense, config_->experts, std::get<ParallelWeights>(l.ffn), s.parallel, s.x, s.h, to.x);
}

// Of the residual stream x [T, D]: final norm and head for the rows that want logits, the norm alone for those whose
// hidden states are wanted.
void Decoder::head(const Pass& pass, const Tensor& x, const ForwardOutputs& out) const {
  hidden_states(pass, x, out.hidden);
  if (!out.states.empty())
    add_rms_norm(pass.ctx, {.x = x, .add = {}, .weight = w_.output_norm, .eps = pass.eps, .h = out.states});
  const StepShape& s = pass.step.shape;
  if (s.logit_rows > 0)
    logits(pass, x, pass.step.logit_rows(), pass.options.latency ? s.decode_logit_rows : 0, out.logits);
  if (s.scored_rows > 0 && out.scored != nullptr) scored_logits(pass, x, *out.scored);
}

// Of some rows of x; the first `latency_rows` of them in the arithmetic for latency.
void Decoder::logits(const Pass& pass, const Tensor& x, const Tensor& rows, int64_t latency_rows,
                     const Tensor& out) const {
  const OpContext& ctx = pass.ctx;
  const int64_t count = rows.dim(0), d = config_->d_model;
  Workspace::Scope ws(ctx.workspace);
  const Tensor last = make_tensor(ws.take<float>(count * d), {count, d});
  const DType act = activation_type(ctx.machine.device);
  const Tensor h = make_tensor(ws.take<std::byte>(dtype_bytes(act, count * d)), act, {count, d});
  gather_rows(ctx, {.x = x, .rows = rows, .y = last});
  add_rms_norm(ctx, {.x = last, .add = {}, .weight = w_.output_norm, .eps = pass.eps, .h = h});
  if (pass.ranks == nullptr)
    multiply_head(pass, h, latency_rows, out);
  else {
    AllGatherArgs a{
        .parts = {}, .begins = w_.head_begins, .count = config_->ranks, .link = &pass.ranks->link(), .y = out};
    const Tensor own = make_tensor(ws.take<float>(count * w_.head.rows), {count, w_.head.rows});
    if (w_.head.rows > 0) multiply_head(pass, h, latency_rows, own);
    a.parts[static_cast<size_t>(a.link->rank())] = own;
    all_gather(ctx, a);
  }
  pass.show("output_norm", h);
  pass.show("logits", out);
}

void Decoder::multiply_head(const Pass& pass, const Tensor& h, int64_t latency_rows, const Tensor& out) const {
  linear(pass.ctx, {.x = h, .parts = {{.w = w_.head, .bias = w_.output_bias, .y = out}}, .latency_rows = latency_rows});
  if (config_->logit_soft_cap > 0) soft_cap(pass.ctx, {.x = out, .cap = config_->logit_soft_cap});
}

// Prompt rows all of them: a row's logits are what they would be in any other slice.
void Decoder::scored_logits(const Pass& pass, const Tensor& x, const ScoredLogits& each) const {
  const int64_t rows = pass.step.shape.scored_rows, vocab = config_->vocab, pitch = logits_pitch(vocab);
  const int64_t most = std::min(rows, logits_slice(vocab));
  Workspace::Scope ws(pass.ctx.workspace);
  float* const memory = ws.take<float>(most * pitch);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const Tensor slice = make_tensor(memory, {count, pitch}).cols(0, vocab);
    logits(pass, x, pass.step.scored_rows().rows(first, count), 0, slice);
    each(first, slice);
  }
}

// In float32, however activations are kept: nothing is multiplied by them.
void Decoder::hidden_states(const Pass& pass, const Tensor& x, const Tensor& hidden) const {
  const int64_t rows = pass.step.shape.hidden_rows, d = config_->d_model;
  if (rows == 0) return;
  Workspace::Scope ws(pass.ctx.workspace);
  const Tensor wanted = make_tensor(ws.take<float>(rows * d), {rows, d});
  gather_rows(pass.ctx, {.x = x, .rows = pass.step.hidden_rows(), .y = wanted});
  add_rms_norm(pass.ctx, {.x = wanted, .add = {}, .weight = w_.output_norm, .eps = pass.eps, .h = hidden});
}

}  // namespace quire
