// What becomes of config.json, tokenizer_config.json, generation_config.json and the chat templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "convert/convert.h"
#include "convert/hf_config.h"
#include "convert/metadata.h"
#include "convert/support.h"
#include "gguf/reader.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ConvertConfig, WrapperWithTextConfig) {
  json text = hf_config(model("tiny-qwen35"));
  text.erase("architectures");
  const bool tied = text["tie_word_embeddings"];
  text.erase("tie_word_embeddings");
  const auto c = config_of({{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                            {"text_config", text},
                            {"vision_config", {{"hidden_size", 1}}},
                            {"tie_word_embeddings", tied}});
  EXPECT_EQ(c.row->name, "qwen35");
  EXPECT_EQ(c.hidden, 64);
  EXPECT_EQ(c.tied, tied);
  EXPECT_EQ(c.n_rot, 16);
  EXPECT_THAT(c.rope_sections, ElementsAre(3, 3, 2, 0));
  EXPECT_EQ(c.interval, 2);
}

TEST(ConvertConfig, Yarn) {
  json document = hf_config(model("tiny-qwen3"));
  json& r = document["rope_scaling"];
  r = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  auto c = config_of(document);
  EXPECT_EQ(c.rope.kind, convert::RopeScaling::Kind::kYarn);
  EXPECT_EQ(c.rope.factor, 4);
  EXPECT_EQ(c.rope.original_context, 512);
  EXPECT_EQ(c.rope.attn_factor, 1) << "readers compute the magnitude from the factor";
  r["attention_factor"] = 2.0;
  EXPECT_NEAR(config_of(document).rope.attn_factor * (0.1 * std::log(4.0) + 1), 2, 1e-12);
  r = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(config_of(document).rope.kind, convert::RopeScaling::Kind::kLinear);
  r = {{"rope_type", "default"}};
  EXPECT_EQ(config_of(document).rope.kind, convert::RopeScaling::Kind::kNone);
}

TEST(ConvertConfig, IrregularLayersBecomeAMap) {
  const TinyModel m = model("tiny-qwen35");
  json document = hf_config(m);
  json& types = document["layer_types"];
  types = {"linear_attention", "full_attention", "linear_attention", "full_attention"};
  EXPECT_EQ(config_of(document).interval, 2);
  types = {"full_attention", "linear_attention", "linear_attention", "full_attention"};
  const auto c = config_of(document);
  EXPECT_EQ(c.interval, 0);
  EXPECT_THAT(c.recurrent, ElementsAre(false, true, true, false));
}

TEST(ConvertConfig, ExpertsThatReadersWouldWeightDifferentlyAreRefused) {
  json document = hf_config(model("tiny-qwen3moe"));
  document["norm_topk_prob"] = false;
  EXPECT_THAT(convert::read_hf_config(document).error().message, HasSubstr("norm_topk_prob: must be true"));
  document["norm_topk_prob"] = true;
  document["mlp_only_layers"] = {0};
  EXPECT_THAT(convert::read_hf_config(document).error().message, HasSubstr("dense layers among layers of experts"));
}

TEST(ConvertConfig, AMissingMtpBlockIsNoted) {
  const TinyModel m = model("tiny-qwen35");
  const HfFolder folder(m);
  json document = hf_config(m);
  document["mtp_num_hidden_layers"] = 1;
  folder.write_json("config.json", document);
  convert::ConvertSummary s;
  const gguf::File f = converted(folder, &s);
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("has none of its tensors")));
  EXPECT_FALSE(f.has("qwen35.nextn_predict_layers"));
  EXPECT_EQ(f.get_u32("qwen35.block_count").value(), 4u);
}

TEST(ConvertTokens, IdsAndTemplates) {
  const TinyModel m = model("tiny-qwen3");
  const HfFolder folder(m);
  folder.write_json(
      "tokenizer_config.json",
      {{"eos_token", {{"content", "<|im_end|>"}}},
       {"chat_template", {{{"name", "default"}, {"template", "old"}}, {{"name", "tool_use"}, {"template", "tools"}}}},
       {"added_tokens_decoder", {{"300", {{"content", "<extra>"}, {"special", false}}}}}});
  folder.write("chat_template.jinja", "new");
  std::filesystem::create_directory(folder.path("additional_chat_templates"));
  folder.write("additional_chat_templates/rag.jinja", "more");
  folder.write("additional_chat_templates/not-a-key.jinja", "left out");
  json config = hf_config(m);
  config["bos_token_id"] = 330;
  config["eos_token_id"] = 0;  // tokenizer_config.json counts
  folder.write_json("config.json", config);
  folder.write_json("generation_config.json", {{"pad_token_id", 331},
                                               {"eos_token_id", {332, 5, 6, 7, 333, 5}},
                                               {"temperature", 0.6},
                                               {"top_k", 20},
                                               {"top_p", 0.95},
                                               {"repetition_penalty", 1.05}});
  convert::ConvertSummary s;
  const gguf::File f = converted(folder, &s);
  EXPECT_EQ(f.get_u32("tokenizer.ggml.bos_token_id").value(), 330u);
  EXPECT_EQ(f.get_u32("tokenizer.ggml.eos_token_id").value(), 332u);
  EXPECT_EQ(f.get_u32("tokenizer.ggml.eot_token_id").value(), 5u);
  EXPECT_EQ(f.get_u32("tokenizer.ggml.eom_token_id").value(), 6u);
  EXPECT_EQ(f.get_u32("tokenizer.ggml.padding_token_id").value(), 331u);
  EXPECT_THAT(f.get_i32_array("quire.tokenizer.end_token_ids").value(), ElementsAre(7, 0))
      << "no other key is left for these";
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("chat template 'not-a-key' is left out"),
                                   HasSubstr("eos_token_id 333 is outside the vocabulary")));
  EXPECT_EQ(f.get_bool("tokenizer.ggml.add_bos_token").value(), false);
  EXPECT_EQ(f.get_string("tokenizer.chat_template").value(), "new");
  EXPECT_EQ(f.get_string("tokenizer.chat_template.tool_use").value(), "tools");
  EXPECT_THAT(f.get_strings("tokenizer.chat_templates").value(), ElementsAre("rag", "tool_use"));
  EXPECT_EQ(f.get_strings("tokenizer.ggml.tokens").value()[300], "<extra>");
  EXPECT_EQ(f.get_i32_array("tokenizer.ggml.token_type").value()[300], 4);
  EXPECT_EQ(f.get_i32_array("tokenizer.ggml.token_type").value()[301], 5);
  EXPECT_EQ(f.get_f32("general.sampling.temp").value(), 0.6F);
  EXPECT_EQ(f.get_i32("general.sampling.top_k").value(), 20);
  EXPECT_EQ(f.get_f32("general.sampling.penalty_repeat").value(), 1.05F);
}

// The ends that a tokenizer of the file knows, from a number or a list in either file, at either level of config.json.
TEST(ConvertTokens, EndsOfAnswers) {
  const TinyModel m = model("tiny-qwen35");
  const HfFolder folder(m);
  const auto ends = [&](const json& generation, const json& config, const json& text) {
    json inner = hf_config(m), outer;
    inner.erase("eos_token_id");
    outer = {{"architectures", inner["architectures"]}, {"text_config", inner}};
    if (!config.is_null()) outer["eos_token_id"] = config;
    if (!text.is_null()) outer["text_config"]["eos_token_id"] = text;
    folder.write_json("config.json", outer);
    folder.write_json("generation_config.json",
                      generation.is_null() ? json::object() : json{{"eos_token_id", generation}});
    const gguf::File f = converted(folder);
    const Tokenizer t = std::move(Tokenizer::load(f)).value();
    std::vector<TokenId> found;
    for (TokenId id = 1; id < 100; ++id)
      if (t.is_eog(id)) found.push_back(id);
    folder.remove("m.gguf");
    return found;
  };
  EXPECT_THAT(ends(nullptr, nullptr, nullptr), IsEmpty());
  EXPECT_THAT(ends(5, nullptr, nullptr), ElementsAre(5));
  EXPECT_THAT(ends(json::array({5}), nullptr, nullptr), ElementsAre(5));
  EXPECT_THAT(ends(nullptr, 6, nullptr), ElementsAre(6));
  EXPECT_THAT(ends(nullptr, nullptr, 7), ElementsAre(7));
  EXPECT_THAT(ends(nullptr, json::array({6, 9}), json::array({7, 8})), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(ends(5, 6, 7), ElementsAre(5, 6, 7));
  json many = json::array();
  std::vector<TokenId> all;
  for (TokenId id = 1; id <= 40; ++id) {
    many.push_back(id);
    all.push_back(id);
  }
  EXPECT_EQ(ends(many, nullptr, nullptr), all);
  EXPECT_THAT(ends({5, "6", -1, 1.5, 1e9, nullptr}, "8", json::object()), ElementsAre(5)) << "what is no id is none";
}

TEST(ConvertTokens, BosFromThePostProcessor) {
  const TinyModel m = model("tiny-llama");
  const HfFolder folder(m);
  json tokenizer = hf_tokenizer(m);
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<|begin_of_text|>"}}}}, {{"Sequence", {{"id", "A"}}}}}}};
  folder.write_json("tokenizer.json", tokenizer);
  folder.write_json("tokenizer_config.json", {{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}});
  const gguf::File f = converted(folder);
  EXPECT_TRUE(f.get_bool("tokenizer.ggml.add_bos_token").value());
  EXPECT_EQ(f.get_string("tokenizer.ggml.pre").value(), "llama-bpe");
}

TEST(ConvertTypes, OfMatrices) {
  const TinyModel m = model("tiny-qwen2");
  const HfFolder folder(m);
  const auto type_of = [&](std::optional<DType> type, const char* tensor) {
    const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf"), .type = type});
    QUIRE_CHECK(s.ok(), "{}", s.error().message);
    const gguf::File f = std::move(gguf::File::open(folder.path("m.gguf"))).value();
    return f.find_tensor(tensor)->dtype;
  };
  EXPECT_EQ(type_of({}, "blk.0.attn_q.weight"), DType::kBF16);
  EXPECT_EQ(type_of(DType::kF16, "blk.0.attn_q.weight"), DType::kF16);
  EXPECT_EQ(type_of(DType::kF32, "token_embd.weight"), DType::kF32);
  EXPECT_EQ(type_of(DType::kF16, "blk.0.attn_q.bias"), DType::kF32);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  for (SafeTensor& t : tensors) t.dtype = "F16";  // other values, as good as any
  folder.write("model.safetensors", safetensors_file(tensors));
  EXPECT_EQ(type_of({}, "blk.0.attn_q.weight"), DType::kF16);
}

TEST(ConvertTypes, AValueTooLargeForF16IsNamed) {
  const TinyModel m = model("tiny-qwen2");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  const auto at = std::find_if(tensors.begin(), tensors.end(), [](const SafeTensor& t) { return t.shape.size() == 2; });
  at->bytes.replace(6, 2, "\x80\x47");  // bf16 65536
  folder.write("model.safetensors", safetensors_file(tensors));
  const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf"), .type = DType::kF16});
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.error().message, HasSubstr(at->name));
  EXPECT_THAT(s.error().message, HasSubstr("too large for the new type"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.gguf")));
}

TEST(ConvertNames, OfModelsAndSizes) {
  EXPECT_EQ(convert::model_name("/x/demo-moe"), "Demo Moe");
  EXPECT_EQ(convert::model_name("/x/Qwen3.5-35B-A3B/"), "Qwen3.5 35B A3B");
}

}  // namespace
}  // namespace quire::test
