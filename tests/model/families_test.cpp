// What only some architectures have: windows, heads of their own, other RoPEs, scales, routers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <span>

#include "model/cost.h"
#include "model/edited.h"
#include "model/memory.h"
#include "support/cache_bytes.h"

namespace quire {
namespace {

using test::Edited;
using test::GgufEdit;
using test::Opened;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Windows, AreWhereTheFileSays) {
  const Edited gemma("tiny-gemma3");
  const std::string pattern = "gemma3.attention.sliding_window_pattern";
  const auto windowed = [&](const GgufEdit& edit) {
    const Opened o = gemma.open(edit);
    EXPECT_EQ(o.error(), "");
    std::string layers;
    for (const Mixer m : (*o.model)->config().mixers) layers += m == Mixer::kWindowAttention ? 'w' : 'a';
    return layers;
  };
  EXPECT_EQ(windowed({}), "wwaw");
  EXPECT_EQ(windowed({.drop = {pattern}}), "wwww") << "each sixth attends to all";
  EXPECT_EQ(windowed({.drop = {pattern},
                      .metadata =
                          [&](gguf::Writer& w) {
                            const bool list[] = {false, true, false, true};
                            w.add_array(pattern, std::span<const bool>(list));
                          }}),
            "awaw");
  EXPECT_EQ(windowed({.drop = {"gemma3.attention.sliding_window"}}), "aaaa");
  EXPECT_THAT(gemma.with("attention.sliding_window_pattern", 0u),
              HasSubstr("sliding_window_pattern: 0 is not between"));
}

TEST(LongRope, EndsTheContextWhereOtherFrequenciesBegin) {
  const Edited phi("tiny-phi3");
  const std::string key = "phi3.rope.scaling.original_context_length";
  const auto context = [&](std::set<std::string> without) {
    without.insert(key);
    const Opened o = phi.open({.drop = without, .metadata = [&](gguf::Writer& w) { w.add(key, uint32_t{1024}); }});
    EXPECT_EQ(o.error(), "");
    EXPECT_TRUE((*o.model)->unread().empty()) << "the divisors for longer contexts are known";
    return (*o.model)->config().context_length;
  };
  EXPECT_EQ(context({}), 1024);
  EXPECT_EQ(context({"rope_factors_short.weight", "rope_factors_long.weight"}), 2048);
}

TEST(Windows, HaveARopeOfTheirOwn) {
  const Edited gemma("tiny-gemma3");
  const Opened o = gemma.open({.drop = {"gemma3.rope.freq_base_swa", "gemma3.attention.scale"}});
  ASSERT_EQ(o.error(), "");
  const AttentionSpec& a = (*o.model)->config().attention;
  EXPECT_EQ(a.local_rope.freq_base, 1e4f);
  EXPECT_EQ(a.local_rope.scaling, RopeSpec::Scaling::kNone);
  EXPECT_EQ(a.rope.freq_base, 1e6f);
  EXPECT_EQ(a.rope.scaling, RopeSpec::Scaling::kLinear);
  EXPECT_EQ(a.scale, 1 / std::sqrt(32.0f));
  EXPECT_THAT(gemma.with("attention.scale", -1.0f), HasSubstr("attention.scale: -1 is not positive"));
}

// Gemma's embedding is multiplied where it is looked up, and not where it is the head.
TEST(Embeddings, AreScaledAsInputsAlone) {
  const Edited gemma("tiny-gemma3");
  const Opened o = gemma.open({.drop = {"output.weight"}});
  ASSERT_EQ(o.error(), "");
  struct Find final : WeightVisitor {
    Weight embedding, last;
    void matrix(const Weight& w) override { last = w; }
    void table(const Weight& w) override { embedding = w; }
    void vector(const Tensor&) override {}
  } find;
  (*o.model)->decoder().visit(find);
  EXPECT_EQ(find.embedding.scale_of(), std::sqrt(96.0f));
  EXPECT_EQ(find.last.data, find.embedding.data) << "the head is the embedding";
  EXPECT_EQ(find.last.scale_of(), 1.0f);
}

TEST(Routers, AreCheckedAgainstTheirExperts) {
  const Edited glm("tiny-glm4moe");
  EXPECT_THAT(glm.with("expert_group_count", 3u), HasSubstr("8 experts in 3 groups"));
  EXPECT_THAT(glm.with("expert_group_used_count", 1u), HasSubstr("of which 1 may be used by a token of 3 experts"));
  EXPECT_THAT(glm.with("expert_group_used_count", 5u), HasSubstr("5 is not between 1 and 4"));
  EXPECT_THAT(glm.with("leading_dense_block_count", 3u), HasSubstr("3 is not between 0 and 2"));
  EXPECT_THAT(glm.with("leading_dense_block_count", 2u), HasSubstr("blk.1.ffn_gate.weight' is missing"));
  EXPECT_THAT(glm.with("expert_weights_scale", -1.0f), HasSubstr("expert_weights_scale: -1 is not positive"));
  EXPECT_EQ(glm.with("expert_gating_func", 1u), "") << "a softmax";
}

TEST(Unread, TensorsThatChangeNothingAreListed) {
  const Edited dense("tiny-qwen3");
  const Opened o = dense.open({.add = {{"blk.1.attn_q.input_scale", {1}},
                                       {"v.blk.0.attn_q.weight", {8}},
                                       {"mm.0.weight", {8}},
                                       {"a.conv1d.0.weight", {8}},
                                       {"blk.2.attn_rot_embd.weight", {8}}}});
  ASSERT_EQ(o.error(), "");
  EXPECT_THAT((*o.model)->unread(), testing::ElementsAre("v.blk.0.attn_q.weight", "mm.0.weight", "a.conv1d.0.weight",
                                                         "blk.2.attn_rot_embd.weight"))
      << "factors of static activations belong to their matrix";
}

TEST(Unread, OtherTensorsAreRefusedByName) {
  const Edited dense("tiny-qwen3"), experts("tiny-qwen3moe"), delta("tiny-qwen35"), gemma("tiny-gemma4e");
  for (const char* name : {"vision.weight", "blk.9.x", "token_embd_norm.weight", "output_norm.bias",
                           "blk.1.attn_norm.bias", "blk.0.attn_q_b.weight", "blk.0.ffn_gate.weight_scale_2"})
    for (const Edited* file : {&dense, &experts, &delta})
      EXPECT_THAT(file->error({.add = {{name, {4}}}}), HasSubstr(fmt::format("tensor '{}' is read by nothing", name)));
  // Layers that attend to the keys of others leave theirs alone, with what belongs to them, and nothing else.
  EXPECT_EQ(gemma.error({.add = {{"blk.3.attn_k.weight", {96, 128}}, {"blk.3.attn_k.scale", {1}}}}), "");
  EXPECT_THAT(gemma.error({.add = {{"blk.3.attn_k.shift", {1}}}}),
              HasSubstr("'blk.3.attn_k.shift' is read by nothing"));
}

// Some writers name the factors of a matrix after the tensor, not after what it is called without ".weight".
TEST(Scales, HaveTwoNames) {
  const Edited dense("tiny-qwen3");
  for (const char* name : {"blk.1.attn_q.scale", "blk.1.attn_q.weight.scale"}) {
    const float factor = 0.5f;
    std::vector<std::byte> bytes(sizeof factor);
    std::memcpy(bytes.data(), &factor, sizeof factor);
    const Opened o =
        dense.open({.add = {{"blk.1.attn_q.weight.input_scale", {1}}}, .tensors = {{name, DType::kF32, {1}, bytes}}});
    ASSERT_EQ(o.error(), "") << name;
    EXPECT_TRUE((*o.model)->unread().empty()) << name;
    struct Find : WeightVisitor {
      int scaled = 0;
      void matrix(const Weight& w) override { scaled += w.scale != nullptr && *w.scale == 0.5f; }
      void table(const Weight&) override {}
      void vector(const Tensor&) override {}
    } find;
    (*o.model)->decoder().visit(find);
    EXPECT_EQ(find.scaled, 1) << name;
    bytes.assign(sizeof factor, std::byte{0xff});
    EXPECT_EQ(dense.error({.tensors = {{name, DType::kF32, {1}, bytes}}}),
              fmt::format("tensor {}: factor 0 is not finite", name));
  }
}

// ---- Gemma 4 ----

TEST(Gemma4, HasHeadsForEachKindOfLayer) {
  const Edited gemma("tiny-gemma4");
  const Opened o = gemma.open({});
  ASSERT_EQ(o.error(), "");
  const ModelConfig& c = (*o.model)->config();
  EXPECT_EQ(c.attention.heads_of(Mixer::kAttention), (HeadShape{.kv_heads = 1, .head_dim = 64}));
  EXPECT_EQ(c.attention.heads_of(Mixer::kWindowAttention), (HeadShape{.kv_heads = 2, .head_dim = 32}));
  EXPECT_EQ(c.attention.scale, 1.0f);
  EXPECT_EQ(c.attention.rope.n_rot, 64);
  EXPECT_EQ(c.attention.local_rope.n_rot, 32);
  EXPECT_EQ(c.logit_soft_cap, 10.0f);
  EXPECT_TRUE(c.attention.value_norm);
  EXPECT_THAT(gemma.with("attention.key_length_swa", 30u), HasSubstr("values of 32 elements"));
  EXPECT_THAT(gemma.with("rope.dimension_count_swa", 34u),
              HasSubstr("dimension_count_swa: 34 is not between 2 and 32"));
  EXPECT_THAT(gemma.with("final_logit_softcapping", -1.0f), HasSubstr("final_logit_softcapping: -1 is not positive"));
  EXPECT_EQ(gemma.with("final_logit_softcapping", 0.0f), "") << "none";
}

TEST(Gemma4, HasEqualHeadsInLayersOfAKind) {
  const Edited gemma("tiny-gemma4");
  const auto kv_heads = [&](std::array<int32_t, 4> heads) {
    return gemma.error({.drop = {"gemma4.attention.head_count_kv"}, .metadata = [&](gguf::Writer& w) {
                          w.add_array("gemma4.attention.head_count_kv", std::span<const int32_t>(heads));
                        }});
  };
  EXPECT_EQ(kv_heads({2, 1, 2, 1}), "");
  EXPECT_THAT(kv_heads({2, 1, 1, 1}), HasSubstr("differs between blocks"));
  EXPECT_THAT(kv_heads({3, 1, 3, 1}), HasSubstr("4 heads cannot share 3 KV heads"));
}

// The small kind: the last layers attend to the newest keys and values of their kind, and are twice as wide.
TEST(Gemma4, SharesKeysAndValuesAmongItsLastLayers) {
  const Edited gemma("tiny-gemma4e");
  const Opened o = gemma.open({});
  ASSERT_EQ(o.error(), "");
  const ModelConfig& c = (*o.model)->config();
  std::vector<int32_t> of;
  for (int32_t i = 0; i < c.layers; ++i) of.push_back(c.attention.kv_layer(c.mixers, i));
  EXPECT_THAT(of, ElementsAre(0, 1, 2, 1, 2, 1, 2, 1));
  EXPECT_EQ(c.dense.width(2), 112);
  EXPECT_EQ(c.dense.width(3), 224);
  EXPECT_EQ(c.dense.d_ff, 224) << "of the widest";
  // Memory for three layers, as many reads as there are layers.
  const CacheShape apart = cache_shape(c, DType::kBF16, KvCacheType::kAuto, {.window = 40});
  const int64_t window = 2 * 2 * 32 * 16 * 2, all = 2 * 2 * 64 * 16 * 2;
  EXPECT_EQ(test::unit_bytes(apart, "window"), 2 * window);
  EXPECT_EQ(test::unit_bytes(apart, "kv"), all);
  EXPECT_EQ(test::unit_bytes(cache_reads(c, apart), "window"), 4 * window);
  EXPECT_EQ(test::unit_bytes(cache_reads(c, apart), "kv"), 4 * all);
  EXPECT_EQ(test::unit_bytes(cache_reads(c, cache_shape(c, DType::kBF16)), "kv"), 4 * (window + all));
  const auto memory = estimate_memory(o.file, c, 1000, 1, 64);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(memory->of("kv"), 63 * all);
  EXPECT_EQ(memory->of("window"), (most_window_blocks(40, 0) + 4) * 2 * window);
}

// Files of other writers have keys and values in all layers.
TEST(Gemma4, LeavesKeysThatNothingReadsAlone) {
  const Edited gemma("tiny-gemma4e");
  const Opened o = gemma.open({.add = {{"blk.3.attn_k.weight", {96, 128}},
                                       {"blk.3.attn_v.weight", {96, 128}},
                                       {"blk.3.attn_k_norm.weight", {64}}}});
  ASSERT_EQ(o.error(), "");
  EXPECT_THAT((*o.model)->unread(),
              ElementsAre("blk.3.attn_k.weight", "blk.3.attn_v.weight", "blk.3.attn_k_norm.weight"));
  const CacheShape cache = cache_shape((*o.model)->config(), DType::kBF16);
  const Opened plain(gemma.original());
  EXPECT_EQ(model_cost(o.file, (*o.model)->config(), cache).always_bytes,
            model_cost(plain.file, (*plain.model)->config(), cache).always_bytes);
}

TEST(Gemma4, NamesWhatIsWrongWithSharedKeys) {
  const Edited gemma("tiny-gemma4e"), older("tiny-gemma3");
  EXPECT_THAT(gemma.with("attention.shared_kv_layers", 8u), HasSubstr("shared_kv_layers: 8 is not between 0 and 7"));
  EXPECT_EQ(gemma.with("attention.shared_kv_layers", 7u),
            "gemma4.attention.shared_kv_layers: block 1 is one of 7 without keys and values, and no block before these "
            "is without a window");
  EXPECT_EQ(gemma.with("attention.shared_kv_layers", 4u), "tensor 'blk.3.attn_k.weight' is missing");
  EXPECT_EQ(older.with("attention.shared_kv_layers", 2u),
            "gemma3.attention.shared_kv_layers: layers that read the keys and values of others are not supported");
  const auto widths = [&](std::array<uint32_t, 8> list) {
    return gemma.error({.drop = {"gemma4.feed_forward_length"}, .metadata = [&](gguf::Writer& w) {
                          w.add_array("gemma4.feed_forward_length", std::span<const uint32_t>(list));
                        }});
  };
  EXPECT_EQ(widths({112, 112, 112, 224, 224, 224, 224, 224}), "");
  EXPECT_THAT(widths({112, 112, 112, 224, 0, 224, 224, 224}), HasSubstr("feed_forward_length: 0 is not between 1"));
  EXPECT_THAT(widths({112, 112, 112, 224, 112, 224, 224, 224}), HasSubstr("tensor blk.4.ffn_gate.weight: shape"));
  EXPECT_THAT(gemma.with("feed_forward_length", 112u), HasSubstr("tensor blk.3.ffn_gate.weight: shape"));
}

TEST(Gemma4, HasEmbeddingsOfEachLayer) {
  const Edited gemma("tiny-gemma4e"), older("tiny-gemma3"), large("tiny-gemma4");
  const Opened o = gemma.open({});
  ASSERT_EQ(o.error(), "");
  struct Find final : WeightVisitor {
    std::vector<Weight> tables;
    Weight projection;
    void matrix(const Weight& w) override {
      if (projection.empty() && w.rows == 8 * 40) projection = w;  // before the head, which has as many rows
    }
    void table(const Weight& w) override { tables.push_back(w); }
    void vector(const Tensor&) override {}
  } find;
  (*o.model)->decoder().visit(find);
  ASSERT_EQ(find.tables.size(), 2u);
  EXPECT_EQ(find.tables[1].cols, 8 * 40);
  EXPECT_EQ(find.tables[1].scale_of(), std::sqrt(40.0f));
  EXPECT_EQ(find.projection.scale_of(), 1 / std::sqrt(96.0f));
  EXPECT_THAT(gemma.with("embedding_length_per_layer_input", 48u),
              HasSubstr("tensor per_layer_token_embd.weight: shape [320, 320] does not fit the model"));
  EXPECT_THAT(gemma.with("embedding_length_per_layer_input", UINT32_MAX),
              HasSubstr("embedding_length_per_layer_input: 4294967295 is not between 0 and 131072"));
  EXPECT_THAT(gemma.with("embedding_length_per_layer_input", 0u),
              HasSubstr("tensor 'per_layer_token_embd.weight' is read by nothing: the architecture gemma4"));
  EXPECT_THAT(large.with("embedding_length_per_layer_input", 256u), HasSubstr("per_layer_token_embd.weight"));
  EXPECT_EQ(older.with("embedding_length_per_layer_input", 256u),
            "gemma3.embedding_length_per_layer_input: embeddings of each layer are not supported");
}

// Only layers that attend to all take their keys for values; a window's are missing.
TEST(Gemma4, TakesKeysForValuesWhereNoneAreProjected) {
  const Edited gemma("tiny-gemma4moe");
  EXPECT_EQ(gemma.error({.drop = {"blk.2.attn_v.weight"}}), "");
  EXPECT_EQ(gemma.error({.drop = {"blk.1.attn_v.weight"}}), "tensor 'blk.1.attn_v.weight' is missing");
}

// What the router multiplies by carries the root of the hidden size, and its name is no factor of the router's matrix.
TEST(Gemma4, ReadsTheRoutersScaleAsANorm) {
  const Edited gemma("tiny-gemma4moe");
  const Opened o = gemma.open({});
  ASSERT_EQ(o.error(), "");
  struct Find final : WeightVisitor {
    std::vector<Weight> routers, downs;
    std::vector<Tensor> vectors;
    void matrix(const Weight& w) override {
      if (w.dtype == DType::kF32 && w.rows == 8) routers.push_back(w);
      if (w.experts == 8) downs.push_back(w);
    }
    void table(const Weight&) override {}
    void vector(const Tensor& t) override { vectors.push_back(t); }
  } find;
  (*o.model)->decoder().visit(find);
  ASSERT_EQ(find.routers.size(), 3u);
  EXPECT_EQ(find.routers[0].scale, nullptr);
  const auto* scales = reinterpret_cast<const float*>(o.file.find_tensor("blk.1.ffn_down_exps.scale")->data);
  bool found = false;
  for (const Weight& w : find.downs) found |= w.scale == scales;
  EXPECT_TRUE(found) << "each expert's weight is the factor of its down matrix";
  const auto* raw = reinterpret_cast<const float*>(o.file.find_tensor("blk.0.ffn_gate_inp.scale")->data);
  found = false;
  for (const Tensor& t : find.vectors)
    found |= !t.empty() && t.dtype == DType::kF32 && t.elems() == 64 && t.as<float>()[5] == raw[5] * (1.0f / 8.0f);
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace quire
