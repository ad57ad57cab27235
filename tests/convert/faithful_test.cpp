// What transformers makes of a folder, the file says too; what the file cannot say is refused. Each case here
// was got wrong once. tools/check_convert.py asks transformers itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "convert/convert.h"
#include "convert/hf_config.h"
#include "convert/support.h"
#include "gguf/reader.h"

namespace quire::test {
namespace {

using convert::RopeScaling;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string conversion_error(const HfFolder& folder) {
  const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.gguf")));
  return s.ok() ? "accepted" : s.error().message;
}

// ---- config.json ----

TEST(FaithfulConfig, ExpertsUnderEitherName) {
  json document = hf_config(model("tiny-qwen3moe"));
  const int64_t experts = document["num_experts"];
  document.erase("num_experts");
  document["num_local_experts"] = experts;  // what transformers 5 writes
  EXPECT_EQ(config_of(document).experts, experts);
  document["num_experts"] = experts + 1;
  EXPECT_THAT(refusal(document), HasSubstr("num_experts: 9 and num_local_experts: 8 contradict"));
  json mixtral = hf_config(model("tiny-mixtral"));
  mixtral["num_experts"] = mixtral["num_local_experts"];
  mixtral.erase("num_local_experts");
  EXPECT_EQ(config_of(mixtral).experts, 6);
  json hybrid = hf_config(model("tiny-qwen35moe"));  // this class has the one name only
  hybrid["num_local_experts"] = 3;
  EXPECT_EQ(config_of(hybrid).experts, 8);
}

TEST(FaithfulConfig, TheHeadOfAWrapperIsTiedByItsOwnKey) {
  json text = hf_config(model("tiny-qwen35"));
  text.erase("architectures");
  json document = {{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"text_config", text}};
  const auto tied = [&](json outer, json inner) {
    document["tie_word_embeddings"] = outer;
    document["text_config"]["tie_word_embeddings"] = inner;
    return config_of(document).tied;
  };
  EXPECT_TRUE(tied(true, false));
  EXPECT_FALSE(tied(false, true));
  EXPECT_FALSE(tied(nullptr, true));
  document["architectures"] = {"Qwen3_5ForCausalLM"};  // made from text_config alone
  EXPECT_TRUE(tied(false, true));
  EXPECT_FALSE(tied(true, nullptr));
  document.erase("text_config");
  document["architectures"] = {"Qwen3_5ForConditionalGeneration"};
  EXPECT_THAT(refusal(document), HasSubstr("text_config: missing"));
}

TEST(FaithfulConfig, KeysAroundAWrapperAreNotItsModels) {
  json text = hf_config(model("tiny-qwen35"));
  text.erase("architectures");
  text.erase("hidden_size");
  EXPECT_THAT(
      refusal({{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"text_config", text}, {"hidden_size", 64}}),
      HasSubstr("hidden_size: missing"));
}

TEST(FaithfulConfig, OnlyHybridsRotateAPartOfAHead) {
  for (const char* name : {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-qwen3moe"}) {
    json document = hf_config(model(name));
    document["partial_rotary_factor"] = 0.5;
    const auto c = config_of(document);
    EXPECT_EQ(c.n_rot, c.head_dim) << name;
    EXPECT_THAT(c.notes, ElementsAre(HasSubstr("partial_rotary_factor 0.5 is left out"))) << name;
    document["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
    EXPECT_THAT(refusal(document), HasSubstr("partial_rotary_factor: 0.5 beside a scaled RoPE")) << name;
  }
  json document = hf_config(model("tiny-qwen35"));
  EXPECT_EQ(config_of(document).n_rot, 16);
}

TEST(FaithfulConfig, DefaultRopeThetaIsTheClassesOwn) {
  for (const auto& [name, theta] : {std::pair("tiny-llama", 1e4), std::pair("tiny-mixtral", 1e6),
                                    std::pair("tiny-qwen2", 1e4), std::pair("tiny-qwen3moe", 1e4)}) {
    json document = hf_config(model(name));
    document.erase("rope_theta");
    EXPECT_EQ(config_of(document).rope_theta, theta) << name;
  }
}

TEST(FaithfulConfig, OlderRopeScalingOutranksRopeParameters) {
  json document = hf_config(model("tiny-qwen3"));
  document["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5000.0}};
  EXPECT_EQ(config_of(document).rope_theta, 5000);
  document["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  const auto c = config_of(document);
  EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(c.rope_theta, 1e6) << "the one beside it, not the one inside the other object";
  document["rope_scaling"] = json::object();
  EXPECT_EQ(config_of(document).rope_theta, 5000);
  document["rope_parameters"] = {{"full_attention", {{"rope_theta", 1.0}}}};
  EXPECT_THAT(refusal(document), HasSubstr("for each kind of layer"));
}

TEST(FaithfulConfig, YarnFactorAndContext) {
  json document = hf_config(model("tiny-qwen3"));  // of a context of 2048
  document.erase("rope_theta");
  json& r = document["rope_parameters"];
  const auto yarn = [&](json factor) {
    r = {{"rope_type", "yarn"}, {"rope_theta", 1e6}, {"original_max_position_embeddings", 512}};
    r["factor"] = std::move(factor);
  };
  const auto magnitude = [&] {
    const auto c = config_of(document);
    return c.rope.attn_factor * (0.1 * std::log(c.rope.factor) + 1);
  };
  yarn(nullptr);
  EXPECT_EQ(config_of(document).rope.factor, 4) << "null: the ratio of the contexts";
  r.erase("factor");
  EXPECT_THAT(refusal(document), HasSubstr("rope scaling: factor: missing"));
  yarn(0.5);
  EXPECT_EQ(config_of(document).rope.factor, 0.5);
  EXPECT_NEAR(magnitude(), 1, 1e-12) << "below 1 nothing is made larger or smaller";
  yarn(1e-5);
  EXPECT_THAT(refusal(document), HasSubstr("too small for yarn"));
  yarn(4.0);
  document["original_max_position_embeddings"] = 256;  // beside the object it counts
  EXPECT_EQ(config_of(document).rope.original_context, 256);
  r["factor"] = nullptr;
  EXPECT_EQ(config_of(document).rope.factor, 8);
  document["original_max_position_embeddings"] = 256.5;
  EXPECT_THAT(refusal(document), HasSubstr("256.5 is not a context length"));
  document["original_max_position_embeddings"] = 1;
  EXPECT_THAT(refusal(document), HasSubstr("yarn from a context of 1 "));
  document.erase("original_max_position_embeddings");
  yarn(4.0);
  r["mscale"] = 2.0;
  EXPECT_NEAR(magnitude(), 0.1 * std::log(4.0) + 1, 1e-12) << "alone it counts for nothing";
  r["mscale_all_dim"] = 0.5;
  EXPECT_NEAR(magnitude(), (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
}

TEST(FaithfulConfig, AWindowEndsTheContext) {
  json document = hf_config(model("tiny-mixtral"));
  document["sliding_window"] = 512;
  EXPECT_EQ(config_of(document).context, 512);
  EXPECT_THAT(config_of(document).notes, ElementsAre(HasSubstr("context_length is 512 instead of 2048")));
  document["sliding_window"] = 2048;
  EXPECT_THAT(config_of(document).notes, IsEmpty());
  document = hf_config(model("tiny-qwen2"));
  document["sliding_window"] = 512;
  EXPECT_EQ(config_of(document).context, 2048) << "not used";
  document["use_sliding_window"] = true;
  document["max_window_layers"] = 3;
  EXPECT_EQ(config_of(document).context, 2048) << "of none of the three layers";
  document["max_window_layers"] = 2;
  EXPECT_EQ(config_of(document).context, 512);
  document["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(config_of(document).context, 2048);
}

// ---- Tensors ----

TEST(FaithfulTensors, BiasesThatTheClassDoesNotHaveAreRefused) {
  const TinyModel m = model("tiny-qwen3");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  const int64_t rows = m.heads * m.head_dim;
  tensors.push_back(safe_tensor("model.layers.0.self_attn.q_proj.bias", "BF16", {rows},
                                std::vector<bf16>(static_cast<size_t>(rows), to_bf16(1))));
  folder.write("model.safetensors", safetensors_file(tensors));
  EXPECT_THAT(conversion_error(folder), HasSubstr("self_attn.q_proj.bias' of the model folder would not be computed"));
  json document = hf_config(m);
  document["attention_bias"] = true;
  folder.write_json("config.json", document);
  EXPECT_THAT(conversion_error(folder), HasSubstr("self_attn.k_proj.bias is missing"));
}

// The values of a tensor whose head is another matrix than the embedding.
TEST(FaithfulTensors, AHeadOfItsOwnIsKeptBesideTiedEmbeddings) {
  const TinyModel m = model("tiny-qwen2");
  ASSERT_TRUE(m.tied);
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  const auto embedding = std::find_if(tensors.begin(), tensors.end(),
                                      [](const SafeTensor& t) { return t.name == "model.embed_tokens.weight"; });
  SafeTensor head = *embedding;
  head.name = "lm_head.weight";
  tensors.push_back(head);
  folder.write("model.safetensors", safetensors_file(tensors));
  convert::ConvertSummary s;
  EXPECT_EQ(converted(folder, &s).find_tensor("output.weight"), nullptr);
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("lm_head is left out: it equals the embedding")));
  tensors.back().bytes[7] ^= 0x10;
  folder.write("model.safetensors", safetensors_file(tensors));
  const gguf::File f = converted(folder, &s);
  const gguf::TensorInfo* output = f.find_tensor("output.weight");
  ASSERT_NE(output, nullptr);
  EXPECT_EQ(std::memcmp(output->data, tensors.back().bytes.data(), tensors.back().bytes.size()), 0);
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("lm_head differs from the embedding")));
}

TEST(FaithfulTensors, NotANumberIsSaidOfEveryTensorThatHoldsOne) {
  const TinyModel m = model("tiny-qwen3moe");
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  std::vector<std::string> damaged;
  for (SafeTensor& t : tensors) {
    const bool kept_as_it_is = t.name == "model.layers.1.self_attn.o_proj.weight",
               made_f32 = t.name == "model.layers.2.input_layernorm.weight",
               stacked = t.name.starts_with("model.layers.0.mlp.experts.") && damaged.empty();
    if (!kept_as_it_is && !made_f32 && !stacked) continue;
    const uint16_t bits = made_f32 ? 0xff80 : 0x7fc0;  // -infinity, NaN
    std::memcpy(t.bytes.data() + t.bytes.size() - 2, &bits, 2);
    damaged.push_back(t.name);
  }
  ASSERT_EQ(damaged.size(), 3u);
  folder.write("model.safetensors", safetensors_file(tensors));
  const std::string said = conversion_error(folder);
  EXPECT_THAT(said, HasSubstr("3 tensors hold NaN or infinity: "));
  for (const std::string& name : damaged) EXPECT_THAT(said, HasSubstr("'" + name + "'"));
}

// ---- tokenizer.json ----

class FaithfulTokenizer : public testing::Test {
 public:
  FaithfulTokenizer() : model_(model("tiny-qwen3")), folder_(model_), document_(hf_tokenizer(model_)) {}

  std::string refusal_of_it() {
    folder_.write_json("tokenizer.json", document_);
    return conversion_error(folder_);
  }
  std::string rule() {
    folder_.write_json("tokenizer.json", document_);
    const std::string name(converted(folder_).get_string("tokenizer.ggml.pre").value());
    folder_.remove("m.gguf");
    return name;
  }

 protected:
  TinyModel model_;
  HfFolder folder_;
  json document_;
};

TEST_F(FaithfulTokenizer, TextSplitTwiceIsRefused) {
  document_["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = true;
  EXPECT_THAT(refusal_of_it(), HasSubstr("ByteLevel with use_regex after a Split"));
  json& steps = document_["pre_tokenizer"]["pretokenizers"];
  steps[1]["use_regex"] = false;
  steps.insert(steps.begin(), steps[0]);
  EXPECT_THAT(refusal_of_it(), HasSubstr("split twice"));
}

TEST_F(FaithfulTokenizer, AddedTokensThatTakeTheirSurroundingsAreRefused) {
  for (const char* key : {"lstrip", "rstrip", "single_word"}) {
    document_["added_tokens"][0][key] = true;
    const std::string said = refusal_of_it();
    EXPECT_THAT(said, HasSubstr(fmt::format("{} is not supported", key)));
    EXPECT_THAT(said, HasSubstr("added token '<|"));
    document_["added_tokens"][0][key] = false;
  }
}

TEST_F(FaithfulTokenizer, WhatChangesTextOrWordsIsRefused) {
  for (const char* type : {"Lowercase", "NFKC", "NFD", "Strip"}) {
    document_["normalizer"] = {{"type", type}};
    EXPECT_THAT(refusal_of_it(), HasSubstr(fmt::format("normalizer: '{}' is not supported", type)));
    document_["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", type}}}}};
    EXPECT_THAT(refusal_of_it(), HasSubstr("is not supported"));
  }
  document_["normalizer"] = {{"type", "NFC"}};
  for (const char* key : {"end_of_word_suffix", "continuing_subword_prefix"}) {
    document_["model"][key] = "</w>";
    EXPECT_THAT(refusal_of_it(), HasSubstr(fmt::format("{} '</w>' is not supported", key)));
    document_["model"][key] = "";
  }
  document_["model"]["dropout"] = 0.1;
  EXPECT_THAT(refusal_of_it(), HasSubstr("dropout"));
  document_["model"]["dropout"] = nullptr;
  document_["post_processor"] = {{"type", "RobertaProcessing"}};
  EXPECT_THAT(refusal_of_it(), HasSubstr("post_processor: 'RobertaProcessing' is not supported"));
}

TEST_F(FaithfulTokenizer, TheRuleSaysNfcAndIgnoreMergesToo) {
  EXPECT_EQ(rule(), "qwen2");
  document_.erase("normalizer");
  EXPECT_EQ(rule(), "stablelm2");
  document_["model"]["ignore_merges"] = true;
  EXPECT_THAT(refusal_of_it(), HasSubstr("its pattern without NFC and with ignore_merges true"));
  document_ = hf_tokenizer(model("tiny-llama"));
  document_["model"]["vocab"] = hf_tokenizer(model_)["model"]["vocab"];
  document_["added_tokens"] = json::array();
  EXPECT_EQ(rule(), "llama-bpe");
  document_["model"]["ignore_merges"] = false;
  EXPECT_EQ(rule(), "smaug-bpe");
  document_["normalizer"] = {{"type", "NFC"}};
  EXPECT_THAT(refusal_of_it(), HasSubstr("its pattern after NFC"));
}

TEST_F(FaithfulTokenizer, DigitsBeforeGpt2AreSmolLms) {
  document_.erase("normalizer");
  json& steps = document_["pre_tokenizer"]["pretokenizers"];
  steps[0] = {{"type", "Digits"}, {"individual_digits", true}};
  steps[1]["use_regex"] = true;
  EXPECT_EQ(rule(), "smollm");
  steps[0]["individual_digits"] = false;
  EXPECT_THAT(refusal_of_it(), HasSubstr("its way to split digits is not supported"));
  steps[0]["individual_digits"] = true;
  std::swap(steps[0], steps[1]);
  EXPECT_THAT(refusal_of_it(), HasSubstr("its way to split digits is not supported"));
  steps[1] = steps[0];
  steps[0] = {{"type", "Digits"}, {"individual_digits", true}};
  steps[1]["use_regex"] = false;
  EXPECT_THAT(refusal_of_it(), HasSubstr("the pattern")) << "digits alone";
}

TEST_F(FaithfulTokenizer, AByteThatIsNoTokenIsUnknownWhereTheModelSaysSo) {
  const auto unknown = [&]() -> int64_t {
    folder_.write_json("tokenizer.json", document_);
    const gguf::File f = converted(folder_);
    folder_.remove("m.gguf");
    constexpr const char* kKey = "quire.tokenizer.unknown_byte_token_id";
    return f.has(kKey) ? f.get_i64(kKey).value() : -1;
  };
  const auto id_of = [&](const std::string& text) -> int64_t {
    for (const json& token : document_["added_tokens"])
      if (token["content"] == text) return token["id"];
    return -2;
  };
  document_["model"]["unk_token"] = "<|im_end|>";
  EXPECT_EQ(unknown(), -1) << "all bytes are tokens";
  json& vocab = document_["model"]["vocab"];
  vocab.erase("Ā");  // the byte 0
  EXPECT_EQ(unknown(), id_of("<|im_end|>"));
  document_["model"]["fuse_unk"] = true;
  EXPECT_THAT(refusal_of_it(), HasSubstr("fuse_unk is not supported where a byte (0x00) is no token"));
  document_["model"]["unk_token"] = "<none>";
  EXPECT_THAT(refusal_of_it(), HasSubstr("unk_token '<none>' is no token"));
  document_["model"]["unk_token"] = nullptr;
  EXPECT_EQ(unknown(), -1);
}

TEST_F(FaithfulTokenizer, TokensFoundAfterNfcAreNoted) {
  document_["added_tokens"].push_back({{"id", 300}, {"content", "<made>"}, {"normalized", true}});
  folder_.write_json("tokenizer.json", document_);
  convert::ConvertSummary s;
  converted(folder_, &s);
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("1 added tokens are looked for before NFC")));
}

}  // namespace
}  // namespace quire::test
