#include "arch/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace quire {
namespace {

using enum TensorRole;
using enum TensorKind;
using enum TensorPlace;
using enum Extent;

constexpr std::string_view kBlockPrefix = "blk.", kWeight = ".weight";

// clang-format off
constexpr TensorSpec kSpecs[] = {
    {kTokenEmbedding, kOnce, kTable, "token_embd.weight", kVocab, kHidden, "model.embed_tokens.weight"},
    {kPerLayerEmbedding, kOnce, kTable, "per_layer_token_embd.weight", kVocab, kAllPerLayer,
     "model.embed_tokens_per_layer.weight"},
    {kPerLayerProjection, kOnce, kMatrix, "per_layer_model_proj.weight", kAllPerLayer, kHidden,
     "model.per_layer_model_projection.weight"},
    {kPerLayerNorm, kOnce, kVector, "per_layer_proj_norm.weight", kOne, kPerLayer,
     "model.per_layer_projection_norm.weight"},
    {kOutputNorm, kOnce, kVector, "output_norm.weight", kOne, kHidden, "model.norm.weight"},
    {kOutput, kOnce, kMatrix, "output.weight", kVocab, kHidden, "lm_head.weight"},
    {kOutputBias, kOnce, kVector, "output.bias", kOne, kVocab},
    {kRopeFreqs, kOnce, kVector, "rope_freqs.weight", kOne, kRotations},
    {kRopeShort, kOnce, kVector, "rope_factors_short.weight", kOne, kRotations},
    {kRopeLong, kOnce, kVector, "rope_factors_long.weight", kOne, kRotations},

    {kAttnNorm, kBlock, kVector, "attn_norm.weight", kOne, kHidden, "input_layernorm.weight"},
    {kFfnNorm, kBlock, kVector, "ffn_norm.weight", kOne, kHidden, "post_attention_layernorm.weight"},
    {kPostAttentionNorm, kBlock, kVector, "post_attention_norm.weight", kOne, kHidden,
     "post_attention_layernorm.weight"},
    {kPostFfnNorm, kBlock, kVector, "post_ffw_norm.weight", kOne, kHidden, "post_feedforward_layernorm.weight"},
    {kPostDenseNorm, kBlock, kVector, "post_ffw_norm_1.weight", kOne, kHidden, "post_feedforward_layernorm_1.weight"},
    {kExpertsNorm, kBlock, kVector, "pre_ffw_norm_2.weight", kOne, kHidden, "pre_feedforward_layernorm_2.weight"},
    {kPostExpertsNorm, kBlock, kVector, "post_ffw_norm_2.weight", kOne, kHidden,
     "post_feedforward_layernorm_2.weight"},
    {kLayerScale, kBlock, kVector, "layer_output_scale.weight", kOne, kOne, "layer_scalar"},

    {kPerLayerGate, kBlock, kMatrix, "inp_gate.weight", kPerLayer, kHidden, "per_layer_input_gate.weight"},
    {kPerLayerOut, kBlock, kMatrix, "proj.weight", kHidden, kPerLayer, "per_layer_projection.weight"},
    {kPostPerLayerNorm, kBlock, kVector, "post_norm.weight", kOne, kHidden, "post_per_layer_input_norm.weight"},

    {kAttnQ, kBlock, kMatrix, "attn_q.weight", kQueryRows, kHidden, "self_attn.q_proj.weight"},
    {kAttnQBias, kBlock, kVector, "attn_q.bias", kOne, kQueryRows, "self_attn.q_proj.bias"},
    {kAttnK, kBlock, kMatrix, "attn_k.weight", kKvHeads, kHidden, "self_attn.k_proj.weight"},
    {kAttnKBias, kBlock, kVector, "attn_k.bias", kOne, kKvHeads, "self_attn.k_proj.bias"},
    {kAttnV, kBlock, kMatrix, "attn_v.weight", kKvHeads, kHidden, "self_attn.v_proj.weight"},
    {kAttnVBias, kBlock, kVector, "attn_v.bias", kOne, kKvHeads, "self_attn.v_proj.bias"},
    {kAttnQkv, kBlock, kMatrix, "attn_qkv.weight", kQkvRows, kHidden, "self_attn.qkv_proj.weight"},
    {kAttnQkvBias, kBlock, kVector, "attn_qkv.bias", kOne, kQkvRows},
    {kAttnOutput, kBlock, kMatrix, "attn_output.weight", kHidden, kHeads, "self_attn.o_proj.weight"},
    {kAttnOutputBias, kBlock, kVector, "attn_output.bias", kOne, kHidden, "self_attn.o_proj.bias"},
    {kAttnQNorm, kBlock, kVector, "attn_q_norm.weight", kOne, kHeadDim, "self_attn.q_norm.weight"},
    {kAttnKNorm, kBlock, kVector, "attn_k_norm.weight", kOne, kHeadDim, "self_attn.k_norm.weight"},
    {kAttnSinks, kBlock, kVector, "attn_sinks.weight", kOne, kHeadCount, "self_attn.sinks"},

    {kDeltaQkv, kBlock, kMatrix, "attn_qkv.weight", kConvChannels, kHidden, "linear_attn.in_proj_qkv.weight"},
    {kDeltaZ, kBlock, kMatrix, "attn_gate.weight", kDeltaInner, kHidden, "linear_attn.in_proj_z.weight"},
    {kDeltaAlpha, kBlock, kMatrix, "ssm_alpha.weight", kDeltaHeads, kHidden, "linear_attn.in_proj_a.weight"},
    {kDeltaBeta, kBlock, kMatrix, "ssm_beta.weight", kDeltaHeads, kHidden, "linear_attn.in_proj_b.weight"},
    {kDeltaBetaAlpha, kBlock, kMatrix, "ssm_ba.weight", kTwiceDeltaHeads, kHidden, "linear_attn.in_proj_ba.weight"},
    {kDeltaPackedIn, kBlock, kMatrix, "ssm_in.weight", kDeltaPacked, kHidden, "linear_attn.in_proj_qkvz.weight"},
    {kDeltaConv, kBlock, kVector, "ssm_conv1d.weight", kConvChannels, kConvKernel, "linear_attn.conv1d.weight"},
    {kDeltaA, kBlock, kVector, "ssm_a", kOne, kDeltaHeads, "linear_attn.A_log"},
    {kDeltaDtBias, kBlock, kVector, "ssm_dt.bias", kOne, kDeltaHeads, "linear_attn.dt_bias"},
    {kDeltaNorm, kBlock, kVector, "ssm_norm.weight", kOne, kDeltaHeadDim, "linear_attn.norm.weight"},
    {kDeltaOut, kBlock, kMatrix, "ssm_out.weight", kHidden, kDeltaInner, "linear_attn.out_proj.weight"},

    {kFfnGate, kBlock, kMatrix, "ffn_gate.weight", kFfn, kHidden, "mlp.gate_proj.weight"},
    {kFfnGateBias, kBlock, kVector, "ffn_gate.bias", kOne, kFfn, "mlp.gate_proj.bias"},
    {kFfnUp, kBlock, kMatrix, "ffn_up.weight", kFfn, kHidden, "mlp.up_proj.weight"},
    {kFfnGateUp, kBlock, kMatrix, "ffn_up.weight", kTwiceFfn, kHidden, "mlp.gate_up_proj.weight"},
    {kFfnUpBias, kBlock, kVector, "ffn_up.bias", kOne, kFfn, "mlp.up_proj.bias"},
    {kFfnDown, kBlock, kMatrix, "ffn_down.weight", kHidden, kFfn, "mlp.down_proj.weight"},
    {kFfnDownBias, kBlock, kVector, "ffn_down.bias", kOne, kHidden, "mlp.down_proj.bias"},

    {kRouter, kBlock, kMatrix, "ffn_gate_inp.weight", kExpertCount, kHidden, "mlp.gate.weight",
     "block_sparse_moe.gate.weight"},
    {kRouterBias, kBlock, kVector, "ffn_gate_inp.bias", kOne, kExpertCount, "mlp.router.bias"},
    {kRouterScale, kBlock, kVector, "ffn_gate_inp.scale", kOne, kHidden, "router.scale"},
    {kRouterSelectionBias, kBlock, kVector, "exp_probs_b.bias", kOne, kExpertCount, "mlp.gate.e_score_correction_bias"},
    {kExpertsGateUp, kBlock, kExperts, "ffn_gate_up_exps.weight", kTwiceExpertFfn, kHidden, {}, {},
     "mlp.experts.gate_up_proj"},
    {kExpertsGate, kBlock, kExperts, "ffn_gate_exps.weight", kExpertFfn, kHidden,
     "mlp.experts.{}.gate_proj.weight", "block_sparse_moe.experts.{}.w1.weight"},
    {kExpertsUp, kBlock, kExperts, "ffn_up_exps.weight", kExpertFfn, kHidden,
     "mlp.experts.{}.up_proj.weight", "block_sparse_moe.experts.{}.w3.weight"},
    {kExpertsDown, kBlock, kExperts, "ffn_down_exps.weight", kHidden, kExpertFfn,
     "mlp.experts.{}.down_proj.weight", "block_sparse_moe.experts.{}.w2.weight", "mlp.experts.down_proj"},
    {kExpertsGateUpBias, kBlock, kVector, "ffn_gate_up_exps.bias", kExpertCount, kTwiceExpertFfn,
     "mlp.experts.gate_up_proj_bias"},
    {kExpertsGateBias, kBlock, kVector, "ffn_gate_exps.bias", kExpertCount, kExpertFfn},
    {kExpertsUpBias, kBlock, kVector, "ffn_up_exps.bias", kExpertCount, kExpertFfn},
    {kExpertsDownBias, kBlock, kVector, "ffn_down_exps.bias", kExpertCount, kHidden, "mlp.experts.down_proj_bias"},
    {kSharedRouter, kBlock, kVector, "ffn_gate_inp_shexp.weight", kOne, kHidden, "mlp.shared_expert_gate.weight"},
    {kSharedGate, kBlock, kMatrix, "ffn_gate_shexp.weight", kSharedFfn, kHidden,
     "mlp.shared_expert.gate_proj.weight"},
    {kSharedUp, kBlock, kMatrix, "ffn_up_shexp.weight", kSharedFfn, kHidden, "mlp.shared_expert.up_proj.weight"},
    {kSharedDown, kBlock, kMatrix, "ffn_down_shexp.weight", kHidden, kSharedFfn,
     "mlp.shared_expert.down_proj.weight"},

    {kMtpProjection, kMtp, kMatrix, "nextn.eh_proj.weight", kHidden, kTwiceHidden, "fc.weight"},
    {kMtpEmbeddingNorm, kMtp, kVector, "nextn.enorm.weight", kOne, kHidden, "pre_fc_norm_embedding.weight"},
    {kMtpHiddenNorm, kMtp, kVector, "nextn.hnorm.weight", kOne, kHidden, "pre_fc_norm_hidden.weight"},
    {kMtpHeadNorm, kMtp, kVector, "nextn.shared_head_norm.weight", kOne, kHidden, "norm.weight"},
    {kMtpEmbedding, kMtp, kTable, "nextn.embed_tokens.weight", kVocab, kHidden, "embed_tokens.weight"},
    {kMtpHead, kMtp, kMatrix, "nextn.shared_head_head.weight", kVocab, kHidden, "lm_head.weight"},
    {kMtpHeadTokens, kOnce, kNumbers, "d2t", kOne, kVocab},
};
// clang-format on

static_assert(std::size(kSpecs) == kTensorRoles);
static_assert(
    [] {
      for (size_t i = 0; i < std::size(kSpecs); ++i)
        if (kSpecs[i].role != static_cast<TensorRole>(i)) return false;
      return true;
    }(),
    "the table is in the order of the roles");

// The number behind "blk.", and what follows the dot behind it; -1 for other names.
int64_t split_block(std::string_view name, std::string_view& rest) {
  rest = name;
  if (!name.starts_with(kBlockPrefix)) return -1;
  int64_t block = -1;
  const char* const end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kBlockPrefix.size(), end, block);
  if (error != std::errc() || block < 0 || at == end || *at != '.') return -1;
  rest = {at + 1, static_cast<size_t>(end - at - 1)};
  return block;
}

}  // namespace

int64_t size_of(Extent e, const ModelSizes& s) {
  const int64_t heads = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const int64_t query = s.gated_query ? 2 * heads : heads, inner = s.value_heads * s.value_dim;
  switch (e) {
    case kOne:
      return 1;
    case kVocab:
      return s.vocab;
    case kHidden:
      return s.d_model;
    case kTwiceHidden:
      return 2 * s.d_model;
    case kPerLayer:
      return s.d_per_layer;
    case kAllPerLayer:
      return s.layers * s.d_per_layer;
    case kQueryRows:
      return query;
    case kHeads:
      return heads;
    case kHeadCount:
      return s.heads;
    case kKvHeads:
      return kv;
    case kQkvRows:
      return query + 2 * kv;
    case kHeadDim:
      return s.head_dim;
    case kRotations:
      return s.n_rot / 2;
    case kFfn:
      return s.d_ff;
    case kTwiceFfn:
      return 2 * s.d_ff;
    case kExpertCount:
      return s.experts;
    case kExpertFfn:
      return s.d_ff_expert;
    case kTwiceExpertFfn:
      return 2 * s.d_ff_expert;
    case kSharedFfn:
      return s.d_ff_shared;
    case kConvKernel:
      return s.conv_kernel;
    case kConvChannels:
      return 2 * s.key_heads * s.key_dim + inner;
    case kDeltaInner:
      return inner;
    case kDeltaHeads:
      return s.value_heads;
    case kTwiceDeltaHeads:
      return 2 * s.value_heads;
    case kDeltaPacked:
      return 2 * s.key_heads * s.key_dim + 2 * inner;
    case kDeltaHeadDim:
      return s.value_dim;
  }
  return 0;
}

std::span<const TensorSpec> all_tensor_specs() {
  return kSpecs;
}

const TensorSpec& tensor_spec(TensorRole role) {
  return kSpecs[static_cast<size_t>(role)];
}

std::string_view without_weight(std::string_view name) {
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return name;
}

std::string tensor_name(TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  return spec.place == kOnce ? std::string(spec.name) : fmt::format("{}{}.{}", kBlockPrefix, block, spec.name);
}

std::string tensor_stem(TensorRole role, int64_t block) {
  return std::string(without_weight(tensor_name(role, block)));
}

int64_t block_of(std::string_view name) {
  std::string_view rest;
  return split_block(name, rest);
}

std::optional<TensorId> find_tensor_spec(std::string_view name) {
  std::string_view rest;
  const int64_t block = split_block(name, rest);
  const auto* spec = std::find_if(std::begin(kSpecs), std::end(kSpecs), [&](const TensorSpec& s) {
    return s.name == rest && (s.place == kOnce) == (block < 0);
  });
  if (spec == std::end(kSpecs)) return std::nullopt;
  return TensorId{spec, block};
}

}  // namespace quire
