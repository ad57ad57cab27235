#include "parts/mtp/mtp.h"

#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "parts/activations.h"

namespace quire {

Result<MtpInput> load_mtp_input(WeightLoader& w, int64_t block) {
  MtpInput in;
  QUIRE_TRY(in.projection, w.matrix(TensorRole::kMtpProjection, block));
  QUIRE_TRY(in.embedding_norm, w.vector(TensorRole::kMtpEmbeddingNorm, block));
  QUIRE_TRY(in.hidden_norm, w.vector(TensorRole::kMtpHiddenNorm, block));
  return in;
}

// It may be of fewer tokens than the model has: d2t then says of which, as EAGLE-3 heads have it (row i is token
// i + d2t[i]).
Result<MtpHead> load_mtp_head(WeightLoader& w, int64_t block) {
  MtpHead head;
  QUIRE_TRY(head.norm, w.optional_vector(TensorRole::kMtpHeadNorm, block));
  QUIRE_TRY(head.tokens, w.optional_numbers(TensorRole::kMtpHeadTokens));
  if (head.tokens.empty()) {
    head.begins = head_begins(w.whole().vocab, w.shard());
    QUIRE_TRY(head.matrix, w.optional_matrix(TensorRole::kMtpHead, block));
    return head;
  }
  const ModelSizes model = w.whole();
  int64_t before = -1;
  for (int64_t i = 0; i < head.tokens.dim(0); ++i) {
    const int64_t token = i + head.tokens.as<int32_t>()[i];
    if (token <= before || token >= model.vocab)
      return file_error("tensor {}: row {} of the head is token {}; tokens must ascend and be below {}",
                        tensor_name(TensorRole::kMtpHeadTokens), i, token, model.vocab);
    head.tokens.as<int32_t>()[i] = static_cast<int32_t>(before = token);
  }
  ModelSizes trimmed = model;
  trimmed.vocab = head.tokens.dim(0);
  w.use(trimmed);
  head.begins = head_begins(trimmed.vocab, w.shard());
  QUIRE_TRY(head.matrix, w.matrix(TensorRole::kMtpHead, block));
  w.use(model);
  return head;
}

void mtp_input(const LayerPass& pass, const MtpInput& w, EmbedArgs tokens, const Tensor& hidden, DType activation,
               const Tensor& x) {
  const int64_t d = x.dim(1);
  Workspace::Scope scope(pass.ctx.workspace);
  ActivationMemory mem(scope, activation, x.dim(0));
  const Tensor e = mem.f32(d), both = mem.act(2 * d);
  const auto normed = [&](const Tensor& from, const Tensor& norm, const Tensor& to) {
    add_rms_norm(pass.ctx, {.x = from, .add = {}, .weight = norm, .eps = pass.eps, .h = to});
  };
  tokens.x = e;
  embed(pass.ctx, tokens);
  normed(e, w.embedding_norm, both.cols(0, d));
  normed(hidden, w.hidden_norm, both.cols(d, d));
  linear(pass.ctx, {.x = both, .parts = {{.w = w.projection, .y = x}}, .latency_rows = pass.latency_rows});
}

}  // namespace quire
