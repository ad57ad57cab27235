// config.json of Qwen3.8 as it is published: the keys and numbers of the 27B, which are public (its README and the
// configuration classes of other programs repeat them), and of a model of 512 experts, in the shape of the quantised
// folders that people load. Without weights the real numbers are read; small ones are converted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/random_matrix.h"
#include "convert/support.h"
#include "gguf/reader.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json layer_types(int layers) {
  json types = json::array();
  for (int i = 1; i <= layers; ++i) types.push_back(i % 4 == 0 ? "full_attention" : "linear_attention");
  return types;
}

json vision() {
  return {{"deepstack_visual_indexes", json::array()},
          {"depth", 27},
          {"dtype", "bfloat16"},
          {"hidden_act", "gelu_pytorch_tanh"},
          {"hidden_size", 1152},
          {"in_channels", 3},
          {"initializer_range", 0.02},
          {"intermediate_size", 4304},
          {"model_type", "qwen3_5_vision"},
          {"num_heads", 16},
          {"num_position_embeddings", 2304},
          {"out_hidden_size", 5120},
          {"patch_size", 16},
          {"spatial_merge_size", 2},
          {"temporal_patch_size", 2}};
}

// FP8 by rows for attention, NVFP4 for the feed-forward: what the most loaded folder of the 27B has.
json mixed_precision() {
  const json fp8 = {{"dynamic", false},      {"group_size", nullptr}, {"num_bits", 8},  {"observer", "minmax"},
                    {"strategy", "channel"}, {"symmetric", true},     {"type", "float"}};
  json fp4 = {
      {"dynamic", false},           {"group_size", 16},  {"num_bits", 4},  {"scale_dtype", "torch.float8_e4m3fn"},
      {"strategy", "tensor_group"}, {"symmetric", true}, {"type", "float"}};
  json fp8_inputs = fp8, fp4_inputs = fp4;
  fp8_inputs.update({{"dynamic", true}, {"strategy", "token"}});
  fp4_inputs["dynamic"] = "local";
  return {{"config_groups",
           {{"group_0",
             {{"format", "float-quantized"},
              {"input_activations", fp8_inputs},
              {"output_activations", nullptr},
              {"targets", {"re:.*self_attn\\.(q|k|v|o)_proj$", "re:.*linear_attn\\.(in_proj_qkv|in_proj_z|out_proj)$"}},
              {"weights", fp8}}},
            {"group_1",
             {{"format", "nvfp4-pack-quantized"},
              {"input_activations", fp4_inputs},
              {"output_activations", nullptr},
              {"targets", {"re:.*mlp\\.(gate|up|down)_proj$"}},
              {"weights", fp4}}}}},
          {"format", "mixed-precision"},
          {"global_compression_ratio", nullptr},
          {"ignore", {"lm_head", "re:.*visual.*", "re:mtp.*"}},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"},
          {"sparsity_config", json::object()},
          {"transform_config", json::object()},
          {"version", "0.13.0"}};
}

json published_27b() {
  const json text = {{"attention_bias", false},
                     {"attention_dropout", 0.0},
                     {"attn_output_gate", true},
                     {"bos_token_id", 248044},
                     {"dtype", "bfloat16"},
                     {"eos_token_id", 248044},
                     {"full_attention_interval", 4},
                     {"head_dim", 256},
                     {"hidden_act", "silu"},
                     {"hidden_size", 5120},
                     {"initializer_range", 0.02},
                     {"intermediate_size", 17408},
                     {"layer_types", layer_types(64)},
                     {"linear_conv_kernel_dim", 4},
                     {"linear_key_head_dim", 128},
                     {"linear_num_key_heads", 16},
                     {"linear_num_value_heads", 48},
                     {"linear_value_head_dim", 128},
                     {"mamba_ssm_dtype", "float32"},
                     {"max_position_embeddings", 262144},
                     {"model_type", "qwen3_5_text"},
                     {"mtp_num_hidden_layers", 1},
                     {"mtp_use_dedicated_embeddings", false},
                     {"num_attention_heads", 24},
                     {"num_hidden_layers", 64},
                     {"num_key_value_heads", 4},
                     {"output_gate_type", "swish"},
                     {"pad_token_id", nullptr},
                     {"partial_rotary_factor", 0.25},
                     {"rms_norm_eps", 1e-6},
                     {"rope_parameters",
                      {{"mrope_interleaved", true},
                       {"mrope_section", {11, 11, 10}},
                       {"partial_rotary_factor", 0.25},
                       {"rope_theta", 10000000},
                       {"rope_type", "default"}}},
                     {"tie_word_embeddings", false},
                     {"use_cache", true},
                     {"vocab_size", 248320}};
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"dtype", "bfloat16"},
          {"head_dim", 256},
          {"image_token_id", 248056},
          {"language_model_only", false},
          {"model_type", "qwen3_5"},
          {"num_attention_heads", 24},
          {"num_key_value_heads", 4},
          {"quantization_config", mixed_precision()},
          {"text_config", text},
          {"tie_word_embeddings", false},
          {"transformers_version", "5.14.0"},
          {"video_token_id", 248057},
          {"vision_config", vision()},
          {"vision_end_token_id", 248054},
          {"vision_start_token_id", 248053}};
}

// The same with experts. Sizes of which nothing is published but 512 experts, ten of them used, are made up.
json published_moe() {
  json c = published_27b();
  c["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  c["model_type"] = "qwen3_5_moe";
  json& text = c["text_config"];
  text["model_type"] = "qwen3_5_moe_text";
  text.erase("intermediate_size");
  text.update({{"moe_intermediate_size", 2048},
               {"num_experts", 512},
               {"num_experts_per_tok", 10},
               {"output_router_logits", false},
               {"router_aux_loss_coef", 0.001},
               {"shared_expert_intermediate_size", 2048}});
  return c;
}

TEST(Qwen38, ReadsThePublishedConfig) {
  const auto c = config_of(published_27b());
  EXPECT_EQ(c.row->name, "qwen35");
  EXPECT_EQ(c.vocab, 248320);
  EXPECT_EQ(c.hidden, 5120);
  EXPECT_EQ(c.layers, 64);
  EXPECT_EQ(c.heads, 24);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.ffn, 17408);
  EXPECT_EQ(c.context, 262144);
  EXPECT_EQ(c.interval, 4);
  EXPECT_EQ(c.key_heads, 16);
  EXPECT_EQ(c.value_heads, 48);
  EXPECT_EQ(c.key_dim, 128);
  EXPECT_EQ(c.value_dim, 128);
  EXPECT_EQ(c.conv_kernel, 4);
  EXPECT_EQ(c.n_rot, 64);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_EQ(c.rope.kind, convert::RopeScaling::Kind::kNone);
  EXPECT_THAT(c.rope_sections, ElementsAre(11, 11, 10, 0));
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_FALSE(c.tied);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(Qwen38, ReadsManyExperts) {
  const auto c = config_of(published_moe());
  EXPECT_EQ(c.row->name, "qwen35moe");
  EXPECT_EQ(c.experts, 512);
  EXPECT_EQ(c.experts_used, 10);
  EXPECT_EQ(c.expert_ffn, 2048);
  EXPECT_EQ(c.shared_ffn, 2048);
  EXPECT_THAT(c.notes, IsEmpty());
}

// Other programs write what rope_parameters has beside it, and call the text as they call the whole.
TEST(Qwen38, ReadsRopeBesideItsParameters) {
  json document = published_27b();
  json& text = document["text_config"];
  text.update(text["rope_parameters"]);
  text.erase("rope_parameters");
  text["model_type"] = "qwen3_5";
  const auto c = config_of(document);
  EXPECT_EQ(c.n_rot, 64);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_THAT(c.rope_sections, ElementsAre(11, 11, 10, 0));
}

// What the README says to write for a million tokens.
TEST(Qwen38, ReadsTheLongContext) {
  json document = published_27b();
  json& text = document["text_config"];
  text["max_position_embeddings"] = 1000000;
  text["rope_parameters"].update(
      {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 262144}});
  const auto c = config_of(document);
  EXPECT_EQ(c.context, 1000000);
  EXPECT_EQ(c.rope.kind, convert::RopeScaling::Kind::kYarn);
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(c.rope.original_context, 262144);
  EXPECT_THAT(c.rope_sections, ElementsAre(11, 11, 10, 0));
}

TEST(Qwen38, KeysThatComputeNothingAreNotAskedFor) {
  const auto before = config_of(published_27b());
  json document = published_27b();
  document["text_config"].update({{"output_gate_type", "silu"},
                                  {"mamba_ssm_dtype", "bfloat16"},
                                  {"a_key_of_tomorrow", {{"x", 1}}},
                                  {"attention_dropout", 0.1},
                                  {"use_cache", false}});
  document["a_key_of_tomorrow"] = true;
  document["vision_config"] = {{"hidden_act", "nothing"}};
  document["quantization_config"].update({{"format", "of tomorrow"}, {"config_groups", nullptr}});
  const auto c = config_of(document);
  EXPECT_EQ(c.hidden, before.hidden);
  EXPECT_EQ(c.mtp_layers, before.mtp_layers);
  EXPECT_THAT(c.notes, IsEmpty());
}

TEST(Qwen38, IsRefusedWhereItWouldComputeSomethingElse) {
  const std::pair<json, const char*> cases[] = {
      {{{"output_gate_type", "sigmoid"}}, "output_gate_type: 'sigmoid' is not supported (swish is)"},
      {{{"output_gate_type", 3}}, "output_gate_type"},
      {{{"attn_output_gate", false}}, "attn_output_gate: false is not supported"},
      {{{"hidden_act", "gelu"}}, "hidden_act: 'gelu' is not supported"},
      {{{"layer_types", layer_types(63)}}, "layer_types: does not have one entry for each of 64 layers"},
      {{{"linear_num_value_heads", 40}}, "linear_num_value_heads: 40 is not a multiple of 16"},
      {{{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}, "dynamic"},
  };
  for (const auto& [change, message] : cases) {
    json document = published_27b();
    document["text_config"].update(change);
    const auto c = convert::read_hf_config(document);
    ASSERT_FALSE(c.ok()) << change;
    EXPECT_THAT(c.error().message, HasSubstr(message));
  }
  json document = published_27b();
  document["quantization_config"]["quant_method"] = "bitsandbytes";
  EXPECT_THAT(convert::read_hf_config(document).error().message, HasSubstr("'bitsandbytes' is not supported"));
}

TEST(Qwen38, APredictionBlockWithEmbeddingsOfItsOwnIsLeftOut) {
  json document = published_27b();
  document["text_config"]["mtp_use_dedicated_embeddings"] = true;
  const auto c = config_of(document);
  EXPECT_EQ(c.mtp_layers, 0);
  EXPECT_THAT(c.notes, ElementsAre(HasSubstr("mtp_use_dedicated_embeddings")));
}

// The published shape around a small model's own numbers.
json published_around(const TinyModel& m) {
  json document = published_27b();
  json own = hf_config(m);
  json& text = document["text_config"];
  own.erase("architectures");
  for (const char* key : {"layer_types", "full_attention_interval", "rope_parameters"}) text.erase(key);
  text.update(own);
  document["tie_word_embeddings"] = m.tied;
  text["mtp_num_hidden_layers"] = 0;
  for (const char* key : {"head_dim", "num_attention_heads", "num_key_value_heads"}) document[key] = text[key];
  return document;
}

// FP8 by rows for what is no feed-forward, and NVFP4 for that.
TEST(Qwen38, ReadsMixedPrecision) {
  const TinyModel m = model("tiny-qwen35");
  const QuantisedPair fp8 = quantise(m, Layout::kFp8Row, 7), fp4 = quantise(m, Layout::kCompressedTensors, 8);
  std::vector<SafeTensor> quantised, plain;
  const auto take = [](const std::vector<SafeTensor>& from, bool feed_forward, std::vector<SafeTensor>& to) {
    for (SafeTensor t : from) {
      if ((t.name.find(".mlp.") != std::string::npos) != feed_forward) continue;
      if (t.name.starts_with("model.")) t.name.insert(6, "language_model.");
      to.push_back(std::move(t));
    }
  };
  take(fp8.quantised, false, quantised), take(fp4.quantised, true, quantised);
  take(fp8.plain, false, plain), take(fp4.plain, true, plain);
  quantised.push_back(safe_tensor("model.visual.patch_embed.proj.weight", "BF16", {1}, std::vector<bf16>(1)));

  const HfFolder folder(m);
  folder.write_json("config.json", published_around(m));
  folder.write("model.safetensors", safetensors_file(plain));
  const gguf::File want = convert_folder(folder, "plain.gguf");
  folder.write("model.safetensors", safetensors_file(quantised));
  convert::ConvertSummary summary;
  const gguf::File got = convert_folder(folder, "quantised.gguf", &summary);
  int nvfp4 = 0;
  for (const gguf::TensorInfo& a : want.tensors()) {
    const gguf::TensorInfo* b = got.find_tensor(a.name);
    ASSERT_NE(b, nullptr) << a.name;
    std::vector<float> x = values_of(want, a);
    if (b->dtype == DType::kBF16)
      for (float& v : x) v = to_float(to_bf16(v));
    EXPECT_TRUE(x == values_of(got, *b)) << a.name;
    nvfp4 += b->dtype == DType::kNVFP4;
  }
  EXPECT_GE(nvfp4, 4);
}

}  // namespace
}  // namespace quire::test
