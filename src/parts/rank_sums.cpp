#include "parts/rank_sums.h"

#include "ops/all_reduce/meet.h"

namespace quire {

void RankSums::sum(const LayerPass& pass, const Tensor& x, bool add_to_x, const Tensor& weight, const Tensor& h) {
  AllReduceArgs a{.partials = {}, .count = link_.of(), .link = &link_, .x = x, .add_to_x = add_to_x};
  a.partials[static_cast<size_t>(link_.rank())] = partials_[turn_];
  if (!weight.empty()) a.weight = weight, a.eps = pass.eps, a.h = h;
  all_reduce(pass.ctx, a);
  turn_ = 1 - turn_;
}

void RankSums::leave(const LayerPass& pass) const {
  meet(pass.ctx, link_, nullptr);
}

}  // namespace quire
