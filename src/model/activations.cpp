#include "model/activations.h"

#include <algorithm>

namespace quire {

Activations lay_out(const ModelConfig& c, ActivationMemory& mem, const StreamRows& stream) {
  const bool attends = c.attention_layers() > 0;
  Activations s;
  s.x = stream.x.empty() ? mem.f32(c.d_model) : stream.x;
  s.h = mem.act(c.d_model);
  // A mixer's result before its last projection: one of them at a time.
  const Tensor mix = mem.act(std::max(attends ? c.attention.query_width() : 0, c.has_state() ? c.delta.inner() : 0));
  if (attends) s.attention = lay_out(c.attention, mem, mix);
  if (c.has_state()) s.delta = lay_out(c.delta, mem, mix);
  if (c.ranks > 1)
    for (Tensor& t : s.partials) t = mem.f32(c.d_model);
  if (c.norms_after) s.part = mem.f32(c.d_model), s.normed = mem.f32(c.d_model);
  if (c.experts.beside_dense) s.parallel = lay_out_parallel(c.d_model, mem);
  if (c.per_layer.width > 0) s.per_layer = lay_out(c.per_layer, mem, stream.per_layer);
  return s;
}

}  // namespace quire
