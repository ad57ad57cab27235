// What the folders of single families say in their own way: defaults, kinds of RoPE, windows, routers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/support.h"

namespace quire::test {
namespace {

using convert::RopeScaling;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Mistral, EndsItsContextAtTheWindow) {
  json document = hf_config(model("tiny-mistral"));
  document["sliding_window"] = 512;
  const convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.context, 512);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("context_length is 512 instead of 2048")));
  document["sliding_window"] = nullptr;
  EXPECT_EQ(config_of(document).context, 2048);
  document.erase("sliding_window");  // 4096, more than the context
  EXPECT_EQ(config_of(document).context, 2048);
}

TEST(Phi3, ReadsLongRope) {
  json document = hf_config(model("tiny-phi3"));
  document["original_max_position_embeddings"] = 1024;
  convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kLongRope);
  EXPECT_EQ(c.rope.original_context, 1024);
  EXPECT_EQ(c.rope.short_factors.size(), 12u);
  EXPECT_EQ(c.rope.attn_factor, 1.125);
  document["rope_scaling"].erase("attention_factor");
  document["rope_scaling"]["type"] = "su";
  c = config_of(document);
  EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kLongRope);
  EXPECT_DOUBLE_EQ(c.rope.attn_factor, std::sqrt(1 + std::log(2.0) / std::log(1024.0)));
  document["rope_scaling"]["short_factor"] = {1.0, 2.0};
  EXPECT_THAT(refusal(document), HasSubstr("short_factor: is not a list of 12 numbers"));
  document["rope_scaling"]["short_factor"] = document["rope_scaling"]["long_factor"];
  document["rope_scaling"]["short_factor"][3] = 0;
  EXPECT_THAT(refusal(document), HasSubstr("short_factor: 0 is not a positive number"));
}

TEST(Qwen3Next, HasExpertsThatAddUpToOne) {
  json document = hf_config(model("tiny-qwen3next"));
  document["norm_topk_prob"] = false;
  EXPECT_THAT(refusal(document), HasSubstr("norm_topk_prob: must be true"));
  document.erase("norm_topk_prob");
  EXPECT_EQ(refusal(document), "accepted") << "true, unless it says otherwise";
  document["mlp_only_layers"] = {1};
  EXPECT_THAT(refusal(document), HasSubstr("dense layers among layers of experts"));
}

TEST(Glm4Moe, ReadsItsRouter) {
  json document = hf_config(model("tiny-glm4moe"));
  convert::HfConfig c = config_of(document);
  EXPECT_TRUE(c.qk_norm);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.output_bias) << "attention_bias is not about the output here";
  EXPECT_EQ(c.n_rot, 24);
  document.erase("use_qk_norm");
  document.erase("partial_rotary_factor");
  document.erase("routed_scaling_factor");
  c = config_of(document);
  EXPECT_FALSE(c.qk_norm);
  EXPECT_EQ(c.n_rot, 24) << "a half";
  EXPECT_EQ(c.routed_scale, 1);
  document["n_group"] = 3;
  EXPECT_THAT(refusal(document), HasSubstr("n_group: 8 experts in 3 groups"));
  document["n_group"] = 8;
  document["topk_group"] = 2;
  EXPECT_THAT(refusal(document), HasSubstr("of which 2 may be used by a token of 3 experts"));
  document["topk_group"] = 9;
  EXPECT_THAT(refusal(document), HasSubstr("topk_group: 9 is not between 1 and 8"));
  document["first_k_dense_replace"] = 3;
  EXPECT_THAT(refusal(document), HasSubstr("first_k_dense_replace"));
}

TEST(Glm4Moe, LeavesItsPredictionBlockOut) {
  const TinyModel m = model("tiny-glm4moe");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  SafeTensor extra = tensors.front();
  extra.name = "model.layers.3.eh_proj.weight";
  tensors.push_back(extra);
  folder.write("model.safetensors", safetensors_file(tensors));
  convert::ConvertSummary summary;
  const gguf::File file = converted(folder, &summary);
  EXPECT_THAT(summary.notes, ElementsAre("1 MTP tensors are left out"));
  EXPECT_EQ(*file.get_u32("glm4moe.block_count"), 3u);
}

// config.json of the 4B model names no more than this.
TEST(Gemma3, HasDefaults) {
  const json text = {{"hidden_size", 2560},
                     {"intermediate_size", 10240},
                     {"num_hidden_layers", 34},
                     {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                     {"sliding_window", 1024}};
  const json document = {{"architectures", {"Gemma3ForConditionalGeneration"}}, {"text_config", text}};
  const convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.local_rope_theta, 1e4);
  EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(c.window, 1024);
  EXPECT_EQ(c.window_interval, 6);
  EXPECT_EQ(c.score_scale, 0) << "1 / sqrt(256) is that of the head size";
  EXPECT_TRUE(c.tied);
  EXPECT_FALSE(c.windowed[5]);
  EXPECT_TRUE(c.windowed[6]);
}

TEST(Gemma3, ReadsTheRopeOfEachKindOfLayer) {
  json document = hf_config(model("tiny-gemma3"));
  document.erase("rope_theta");
  document.erase("rope_scaling");
  document.erase("rope_local_base_freq");
  document["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
                                 {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  const convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.rope.factor, 8);
  EXPECT_EQ(c.local_rope_theta, 2e4);
  document["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  EXPECT_THAT(refusal(document), HasSubstr("sliding_attention: rope_type: 'linear' is not supported"));
  document["rope_parameters"]["sliding_attention"] = 3;
  EXPECT_THAT(refusal(document), HasSubstr("sliding_attention: is no object"));
}

TEST(Gemma3, IsRefusedWhereItWouldComputeSomethingElse) {
  const json good = hf_config(model("tiny-gemma3"));
  const auto with = [&](const char* key, const json& value) {
    json document = good;
    document[key] = value;
    return refusal(document);
  };
  EXPECT_EQ(with("final_logit_softcapping", nullptr), "accepted");
  EXPECT_EQ(with("final_logit_softcapping", 30.0), "accepted");
  EXPECT_THAT(with("final_logit_softcapping", -1), HasSubstr("final_logit_softcapping: -1 is not a positive number"));
  EXPECT_EQ(with("attn_logit_softcapping", 50.0), "attn_logit_softcapping: soft caps of attention are not supported");
  EXPECT_THAT(with("use_bidirectional_attention", true), HasSubstr("attention to later positions"));
  EXPECT_THAT(with("hidden_activation", "silu"), HasSubstr("'silu' is not supported (gelu_pytorch_tanh is)"));
  EXPECT_THAT(with("layer_types", {"full_attention"}), HasSubstr("one entry for each of 4 layers"));
  EXPECT_THAT(with("layer_types", {"full_attention", "x", "full_attention", "full_attention"}),
              HasSubstr("entry 1 is neither"));
  EXPECT_THAT(with("query_pre_attn_scalar", -1), HasSubstr("query_pre_attn_scalar"));
}

// Layers that do not alternate as any number says are listed.
TEST(Gemma3, ListsIrregularWindows) {
  const TinyModel m = model("tiny-gemma3");
  const HfFolder folder(m);
  json document = hf_config(m);
  document["layer_types"] = {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention"};
  folder.write_json("config.json", document);
  const gguf::File file = converted(folder);
  EXPECT_THAT(*file.get_bool_per_layer("gemma3.attention.sliding_window_pattern", 4),
              ElementsAre(false, true, true, true));
}

}  // namespace
}  // namespace quire::test
