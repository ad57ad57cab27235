// How operators of ranks meet.
#pragma once

#include "ops/all_reduce/ranks.h"
#include "ops/op.h"

namespace quire {

// Whether a pass computes nothing: then nobody else may be there, and nobody is waited for.
inline bool is_dry(const OpContext& ctx) {
  return ctx.only_chooses || ctx.pool.dry() || (ctx.gpu != nullptr && ctx.gpu->dry);
}

// RankLink::meet; in a dry pass every rank's place is `mine`.
inline RankLink::Places meet(const OpContext& ctx, RankLink& link, std::byte* mine) {
  if (!is_dry(ctx)) return link.meet(mine);
  RankLink::Places all;
  all.fill(mine);
  return all;
}

}  // namespace quire
