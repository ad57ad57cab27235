// Folders of Gemma 4: what config.json may leave out, what is refused, and what becomes of the experts' weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "convert/random_matrix.h"
#include "convert/support.h"

namespace quire::test {
namespace {

using convert::RopeScaling;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// As config.json of the large models has it, less what the class has defaults for.
json large() {
  const json text = {{"hidden_size", 2816},
                     {"intermediate_size", 2112},
                     {"num_hidden_layers", 7},
                     {"num_attention_heads", 16},
                     {"num_key_value_heads", 8},
                     {"num_global_key_value_heads", 2},
                     {"attention_k_eq_v", true},
                     {"hidden_size_per_layer_input", 0},
                     {"num_kv_shared_layers", 0},
                     {"sliding_window", 1024},
                     {"final_logit_softcapping", 30.0},
                     {"use_bidirectional_attention", "vision"},
                     {"enable_moe_block", true},
                     {"num_experts", 128},
                     {"top_k_experts", 8},
                     {"moe_intermediate_size", 704}};
  return {{"architectures", {"Gemma4ForConditionalGeneration"}}, {"text_config", text}};
}

TEST(Gemma4, HasDefaults) {
  const convert::HfConfig c = config_of(large());
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.window_head_dim, 256);
  EXPECT_EQ(c.window_kv_heads, 8);
  EXPECT_EQ(c.vocab, 262144);
  EXPECT_EQ(c.context, 131072);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.local_rope_theta, 1e4);
  EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kProportional);
  EXPECT_EQ(c.rope.pairs, 64);
  EXPECT_EQ(c.window, 1024);
  EXPECT_EQ(c.logit_soft_cap, 30);
  EXPECT_EQ(c.experts, 128);
  EXPECT_EQ(c.experts_used, 8);
  EXPECT_EQ(c.expert_ffn, 704);
  EXPECT_EQ(c.ffn, 2112);
  EXPECT_TRUE(c.keys_as_values);
  EXPECT_TRUE(c.tied);
  EXPECT_THAT(c.windowed, ElementsAre(true, true, true, true, true, false, false)) << "the last one attends to all";
  EXPECT_EQ(c.sizes(true).head_dim, 256);
  EXPECT_EQ(c.sizes(false).head_dim, 512);
}

// As config.json of the small models has it.
json small() {
  json document = large();
  json& text = document["text_config"];
  for (const char* key : {"num_global_key_value_heads", "enable_moe_block", "num_experts", "top_k_experts",
                          "moe_intermediate_size", "hidden_size_per_layer_input"})
    text.erase(key);
  text.update({{"hidden_size", 1536},
               {"intermediate_size", 6144},
               {"num_hidden_layers", 35},
               {"num_attention_heads", 8},
               {"num_key_value_heads", 1},
               {"attention_k_eq_v", false},
               {"num_kv_shared_layers", 20},
               {"use_double_wide_mlp", true},
               {"vocab_size_per_layer_input", 262144},
               {"sliding_window", 512}});
  for (int i = 0; i < 35; ++i) text["layer_types"].push_back(i % 5 == 4 ? "full_attention" : "sliding_attention");
  return document;
}

TEST(Gemma4, OfTheSmallKindHasLayersWithoutKeys) {
  const convert::HfConfig c = config_of(small());
  EXPECT_EQ(c.d_per_layer, 256) << "by default";
  EXPECT_EQ(c.shared_kv_layers, 20);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_TRUE(c.own_kv(14));
  EXPECT_FALSE(c.own_kv(15));
  EXPECT_EQ(c.layer_sizes(14).d_ff, 6144);
  EXPECT_EQ(c.layer_sizes(15).d_ff, 12288);
  EXPECT_EQ(c.layer_sizes(34).head_dim, 512);
  EXPECT_EQ(size_of(Extent::kAllPerLayer, c.sizes()), 35 * 256);
  json document = small();
  document["text_config"]["use_double_wide_mlp"] = false;
  EXPECT_EQ(config_of(document).layer_sizes(15).d_ff, 6144);
}

TEST(Gemma4, OfTheSmallKindIsChecked) {
  const auto with = [](const char* key, const json& value) {
    json document = small();
    document["text_config"][key] = value;
    return refusal(document);
  };
  EXPECT_EQ(with("vocab_size_per_layer_input", 262400),
            "vocab_size_per_layer_input: 262400 is not supported, only as many as vocab_size, 262144");
  EXPECT_EQ(with("hidden_size_per_layer_input", 0), "accepted");
  EXPECT_THAT(with("hidden_size_per_layer_input", -1), HasSubstr("hidden_size_per_layer_input: -1 is not between 0"));
  EXPECT_THAT(with("num_kv_shared_layers", 35), HasSubstr("num_kv_shared_layers: 35 is not between 0 and 34"));
  EXPECT_EQ(with("num_kv_shared_layers", 31),
            "num_kv_shared_layers: layer 4 is one of 31 without keys and values, and no layer before these is without "
            "a window");
  EXPECT_THAT(with("use_double_wide_mlp", 2), HasSubstr("use_double_wide_mlp: is not true or false"));
}

// Model folders may have keys and values in all layers.
TEST(Gemma4, LeavesKeysThatNothingReadsOut) {
  const TinyModel m = model("tiny-gemma4e");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  const auto copy = [&](const std::string& from, const std::string& to) {
    for (size_t i = 0, n = tensors.size(); i < n; ++i)
      if (tensors[i].name == from) {
        tensors.push_back(tensors[i]);
        tensors.back().name = to;
      }
  };
  for (const char* name : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
    copy(fmt::format("model.layers.1.self_attn.{}", name), fmt::format("model.layers.5.self_attn.{}", name));
  folder.write("model.safetensors", safetensors_file(tensors));
  convert::ConvertSummary summary;
  const gguf::File file = converted(folder, &summary);
  EXPECT_THAT(summary.notes, ElementsAre(HasSubstr("3 tensors of keys and values are left out")));
  EXPECT_EQ(file.find_tensor("blk.5.attn_k.weight"), nullptr);
}

TEST(Gemma4, HasGlobalKvHeadsOnlyWhereKeysAreValues) {
  json document = large();
  document["text_config"]["attention_k_eq_v"] = false;
  EXPECT_EQ(config_of(document).kv_heads, 8);
  document["text_config"]["enable_moe_block"] = false;
  EXPECT_FALSE(config_of(document).moe());
}

TEST(Gemma4, ReadsItsRopes) {
  json document = large();
  json& rope = document["text_config"]["rope_parameters"];
  rope = {{"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}},
          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.local_rope_theta, 2e4);
  EXPECT_EQ(c.rope.pairs, 128);
  EXPECT_EQ(c.n_rot, 512);
  rope["full_attention"]["rope_type"] = "default";
  EXPECT_EQ(config_of(document).rope.kind, RopeScaling::Kind::kNone);
  rope["full_attention"] = {{"rope_type", "proportional"}, {"factor", 8.0}};
  EXPECT_THAT(refusal(document), HasSubstr("factor: 8 of a proportional RoPE"));
  rope["full_attention"] = {{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}};
  EXPECT_THAT(refusal(document), HasSubstr("partial_rotary_factor: 1.5 is above 1"));
  rope["full_attention"]["rope_type"] = "yarn";
  EXPECT_THAT(refusal(document), HasSubstr("rope_type: 'yarn' is not supported for gemma4"));
}

// As transformers saves it.
TEST(Gemma4, ReadsHeadsOfSingleLayers) {
  json document = large();
  json& text = document["text_config"];
  text.erase("num_global_key_value_heads");
  text["per_layer_config"] = {{"5", {{"head_dim", 128}, {"num_key_value_heads", 4}}},
                              {"6", {{"head_dim", 128}, {"num_key_value_heads", 4}}}};
  const convert::HfConfig c = config_of(document);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.window_head_dim, 256);
  EXPECT_EQ(c.window_kv_heads, 8);
  text["per_layer_config"]["6"]["head_dim"] = 64;
  EXPECT_THAT(refusal(document), HasSubstr("layers with heads of 128 and of 64 elements"));
  text["per_layer_config"].erase("6");
  EXPECT_THAT(refusal(document), HasSubstr("per_layer_config: layer 6 has not a window"));
  text["per_layer_config"]["6"] = text["per_layer_config"]["5"];
  text["per_layer_config"]["3"] = text["per_layer_config"]["5"];
  EXPECT_THAT(refusal(document), HasSubstr("per_layer_config: layer 3 has a window"));
  text["per_layer_config"] = 3;
  EXPECT_THAT(refusal(document), HasSubstr("per_layer_config: is no object"));
  text["per_layer_config"] = {{"5", {{"head_dim", "x"}}}};
  EXPECT_THAT(refusal(document), HasSubstr("head_dim: is not a whole number"));
}

TEST(Gemma4, IsRefusedWhereItWouldComputeSomethingElse) {
  const auto with = [](const char* key, const json& value) {
    json document = large();
    document["text_config"][key] = value;
    return refusal(document);
  };
  EXPECT_EQ(with("hidden_size_per_layer_input", nullptr), "accepted");
  EXPECT_EQ(with("num_kv_shared_layers", 1), "accepted");
  EXPECT_THAT(with("num_kv_shared_layers", 2), HasSubstr("layer 5 is one of 2 without keys and values"));
  EXPECT_THAT(with("use_bidirectional_attention", "all"), HasSubstr("attention to later positions"));
  EXPECT_EQ(with("use_bidirectional_attention", nullptr), "accepted");
  EXPECT_THAT(with("use_bidirectional_attention", "some"), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(with("final_logit_softcapping", 0), HasSubstr("final_logit_softcapping: 0 is not a positive number"));
  EXPECT_THAT(with("global_head_dim", 511), HasSubstr("global_head_dim: 511 is not even"));
  EXPECT_THAT(with("num_global_key_value_heads", 3), HasSubstr("16 heads cannot share 3 KV heads"));
  EXPECT_THAT(with("top_k_experts", 129), HasSubstr("top_k_experts"));
  EXPECT_THAT(with("hidden_activation", "silu"), HasSubstr("gelu_pytorch_tanh"));
}

TEST(Gemma4, LeavesImagesAndSoundOut) {
  const TinyModel m = model("tiny-gemma4");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  for (const char* name : {"model.vision_tower.a.weight", "model.embed_vision.b.weight", "model.audio_tower.c.weight",
                           "model.embed_audio.d.weight"}) {
    tensors.push_back(tensors.front());
    tensors.back().name = name;
  }
  folder.write("model.safetensors", safetensors_file(tensors));
  convert::ConvertSummary summary;
  (void)converted(folder, &summary);
  EXPECT_THAT(summary.notes, ElementsAre(HasSubstr("4 vision and audio tensors are left out")));
}

// Codes of experts bring a factor for each: the weight of an expert is multiplied into that of its down matrix.
TEST(Gemma4, MultipliesTheWeightsOfExpertsIntoTheirFactors) {
  TinyModel m = model("tiny-gemma4moe");
  m.expert_ffn = 64;  // whole blocks of NVFP4
  const QuantisedPair pair = quantise(m, Layout::kModelOpt, 5);
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(pair.quantised));
  const gguf::File file = converted(folder);
  const gguf::TensorInfo* const down = file.find_tensor("blk.1.ffn_down_exps.weight");
  ASSERT_EQ(down->dtype, DType::kNVFP4);
  ASSERT_NE(file.find_tensor("blk.1.ffn_gate_exps.weight"), nullptr)
      << "codes of gate and up have factors of their own";
  const auto* scale = reinterpret_cast<const float*>(file.find_tensor("blk.1.ffn_down_exps.scale")->data);
  const auto floats_of = [&](const std::string& name) {
    for (const SafeTensor& t : pair.quantised)
      if (t.name == name) return t;
    return SafeTensor{};
  };
  const SafeTensor weights = floats_of("model.layers.1.router.per_expert_scale");
  for (int64_t e = 0; e < m.experts; ++e) {
    const SafeTensor own = floats_of(fmt::format("model.layers.1.experts.{}.down_proj.weight_scale_2", e));
    ASSERT_EQ(own.bytes.size(), sizeof(float)) << e;
    float factor = 0;
    std::memcpy(&factor, own.bytes.data(), sizeof factor);
    bf16 weight;
    std::memcpy(&weight, weights.bytes.data() + static_cast<size_t>(e) * sizeof weight, sizeof weight);
    EXPECT_EQ(scale[e], factor * to_float(weight)) << e;
  }
}

}  // namespace
}  // namespace quire::test
