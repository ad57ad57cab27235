// What is in a model folder and would not be computed is refused by name; what may stay unread is listed, with reasons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "convert/support.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Leftovers : public testing::Test {
 protected:
  // What a conversion says to the model with more tensors, and to its notes.
  std::string refusal(const std::string& name, std::vector<float> values = {0.5F, 2}, const char* of = "tiny-qwen3") {
    const TinyModel m = model(of);
    const HfFolder folder(m);
    std::vector<SafeTensor> tensors = safe_tensors(m);
    const auto size = static_cast<int64_t>(values.size());
    tensors.push_back(safe_tensor(name, "F32", {size}, std::move(values)));
    folder.write("model.safetensors", safetensors_file(tensors));
    const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
    EXPECT_EQ(std::filesystem::exists(folder.path("m.gguf")), s.ok());
    if (s.ok()) notes_ = s->notes;
    return s.ok() ? "" : s.error().message;
  }
  std::vector<std::string> notes_;
};

TEST_F(Leftovers, ThatChangeAnAnswerAreRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.layers.0.self_attn.q_proj.pre_quant_scale", "activations are multiplied by it"},
      {"model.layers.2.mlp.down_proj.pre_quant_scale", "activations are multiplied by it"},
      {"model.layers.0.mlp.act.scales", "activations are divided by it"},
      {"model.layers.0.self_attn.o_proj.bias", "config.json says that the layer has no bias"},
      {"model.layers.0.mlp.gate_proj.bias", "config.json says that the layer has no bias"},
      {"lm_head.bias", "config.json says that the layer has no bias"},
      {"model.layers.0.mlp.up_proj.g_idx", "columns are in another order"},
      {"model.layers.0.mlp.up_proj.weight_zero_point", "codes are counted from it"},
      {"model.layers.0.self_attn.sinks", "this architecture has no place for it"},
      {"model.layers.0.post_feedforward_layernorm.weight", "this architecture has no place for it"},
      {"model.layers.3.input_layernorm.weight", "this architecture has no place for it"},
      {"extra", "this architecture has no place for it"},
  };
  for (const auto& [name, meaning] : cases)
    EXPECT_THAT(refusal(name), AllOf(HasSubstr(fmt::format("tensor '{}' of the model folder would not", name)),
                                     HasSubstr(meaning), HasSubstr("Qwen3ForCausalLM")))
        << name;
}

TEST_F(Leftovers, ThatChangeNothingMayStay) {
  const std::pair<const char*, const char*> said[] = {
      {"model.visual.patch_embed.weight", "1 vision and audio tensors are left out"},
      {"multi_modal_projector.linear_1.weight", "1 vision and audio tensors are left out"},
      {"model.layers.0.self_attn.k_scale", "1 KV cache scales are left out"},
      {"model.layers.0.self_attn.k_proj.output_scale", "1 KV cache scales are left out"},
      {"mtp.fc.weight", "1 MTP tensors are left out"},
  };
  for (const auto& [name, note] : said) {
    EXPECT_EQ(refusal(name), "") << name;
    EXPECT_THAT(notes_, ElementsAre(HasSubstr(note))) << name;
  }
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq",
                           "model.layers.1.self_attn.masked_bias", "model.layers.0.mlp.up_proj.input_scale",
                           "model.layers.0.mlp.experts.gate_up_proj_input_scale"}) {
    EXPECT_EQ(refusal(name), "") << name;
    EXPECT_THAT(notes_, IsEmpty()) << name;
  }
}

// Some quantisers write one beside every matrix.
TEST_F(Leftovers, BiasesOfZerosMayStay) {
  EXPECT_EQ(refusal("model.layers.0.mlp.down_proj.bias", {0, 0, 0}), "");
  EXPECT_THAT(notes_, ElementsAre("1 biases and zero points of zeros are left out"));
  EXPECT_EQ(refusal("model.layers.0.mlp.down_proj.weight_zero_point", {0, 0}), "");
  EXPECT_NE(refusal("model.layers.0.mlp.down_proj.bias", {0, 0, 1e-30F}), "");
  EXPECT_NE(refusal("model.layers.0.mlp.down_proj.shift", {0, 0, 0}), "");
}

// A config.json that leaves attention_bias out says that there are biases: the class has them by default.
TEST_F(Leftovers, BiasesOfAGlmWhoseConfigDoesNotSpeakOfThem) {
  const TinyModel m = model("tiny-glm4");
  const HfFolder folder(m);
  const gguf::File want = converted(folder);
  json config = hf_config(m);
  ASSERT_EQ(config.at("attention_bias"), true);
  config.erase("attention_bias");
  folder.write_json("config.json", config);
  const gguf::File got = converted(folder);
  EXPECT_EQ(got.tensors().size(), want.tensors().size());
  EXPECT_NE(got.find_tensor("blk.0.attn_q.bias"), nullptr);
  config["attention_bias"] = false;
  folder.write_json("config.json", config);
  const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.error().message, AllOf(HasSubstr("self_attn.k_proj.bias"), HasSubstr("attention_bias")));
}

// ---- config.json ----

std::string config_refusal(const json& document) {
  const Result<convert::HfConfig> c = convert::read_hf_config(document);
  return c.ok() ? "" : c.error().message;
}

// compressed-tensors: what is fused into weights is there, what runs with the model is not computed.
TEST(Transforms, ThatRunWithTheModelAreRefused) {
  json config = hf_config(model("tiny-llama"));
  json& transforms = config["quantization_config"]["transform_config"];
  config["quantization_config"]["quant_method"] = "compressed-tensors";
  const auto at = [&](const json& locations) {
    json apply = json::array();
    for (const json& where : locations) apply.push_back({{"location", where}, {"targets", {"Linear"}}});
    transforms = {{"config_groups", {{"R1", {{"type", "hadamard"}, {"apply", apply}}}}}};
    return config_refusal(config);
  };
  for (const char* online : {"input", "output", "q_attn", "k_cache"})
    EXPECT_THAT(at({"weight_input", online}),
                AllOf(HasSubstr("transform_config: 'R1' transforms"), HasSubstr(online), HasSubstr("not supported")));
  EXPECT_EQ(at({"weight_input", "weight_output"}), "");
  transforms = json::object();
  EXPECT_EQ(config_refusal(config), "");
  transforms = nullptr;
  EXPECT_EQ(config_refusal(config), "");
  transforms = {{"config_groups", {{"R3", {{"type", "hadamard"}}}}}};
  EXPECT_THAT(config_refusal(config), HasSubstr("'R3' does not say where it applies"));
  transforms = {{"config_groups", {{"R3", {{"apply", {{{"targets", "x"}}}}}}}}};
  EXPECT_THAT(config_refusal(config), HasSubstr("'R3' transforms"));
  transforms = "hadamard";
  EXPECT_THAT(config_refusal(config), HasSubstr("does not say where it applies"));
}

TEST(GptOssConfig, ComputesOneSwigluAlone) {
  json config = hf_config(model("tiny-gptoss"));
  config["swiglu_alpha"] = 1.702;
  config["swiglu_limit"] = 7.0;
  EXPECT_EQ(config_refusal(config), "");
  config["swiglu_alpha"] = 1.7;
  EXPECT_EQ(config_refusal(config), "swiglu_alpha: 1.7 is not supported (1.702 is)");
  config.erase("swiglu_alpha");
  EXPECT_EQ(config_refusal(config), "");
  config["swiglu_limit"] = 6.5;
  EXPECT_EQ(config_refusal(config), "swiglu_limit: 6.5 is not supported (7 is)");
}

}  // namespace
}  // namespace quire::test
