// What a block for multi-token prediction has beside a layer: its input, and the head that it may have of its own.
#pragma once

#include <array>

#include "arch/shard.h"
#include "ops/rows/rows.h"
#include "parts/pass.h"
#include "parts/weight_loader.h"

namespace quire {

// The input is made of the embedding of a token and the hidden state of the position before it, after the model's final
// norm.
struct MtpInput {
  Weight projection;  // [D, 2 D], of the two side by side; empty: an ordinary decoder, whose input is the embedding
  Tensor embedding_norm, hidden_norm;

  static void visit(auto& w, auto& v) {
    v.vector(w.embedding_norm);
    v.vector(w.hidden_norm);
    v.matrix(w.projection);
  }
};
Result<MtpInput> load_mtp_input(WeightLoader& w, int64_t block);

// Empty where the block has the model's.
struct MtpHead {
  Tensor norm;
  Weight matrix;
  Tensor tokens;  // [rows of the whole] i32, ascending: the tokens that its rows stand for; empty: their own numbers
  std::array<int64_t, kMostRanks + 1> begins{};  // of each rank's rows (arch/shard.h)

  static void visit(auto& w, auto& v) {
    v.vector(w.norm);
    if (!w.matrix.empty()) v.matrix(w.matrix);
    v.vector(w.tokens);
  }
};
Result<MtpHead> load_mtp_head(WeightLoader& w, int64_t block);

// The rows x [T, D] f32 before the layer, from hidden states [T, D] f32. `tokens`: without x.
void mtp_input(const LayerPass& pass, const MtpInput& w, EmbedArgs tokens, const Tensor& hidden, DType activation,
               const Tensor& x);

}  // namespace quire
