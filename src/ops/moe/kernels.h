// The kernels behind moe's table, and the routing they share.
#pragma once

#include "ops/gemm/core.h"
#include "ops/moe/moe.h"

namespace quire::moe_detail {

// The k largest of logits[0, experts) in descending order, ties to the lower index, and the weights of the
// contract. p is a monotone function of the logits, so they are compared instead. The sum of the k largest of
// E probabilities is at least k / E, so the contract's lower bound of 2^-14 cannot be reached with E <= 2^14
// and the weights are a softmax over the chosen.
void route(const float* logits, int experts, int k, int32_t* chosen, float* weights);
// The same by any choice; `scores` and `keys` [experts] are scratch.
void route(const ExpertChoice& choice, const float* logits, int experts, int k, float* scores, float* keys,
           int32_t* chosen, float* weights);

void run(const gemm::Core& core, const OpContext& ctx, const MoeArgs& a);
void reference(const OpContext& ctx, const MoeArgs& a);

// Shows ctx.observer the inputs of all matrices; a.chosen holds the choice already made.
void observe(const OpContext& ctx, const MoeArgs& a);

}  // namespace quire::moe_detail
