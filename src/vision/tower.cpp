#include "vision/tower.h"

#include <algorithm>
#include <cmath>

#include "ops/gelu/gelu.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear/linear.h"
#include "ops/mix_rows/mix_rows.h"
#include "ops/norm/norm.h"
#include "ops/normalise_patches/normalise_patches.h"
#include "ops/rows/rows.h"
#include "ops/scale_clamp/scale_clamp.h"

namespace quire {
namespace {

// Rows that a wide product takes at a time: what it puts out for all patches of a large image would be the largest
// thing in memory. A row's bits do not depend on it. A GPU's multiprocessors want more work at once.
int64_t slice_rows_of(const OpContext& ctx) {
  return ctx.machine.device == Device::kCuda ? 4096 : 1024;
}

DType activation_of(const OpContext& ctx) {
  return ctx.machine.device == Device::kReference ? DType::kF32 : DType::kBF16;
}

void expect_patches(const Tensor& patches, int64_t count, const VisionConfig& c) {
  const bool bytes = patches.dtype == DType::kI8;
  QUIRE_CHECK(bytes || patches.dtype == DType::kF32, "patches: are bytes or f32");
  expect_shape("patches", patches, count, bytes ? c.patch_bytes() : c.patch_width());
}

void expect_output(const VisionOutput& out, int64_t tokens, const VisionConfig& c) {
  expect_shape("rows", out.rows, tokens, c.out_width);
  const int64_t levels = std::ssize(c.deepstack);
  if (levels > 0) expect_shape("deepstack", out.deepstack, levels, tokens, c.out_width);
}

// Queries, keys or values: a third of a row of the fused product, as heads.
Tensor heads_of(const Tensor& qkv, const VisionConfig& c, int64_t third) {
  Tensor t = qkv.cols(third * c.width, c.width);
  t.rank = 3;
  t.shape = {qkv.dim(0), c.heads, c.head_dim()};
  t.stride = {qkv.stride[0], c.head_dim(), 1};
  return t;
}

// Rows of whole heads as heads.
Tensor as_heads(const Tensor& rows, const VisionConfig& c) {
  return rows.reshaped({rows.dim(0), c.heads, c.head_dim()});
}

// One pass through a tower.
class Pass {
 public:
  Pass(const OpContext& ctx, const VisionConfig& config, const VisionWeights& weights, const VisionArrays& batch,
       const VisionActivations& activations)
      : ctx_(ctx), c_(config), w_(weights), batch_(batch), a_(activations) {}

  void run(const VisionSlice& slice, const Tensor& patches, const VisionOutput& out, const LayerProbe* probe) const {
    if (slice.begin == 0) {
      embed(patches);
      if (probe != nullptr) (*probe)("embedded", -1, a_.x);
    }
    for (int64_t i = slice.begin; i < slice.end; ++i) {
      const VisionBlock& b = w_.blocks[static_cast<size_t>(i)];
      if (c_.family == VisionFamily::kGemma4) {
        attend_normed(b);
        feed_forward_gated(b);
      } else {
        attend(b);
        feed_forward(b);
      }
      if (probe != nullptr) (*probe)("block", static_cast<int>(i), a_.x);
      const auto level = std::ranges::find(c_.deepstack, i) - c_.deepstack.begin();
      if (level == std::ssize(c_.deepstack)) continue;
      stack(w_.deepstack[static_cast<size_t>(level)], level_of(out.deepstack, level));
    }
    if (slice.end < c_.blocks) return;
    if (c_.family == VisionFamily::kQwen3)
      merge(w_.merger, out.rows);
    else if (c_.family == VisionFamily::kGemma3)
      pool(out.rows);
    else
      pool_scaled(out.rows);
  }

 private:
  // Calls fn(first, count) for slices of the rows.
  template <class Fn>
  void by_slices(int64_t rows, Fn&& fn) const {
    const int64_t most = a_.inner.dim(0);
    for (int64_t first = 0; first < rows; first += most) fn(first, std::min(most, rows - first));
  }

  void embed(const Tensor& patches) const {
    by_slices(batch_.patches, [&](int64_t first, int64_t count) {
      const Tensor slice = prepared(patches.rows(first, count));
      linear(ctx_, {.x = slice, .parts = {{.w = w_.patch.w, .bias = w_.patch.bias, .y = a_.x.rows(first, count)}}});
    });
    mix_rows(ctx_,
             {.rows = batch_.mixed, .weights = batch_.mix_weights, .table = w_.positions, .x = a_.x, .add_to_x = true});
  }

  // Patches as they are multiplied: rounded, and with zeros behind them.
  Tensor prepared(const Tensor& patches) const {
    const int64_t count = patches.dim(0), width = c_.patch_width();
    const Tensor rows = a_.patch.rows(0, count);
    if (patches.dtype == DType::kI8) {
      normalise_patches(ctx_, {patches, w_.colours, rows, c_.patch * c_.patch, c_.frames});
      return rows;
    }
    if (rows.dtype == DType::kF32 && w_.padding.empty()) return patches;
    copy_columns(patches, patches.stride[0], 0, count);
    if (!w_.padding.empty()) copy_columns(w_.padding, 0, width, count);
    return rows;
  }
  // Rows `stride` elements apart, to the columns from `first` on. A sum of one part is that part, and comes with a
  // rounded copy.
  void copy_columns(const Tensor& from, int64_t stride, int64_t first, int64_t count) const {
    const int64_t columns = from.dim(from.rank - 1);
    Tensor part = from;
    part.rank = 3;
    part.shape = {1, count, columns};
    part.stride = {count * stride, stride, 1};
    const auto to = [&](const Tensor& rows) { return rows.rows(0, count).cols(first, columns); };
    ReducePartialsArgs args{.partials = part, .x = to(a_.exact.empty() ? a_.patch : a_.exact), .add_to_x = false};
    if (!a_.exact.empty()) args.h = to(a_.patch);
    reduce_partials(ctx_, args);
  }

  void norm(const VisionNorm& n, const Tensor& x, const Tensor& h) const {
    layer_norm(ctx_, {.x = x, .add = {}, .weight = n.weight, .bias = n.bias, .eps = c_.eps, .h = h});
  }

  void attend(const VisionBlock& b) const {
    norm(b.norm1, a_.x, a_.h);
    if (!b.qkv.w.empty()) {
      linear(ctx_, {.x = a_.h, .parts = {{.w = b.qkv.w, .bias = b.qkv.bias, .y = a_.qkv}}});
    } else {
      LinearPart parts[3];
      const VisionLinear* const each[] = {&b.q, &b.k, &b.value};
      for (int64_t i = 0; i < 3; ++i)
        parts[i] = {.w = each[i]->w, .bias = each[i]->bias, .y = a_.qkv.cols(i * c_.width, c_.width)};
      linear(ctx_, {.x = a_.h, .parts = parts});
    }
    VisionAttentionArgs args;
    args.q = heads_of(a_.qkv, c_, 0);
    args.k = heads_of(a_.qkv, c_, 1);
    args.v = heads_of(a_.qkv, c_, 2);
    if (c_.rotates()) args.rotation = {batch_.positions, w_.inv_freq, batch_.side, PlanePairs::kAcross};
    args.spans = batch_.spans;
    args.scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim()));
    args.out = a_.h;
    vision_attention(ctx_, args);
    linear(ctx_, {.x = a_.h, .parts = {{.w = b.out.w, .bias = b.out.bias, .y = a_.x, .add_to_y = true}}});
  }

  void feed_forward(const VisionBlock& b) const {
    norm(b.norm2, a_.x, a_.h);
    two_products(b.up, b.down, GeluForm::kTanh, a_.h, a_.x, true);
  }

  // y = down(gelu(up(h))), or that added to y.
  void two_products(const VisionLinear& up, const VisionLinear& down, GeluForm form, const Tensor& h, const Tensor& y,
                    bool add) const {
    by_slices(h.dim(0), [&](int64_t first, int64_t count) {
      const Tensor inner = a_.inner.rows(0, count).cols(0, up.w.rows);
      linear(ctx_, {.x = h.rows(first, count), .parts = {{.w = up.w, .bias = up.bias, .y = inner}}});
      gelu(ctx_, {.x = inner, .y = inner, .form = form});
      linear(ctx_,
             {.x = inner, .parts = {{.w = down.w, .bias = down.bias, .y = y.rows(first, count), .add_to_y = add}}});
    });
  }

  Tensor level_of(const Tensor& levels, int64_t level) const {
    return make_tensor(levels.bytes_at(level * levels.stride[0]), levels.dtype, {batch_.tokens, c_.out_width});
  }
  // Patches of a token side by side.
  Tensor merged(const Tensor& rows) const { return rows.reshaped({batch_.tokens, c_.merged_width()}); }

  void merge(const VisionMerger& m, const Tensor& y) const {
    norm(m.norm, a_.x, a_.h);
    two_products(m.up, m.down, GeluForm::kErf, merged(a_.h), y, false);
  }
  // These normalise what is merged.
  void stack(const VisionMerger& m, const Tensor& y) const {
    norm(m.norm, merged(a_.x), merged(a_.h));
    two_products(m.up, m.down, GeluForm::kErf, merged(a_.h), y, false);
  }

  void pool(const Tensor& y) const {
    // Room for float32 that is free by now.
    const Tensor rows = make_tensor(a_.qkv.data, DType::kF32, {batch_.patches, c_.width});
    norm(w_.post_norm, a_.x, rows);
    mix_rows(ctx_, {.rows = batch_.pooled, .weights = batch_.pool_weights, .table = rows, .x = a_.pooled});
    add_rms_norm(ctx_, {a_.pooled, {}, w_.projection_norm, c_.eps, a_.normed});
    linear(ctx_, {.x = a_.normed, .parts = {{.w = w_.projection, .bias = {}, .y = y}}});
  }

  // Gemma 4: norms without means around everything, products whose inputs and outputs are held between bounds.

  void rms_norm(const Tensor& weight, const Tensor& x, const Tensor& h) const {
    add_rms_norm(ctx_, {.x = x, .add = {}, .weight = weight, .eps = c_.eps, .h = h});
  }
  // Float32 [rows, width] of a_.wide, behind so many elements for each row.
  Tensor wide(int64_t rows, int64_t elements, int64_t width) const {
    return make_tensor(a_.wide.bytes_at(rows * elements), DType::kF32, {rows, width});
  }
  // x between the bounds, as products take it: x itself where there are none.
  Tensor within(const VisionBounds& bounds, const Tensor& x) const {
    if (!bounds.any()) return x;
    const Tensor y = a_.bounded.rows(0, x.dim(0));
    scale_clamp(ctx_, {.x = x, .y = y, .low = bounds.low, .high = bounds.high});
    return y;
  }
  void hold(const VisionBounds& bounds, const Tensor& x) const {
    if (bounds.any()) scale_clamp(ctx_, {.x = x, .y = x, .low = bounds.low, .high = bounds.high});
  }
  // y = l(x); what of x lies beyond the bounds changes in place where it is `spent`.
  void product(const VisionLinear& l, const Tensor& x, bool spent, const Tensor& y) const {
    if (spent) hold(l.in, x);
    linear(ctx_, {.x = spent ? x : within(l.in, x), .parts = {{.w = l.w, .bias = {}, .y = y}}});
    hold(l.out, y);
  }
  // Adds what a part put out, normalised, to rows of the stream.
  void add_normed(const Tensor& norm, const Tensor& part, const Tensor& normed, const Tensor& x) const {
    rms_norm(norm, part, normed);
    reduce_partials(ctx_, {.partials = normed.reshaped({1, x.dim(0), c_.width}), .x = x});
  }

  void attend_normed(const VisionBlock& b) const {
    const int64_t patches = batch_.patches, d = c_.head_dim();
    rms_norm(b.norm1.weight, a_.x, a_.h);
    const auto third = [&](int64_t i) { return a_.qkv.rows(i * patches, patches); };
    by_slices(patches, [&](int64_t first, int64_t count) {
      const VisionLinear* const each[] = {&b.q, &b.k, &b.value};
      const Tensor* const norms[] = {&b.q_norm, &b.k_norm, &w_.value_norm};
      for (int64_t i = 0; i < 3; ++i) {
        const Tensor y = wide(count, 0, c_.width);
        product(*each[i], a_.h.rows(first, count), false, y);
        rms_norm(*norms[i], y.reshaped({count * c_.heads, d}),
                 third(i).rows(first, count).reshaped({count * c_.heads, d}));
      }
    });
    VisionAttentionArgs args;
    args.q = as_heads(third(0), c_);
    args.k = as_heads(third(1), c_);
    args.v = as_heads(third(2), c_);
    args.rotation = {batch_.positions, w_.inv_freq, batch_.side, PlanePairs::kWithin};
    args.spans = batch_.spans;
    args.out = a_.h;
    vision_attention(ctx_, args);
    by_slices(patches, [&](int64_t first, int64_t count) {
      const Tensor part = wide(count, 0, c_.width);
      product(b.out, a_.h.rows(first, count), true, part);
      add_normed(b.out_norm, part, wide(count, c_.width, c_.width), a_.x.rows(first, count));
    });
  }

  void feed_forward_gated(const VisionBlock& b) const {
    rms_norm(b.norm2.weight, a_.x, a_.h);
    by_slices(batch_.patches, [&](int64_t first, int64_t count) {
      const Tensor gate = wide(count, 0, c_.ffn), up = wide(count, c_.ffn, c_.ffn), inner = a_.inner.rows(0, count);
      product(b.gate, a_.h.rows(first, count), false, gate);
      product(b.up, a_.h.rows(first, count), false, up);
      gated_product(ctx_, {.gate = gate, .up = up, .y = inner, .activation = GateActivation::kGeluTanh});
      const Tensor part = wide(count, 0, c_.width);
      product(b.down, inner, true, part);
      add_normed(b.ffn_norm, part, wide(count, c_.width, c_.width), a_.x.rows(first, count));
    });
  }

  void pool_scaled(const Tensor& y) const {
    mix_rows(ctx_, {.rows = batch_.pooled, .weights = batch_.pool_weights, .table = a_.x, .x = a_.pooled});
    if (!w_.pooled_scale.empty())
      scale_clamp(ctx_, {.x = a_.pooled, .y = a_.pooled, .shift = w_.pooled_shift, .scale = w_.pooled_scale});
    rms_norm(w_.projection_norm, a_.pooled, a_.normed);
    linear(ctx_, {.x = a_.normed, .parts = {{.w = w_.projection, .bias = {}, .y = y}}});
  }

  const OpContext& ctx_;
  const VisionConfig& c_;
  const VisionWeights& w_;
  const VisionArrays& batch_;
  const VisionActivations& a_;
};

}  // namespace

VisionActivations lay_out(const VisionConfig& c, ActivationMemory& mem, int64_t tokens, int64_t slice_rows,
                          DType patches, const Tensor& x) {
  const bool merges = c.family == VisionFamily::kQwen3;
  const ActivationMemory slice = mem.of_rows(std::min(slice_rows, mem.rows())), of_tokens = mem.of_rows(tokens);
  VisionActivations a;
  a.x = x.empty() ? mem.f32(c.width) : x;
  a.h = mem.act(c.width);
  a.qkv = mem.act(3 * c.width);
  if (c.family == VisionFamily::kGemma4) {
    a.qkv = a.qkv.reshaped({3 * mem.rows(), c.width});
    a.wide = slice.f32(std::max(3 * c.width, 2 * c.ffn));
    a.bounded = slice.act(c.width);
  }
  a.inner = slice.act(merges ? std::max(c.ffn, c.merged_width()) : c.ffn);
  a.patch = slice.act(c.patch_columns());
  if (patches == DType::kF32 && mem.activation() != DType::kF32) a.exact = slice.f32(c.patch_columns());
  if (!merges) {
    a.pooled = of_tokens.f32(c.width);
    a.normed = of_tokens.act(c.width);
  }
  return a;
}

Result<std::unique_ptr<const VisionTower>> VisionTower::load(const gguf::File& file) {
  QUIRE_TRY(VisionConfig config, read_vision_config(file));
  std::unique_ptr<VisionTower> tower(new VisionTower(std::move(config)));
  QUIRE_TRY(tower->weights_, load_vision_weights(file, tower->config_, tower->arena_));
  return std::unique_ptr<const VisionTower>(std::move(tower));
}

std::unique_ptr<const VisionTower> VisionTower::placed(WeightPlacer& v) const {
  std::unique_ptr<VisionTower> tower(new VisionTower(config_));
  tower->weights_ = weights_;
  VisionWeights::visit(tower->weights_, v);
  return tower;
}

void VisionTower::forward(const OpContext& ctx, const Tensor& patches, const VisionArrays& batch,
                          const VisionOutput& out, const LayerProbe* probe) const {
  expect_patches(patches, batch.patches, config_);
  expect_output(out, batch.tokens, config_);
  if (batch.patches == 0) return;
  Workspace::Scope scope(ctx.workspace);
  ActivationMemory memory(scope, activation_of(ctx), batch.patches);
  const VisionActivations activations = lay_out(config_, memory, batch.tokens, slice_rows_of(ctx), patches.dtype);
  Pass(ctx, config_, weights_, batch, activations).run({0, config_.blocks}, patches, out, probe);
}

void VisionTower::forward_slice(const OpContext& ctx, const VisionSlice& slice, const Tensor& patches,
                                const VisionArrays& batch, const Tensor& x, const VisionOutput& out) const {
  QUIRE_CHECK(0 <= slice.begin && slice.begin < slice.end && slice.end <= config_.blocks, "blocks [{}, {}) of {}",
              slice.begin, slice.end, config_.blocks);
  expect_shape("x", x, batch.patches, config_.width);
  if (slice.begin == 0) expect_patches(patches, batch.patches, config_);
  expect_output(out, batch.tokens, config_);
  if (batch.patches == 0) return;
  Workspace::Scope scope(ctx.workspace);
  ActivationMemory memory(scope, activation_of(ctx), batch.patches);
  const VisionActivations activations = lay_out(config_, memory, batch.tokens, slice_rows_of(ctx), patches.dtype, x);
  Pass(ctx, config_, weights_, batch, activations).run(slice, patches, out, nullptr);
}

int64_t VisionTower::scratch_bytes(Machine machine, ThreadPool& pool, const VisionBatch& batch, DType patches,
                                   GpuContext* gpu) const {
  Workspace workspace;
  OpContext ctx{pool, workspace, machine};
  ctx.gpu = gpu;
  const VisionArrays arrays = batch.arrays();
  const auto levels = static_cast<int64_t>(config_.deepstack.size());
  // Memory that nobody touches: the pool calls nothing.
  void* const nowhere = workspace.memory().data();
  VisionOutput out;
  out.rows = make_tensor(nowhere, DType::kF32, {arrays.tokens, config_.out_width});
  if (levels > 0) out.deepstack = make_tensor(nowhere, DType::kF32, {levels, arrays.tokens, config_.out_width});
  const auto set_dry = [&](bool dry) {
    pool.set_dry(dry);
    if (gpu != nullptr) gpu->dry = dry;
  };
  set_dry(true);
  const int64_t width = patches == DType::kI8 ? config_.patch_bytes() : config_.patch_width();
  forward(ctx, make_tensor(nowhere, patches, {arrays.patches, width}), arrays, out);
  set_dry(false);
  return workspace.high_water();
}

}  // namespace quire
