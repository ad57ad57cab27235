#include "arch/vision.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/result.h"

namespace quire {
namespace {

using enum VisionRole;

constexpr VisionFamilyRow kFamilies[] = {
    {VisionFamily::kQwen3, "qwen3vl_merger", 2, true},
    {VisionFamily::kGemma3, "gemma3", 1, false},
    {VisionFamily::kGemma4, "gemma4v", 1, false},
};

// Source of the names in GGUF: gguf-py's tables of tensors (gguf 0.19.0 of PyPI); of those in folders: transformers.
constexpr VisionTensor kTensors[] = {
    {kPatch, false, "v.patch_embd", "patch_embed.proj", "embeddings.patch_embedding", "patch_embedder.input_proj"},
    {kPositions, false, "v.position_embd", "pos_embed", "embeddings.position_embedding",
     "patch_embedder.position_embedding_table"},
    {kNorm1, true, "v.blk.{}.ln1", "blocks.{}.norm1", "encoder.layers.{}.layer_norm1",
     "encoder.layers.{}.input_layernorm"},
    {kQkv, true, "v.blk.{}.attn_qkv", "blocks.{}.attn.qkv", "", ""},
    {kQuery, true, "v.blk.{}.attn_q", "", "encoder.layers.{}.self_attn.q_proj", "encoder.layers.{}.self_attn.q_proj"},
    {kKey, true, "v.blk.{}.attn_k", "", "encoder.layers.{}.self_attn.k_proj", "encoder.layers.{}.self_attn.k_proj"},
    {kValue, true, "v.blk.{}.attn_v", "", "encoder.layers.{}.self_attn.v_proj", "encoder.layers.{}.self_attn.v_proj"},
    {kQueryNorm, true, "v.blk.{}.attn_q_norm", "", "", "encoder.layers.{}.self_attn.q_norm"},
    {kKeyNorm, true, "v.blk.{}.attn_k_norm", "", "", "encoder.layers.{}.self_attn.k_norm"},
    {kAttnOut, true, "v.blk.{}.attn_out", "blocks.{}.attn.proj", "encoder.layers.{}.self_attn.out_proj",
     "encoder.layers.{}.self_attn.o_proj"},
    {kAttnOutNorm, true, "v.blk.{}.attn_post_norm", "", "", "encoder.layers.{}.post_attention_layernorm"},
    {kNorm2, true, "v.blk.{}.ln2", "blocks.{}.norm2", "encoder.layers.{}.layer_norm2",
     "encoder.layers.{}.pre_feedforward_layernorm"},
    {kGate, true, "v.blk.{}.ffn_gate", "", "", "encoder.layers.{}.mlp.gate_proj"},
    {kUp, true, "v.blk.{}.ffn_up", "blocks.{}.mlp.linear_fc1", "encoder.layers.{}.mlp.fc1",
     "encoder.layers.{}.mlp.up_proj"},
    {kDown, true, "v.blk.{}.ffn_down", "blocks.{}.mlp.linear_fc2", "encoder.layers.{}.mlp.fc2",
     "encoder.layers.{}.mlp.down_proj"},
    {kFfnOutNorm, true, "v.blk.{}.ffn_post_norm", "", "", "encoder.layers.{}.post_feedforward_layernorm"},
    {kPostNorm, false, "v.post_ln", "merger.norm", "post_layernorm", ""},
    {kMergeUp, false, "mm.0", "merger.linear_fc1", "", ""},
    {kMergeDown, false, "mm.2", "merger.linear_fc2", "", ""},
    {kStackNorm, true, "v.deepstack.{}.norm", "deepstack_merger_list.{}.norm", "", ""},
    {kStackUp, true, "v.deepstack.{}.fc1", "deepstack_merger_list.{}.linear_fc1", "", ""},
    {kStackDown, true, "v.deepstack.{}.fc2", "deepstack_merger_list.{}.linear_fc2", "", ""},
    {kPooledShift, false, "v.std_bias", "", "", "std_bias"},
    {kPooledScale, false, "v.std_scale", "", "", "std_scale"},
    {kProjectionNorm, false, "mm.soft_emb_norm", "", "mm_soft_emb_norm", ""},
    {kProjection, false, "mm.input_projection", "", "mm_input_projection_weight", "embedding_projection"},
};

static_assert(
    [] {
      for (size_t i = 0; i < std::size(kTensors); ++i)
        if (static_cast<size_t>(kTensors[i].role) != i) return false;
      return std::size(kTensors) == static_cast<size_t>(kProjection) + 1;
    }(),
    "a row for each role, in order");

}  // namespace

const VisionFamilyRow* find_vision_family(std::string_view projector) {
  const auto* const row =
      std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const auto& r) { return r.projector == projector; });
  return row == std::end(kFamilies) ? nullptr : row;
}

const VisionFamilyRow& vision_row(VisionFamily family) {
  return kFamilies[static_cast<size_t>(family)];
}

std::string vision_projectors() {
  std::string all;
  for (const VisionFamilyRow& row : kFamilies) all.append(all.empty() ? "" : ", ").append(row.projector);
  return all;
}

const VisionTensor& vision_tensor(VisionRole role) {
  return kTensors[static_cast<size_t>(role)];
}

std::string vision_stem(VisionRole role, int64_t block) {
  return fmt::format(fmt::runtime(vision_tensor(role).stem), block);
}

std::string vision_folder_stem(VisionFamily family, VisionRole role, int64_t number) {
  const VisionTensor& t = vision_tensor(role);
  const std::string_view stem = family == VisionFamily::kQwen3    ? t.qwen3
                                : family == VisionFamily::kGemma3 ? t.gemma3
                                                                  : t.gemma4;
  QUIRE_CHECK(!stem.empty(), "the family has no {}", t.stem);
  return fmt::format(fmt::runtime(stem), number);
}

}  // namespace quire
