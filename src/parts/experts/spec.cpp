#include "parts/experts/spec.h"

#include <cmath>

#include "parts/keys.h"

namespace quire {
namespace {

// How experts are chosen and weighted.
Status read_router(const ModelKeys& k, const Architecture& row, ExpertsSpec& f) {
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
  QUIRE_CHECKED(k.number32_or("expert_group_count", 1, 1, f.count, r.groups));
  QUIRE_CHECKED(k.number32_or("expert_group_used_count", r.groups, 1, r.groups, r.used_groups));
  if (f.count % r.groups != 0 || f.count / r.groups * r.used_groups < f.top_k)
    return file_error("{}: {} experts in {} groups, of which {} may be used by a token of {} experts, do not go up",
                      k.full("expert_group_count"), f.count, r.groups, r.used_groups, f.top_k);
  return {};
}

// How wide it is: a key says so, or how many experts' width it has.
Status read_shared_expert(const ModelKeys& k, const Architecture& row, const DenseSpec& dense, ExpertsSpec& f) {
  int64_t count = 0;
  if (row.any_router) QUIRE_CHECKED(k.number_or("expert_shared_count", 0, 0, kMaxExperts, count));
  const int64_t width = count > 0 ? count * f.d_ff : dense.d_ff;
  return k.number_or("expert_shared_feed_forward_length", width, 1, kMaxWidth, f.d_ff_shared);
}

}  // namespace

Result<int32_t> read_expert_count(const ModelKeys& k, const Architecture& row) {
  int32_t count = 0;
  QUIRE_CHECKED(k.number32_or("expert_count", 0, 0, kMaxExperts, count));
  if (row.experts == Presence::kAlways && count == 0)
    return file_error("{}: a model of experts has none", k.full("expert_count"));
  if (row.experts == Presence::kNever && count != 0)
    return file_error("{}: {} has no experts", k.full("expert_count"), k.architecture());
  return count;
}

Result<ExpertsSpec> read_experts(const ModelKeys& k, const Architecture& row, int32_t count, const DenseSpec& dense) {
  ExpertsSpec f{.count = count, .activation = dense.activation};
  f.beside_dense = row.dense_beside_experts;
  f.biases = row.oai_experts;
  QUIRE_CHECKED(k.number32("expert_used_count", 1, f.count, f.top_k));
  const int64_t default_width = row.experts_as_wide ? dense.d_ff : dense.d_ff / f.top_k;
  QUIRE_CHECKED(k.number_or("expert_feed_forward_length", default_width, 1, kMaxWidth, f.d_ff));
  if (f.d_ff < 1) return file_error("{}: missing", k.full("expert_feed_forward_length"));
  if (row.shared_expert) QUIRE_CHECKED(read_shared_expert(k, row, dense, f));
  if (row.any_router) {
    QUIRE_CHECKED(k.number32_or("leading_dense_block_count", 0, 0, k.layers() - 1, f.dense_layers));
    if (f.dense_layers > 0 && dense.d_ff == 0) return file_error("{}: missing", k.full("feed_forward_length"));
  }
  QUIRE_CHECKED(read_router(k, row, f));
  return f;
}

}  // namespace quire
