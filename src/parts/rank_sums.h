// How what the parts of one rank put out becomes whole, where several share a model.
#pragma once

#include "ops/all_reduce/all_reduce.h"
#include "parts/pass.h"

namespace quire {

// For one pass. Parts write partial results to two memories in turns (RankLink::meet); the ranks add up each of them.
class RankSums {
 public:
  // Both [T, D] f32.
  RankSums(RankLink& link, const Tensor& first, const Tensor& second) : link_(link), partials_{first, second} {}

  RankLink& link() const { return link_; }
  // Where the next part leaves what it computes.
  PartOutput next() const { return {partials_[turn_], false}; }
  // The sum of what it left on all ranks: to x [T, D], or added to it; and what `weight` normalises of that to h, if
  // there is one.
  void sum(const LayerPass& pass, const Tensor& x, bool add_to_x, const Tensor& weight, const Tensor& h);
  // At the end of a pass: nobody reads the memories any more.
  void leave(const LayerPass& pass) const;

 private:
  RankLink& link_;
  Tensor partials_[2];
  size_t turn_ = 0;
};

}  // namespace quire
