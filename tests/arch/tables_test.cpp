// The tables that architectures and tensors are described by.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "arch/architecture.h"

namespace quire {
namespace {

using enum TensorRole;

TEST(Tensors, NamesLeadBackToTheirRoles) {
  std::map<std::string, std::vector<TensorRole>> roles;
  for (const TensorSpec& spec : all_tensor_specs()) {
    EXPECT_EQ(&tensor_spec(spec.role), &spec);
    const std::string name = tensor_name(spec.role, 12);
    roles[name].push_back(spec.role);
    const auto found = find_tensor_spec(name);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->spec->name, spec.name);
    EXPECT_EQ(found->block, spec.place == TensorPlace::kOnce ? -1 : 12) << name;
    EXPECT_EQ(block_of(name), found->block) << name;
  }
  for (const auto& [name, all] : roles)
    if (name == "blk.12.attn_qkv.weight")
      EXPECT_THAT(all, testing::ElementsAre(kAttnQkv, kDeltaQkv));
    else if (name == "blk.12.ffn_up.weight")
      EXPECT_THAT(all, testing::ElementsAre(kFfnUp, kFfnGateUp));
    else
      EXPECT_EQ(all.size(), 1u) << name;
}

TEST(Tensors, MatricesAreNamedWeight) {
  for (const TensorSpec& spec : all_tensor_specs()) {
    if (spec.kind == TensorKind::kVector || spec.kind == TensorKind::kNumbers) continue;
    EXPECT_EQ(tensor_stem(spec.role, 3) + ".weight", tensor_name(spec.role, 3));
    EXPECT_NE(spec.rows, Extent::kOne) << spec.name;
    if (!spec.in_folder.empty()) {
      EXPECT_NE(without_weight(spec.in_folder), spec.in_folder) << spec.name;
    }
  }
}

TEST(Tensors, NamesInFoldersAreTheirOwn) {
  // The norm before the feed-forward has two names in GGUF and one in model folders.
  std::set<std::pair<TensorPlace, std::string_view>> seen;
  for (const TensorSpec& spec : all_tensor_specs())
    for (const std::string_view name : {spec.in_folder, spec.mixtral, spec.packed})
      if (!name.empty() && spec.role != kPostAttentionNorm) {
        EXPECT_TRUE(seen.emplace(spec.place, name).second) << name;
      }
}

TEST(Tensors, UnknownNames) {
  for (const char* name : {"", "blk.", "blk.3", "blk.3.", "blk.x.attn_q.weight", "blk.-1.attn_q.weight", "blk.3.attn_q",
                           "attn_q.weight", "blk.0.token_embd.weight", "blk.99999999999999999999.attn_q.weight",
                           "blk.3.attn_q.weight.scale", "v.blk.3.attn_q.weight"})
    EXPECT_FALSE(find_tensor_spec(name)) << name;
  for (const char* name :
       {"", "blk.", "blk.3", "blk.x.a", "blk.-1.a", "blk.99999999999999999999.a", "token_embd.weight"})
    EXPECT_EQ(block_of(name), -1) << name;
  EXPECT_EQ(block_of("blk.511."), 511);
  EXPECT_EQ(block_of("blk.7.whatever"), 7);
}

TEST(Tensors, SizesByHand) {
  const ModelSizes plain{.vocab = 1000, .d_model = 64, .heads = 4, .kv_heads = 2, .head_dim = 24, .n_rot = 16};
  EXPECT_EQ(size_of(Extent::kQueryRows, plain), 96);
  EXPECT_EQ(size_of(Extent::kQkvRows, plain), 96 + 2 * 48);
  EXPECT_EQ(size_of(Extent::kRotations, plain), 8);
  EXPECT_EQ(size_of(Extent::kTwiceHidden, plain), 128);
  ModelSizes s = plain;
  s.gated_query = true;
  EXPECT_EQ(size_of(Extent::kQueryRows, s), 192);
  EXPECT_EQ(size_of(Extent::kHeads, s), 96) << "the gate is no part of what attention puts out";
  s.key_heads = 2, s.key_dim = 32, s.value_heads = 6, s.value_dim = 16;
  EXPECT_EQ(size_of(Extent::kConvChannels, s), 2 * 64 + 96);
  EXPECT_EQ(size_of(Extent::kDeltaInner, s), 96);
  EXPECT_EQ(size_of(Extent::kDeltaPacked, s), 2 * 64 + 2 * 96);
  EXPECT_EQ(size_of(Extent::kTwiceDeltaHeads, s), 12);
  s.d_ff = 7;
  EXPECT_EQ(size_of(Extent::kTwiceFfn, s), 14);
  s.d_ff_expert = 5;
  EXPECT_EQ(size_of(Extent::kTwiceExpertFfn, s), 10);
  s.layers = 6, s.d_per_layer = 40;
  EXPECT_EQ(size_of(Extent::kPerLayer, s), 40);
  EXPECT_EQ(size_of(Extent::kAllPerLayer, s), 240);
  EXPECT_EQ(size_of(Extent::kOne, {}), 1);
}

TEST(Architectures, AreFoundByName) {
  std::set<std::string_view> classes;
  for (const Architecture& a : architectures()) {
    EXPECT_EQ(find_architecture(a.name), &a);
    EXPECT_FALSE(a.classes[0].empty()) << a.name;
    for (const std::string_view c : a.classes)
      if (!c.empty()) {
        EXPECT_TRUE(classes.insert(c).second) << c;
      }
    // One tensor cannot normalise what attention adds and what the feed-forward reads.
    EXPECT_TRUE(!a.norms_after || a.ffn_norm == kFfnNorm) << a.name;
    // What comes of them is added as those norms are.
    EXPECT_TRUE(!a.per_layer_embeddings || a.norms_after) << a.name;
    std::set<TensorRole> renamed;
    for (const FolderTensorName& own : a.folder_names)
      if (!own.name.empty()) {
        EXPECT_TRUE(renamed.insert(own.role).second) << own.name;
        EXPECT_NE(own.name, tensor_spec(own.role).in_folder) << "needs no name of its own";
      }
    EXPECT_TRUE(a.ffn_norm == kFfnNorm || a.ffn_norm == kPostAttentionNorm) << a.name;
  }
  EXPECT_EQ(architecture_names(),
            "llama, qwen2, qwen3, qwen3moe, qwen3vl, qwen3vlmoe, qwen35, qwen35moe, qwen3next, phi3, glm4, glm4moe, "
            "gpt-oss, gemma3, gemma4");
  EXPECT_EQ(find_architecture(""), nullptr);
  EXPECT_EQ(find_architecture("gpt-neox"), nullptr);
}

TEST(Architectures, SayWhatABlockMayNotHave) {
  EXPECT_EQ(find_unsupported_tensor("blk.0.attn_sinks.weight")->what, "attention sinks");
  EXPECT_EQ(find_unsupported_tensor("blk.41.ffn_gate_exps.bias")->what, "biases of experts");
  for (const char* name : {"attn_sinks.weight", "blk.0.", "blk.0.attn_q.weight", "blk.0.attn_sinks.weight.scale", ""})
    EXPECT_EQ(find_unsupported_tensor(name), nullptr) << name;
}

}  // namespace
}  // namespace quire
