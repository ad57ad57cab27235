// Folders of gpt-oss: what config.json says, and experts as they are published, in MXFP4 with gate and up in turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "convert/random_matrix.h"
#include "convert/support.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// As the 20B model is published, shortened to two layers.
json published() {
  return {{"architectures", {"GptOssForCausalLM"}},
          {"attention_bias", true},
          {"experts_per_token", 4},
          {"head_dim", 64},
          {"hidden_act", "silu"},
          {"hidden_size", 2880},
          {"initial_context_length", 4096},
          {"intermediate_size", 2880},
          {"layer_types", {"sliding_attention", "full_attention"}},
          {"max_position_embeddings", 131072},
          {"num_attention_heads", 64},
          {"num_experts_per_tok", 4},
          {"num_hidden_layers", 2},
          {"num_key_value_heads", 8},
          {"num_local_experts", 32},
          {"quantization_config", {{"quant_method", "mxfp4"}}},
          {"rms_norm_eps", 1e-05},
          {"rope_scaling",
           {{"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"factor", 32.0},
            {"original_max_position_embeddings", 4096},
            {"rope_type", "yarn"},
            {"truncate", false}}},
          {"rope_theta", 150000},
          {"sliding_window", 128},
          {"swiglu_limit", 7.0},
          {"tie_word_embeddings", false},
          {"vocab_size", 201088}};
}

TEST(GptOss, ReadsThePublishedConfig) {
  const convert::HfConfig c = config_of(published());
  EXPECT_EQ(c.row->name, "gpt-oss");
  EXPECT_EQ(c.expert_ffn, 2880);
  EXPECT_EQ(c.experts, 32);
  EXPECT_EQ(c.experts_used, 4);
  EXPECT_EQ(c.window, 128);
  EXPECT_THAT(c.windowed, testing::ElementsAre(true, false));
  EXPECT_EQ(c.window_interval, 2);
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_TRUE(c.output_bias);
  EXPECT_EQ(c.rope.kind, convert::RopeScaling::Kind::kYarn);
  EXPECT_EQ(c.rope.attn_factor, 1) << "0.1 ln(32) + 1 is what readers multiply by";
  json document = published();
  document.erase("attention_bias");
  document.erase("num_experts_per_tok");
  document.erase("sliding_window");
  const convert::HfConfig absent = config_of(document);
  EXPECT_TRUE(absent.qkv_bias);
  EXPECT_EQ(absent.experts_used, 4);
  EXPECT_EQ(absent.window, 128);
}

TEST(GptOss, IsRefusedWhereItWouldComputeSomethingElse) {
  json document = published();
  document["swiglu_limit"] = 5.0;
  EXPECT_THAT(refusal(document), HasSubstr("swiglu_limit: 5 is not supported (7 is)"));
  document = published();
  document["rope_scaling"].erase("truncate");
  EXPECT_THAT(refusal(document), HasSubstr("truncate: only false is supported for gpt-oss"));
  document = published();
  document["num_local_experts"] = 3;
  EXPECT_THAT(refusal(document), HasSubstr("num_experts_per_tok: 4 is not between 1 and 3"));
}

// One of the experts' matrices [E, rows, cols] as it is published, and its values.
struct Mxfp4 {
  std::vector<SafeTensor> tensors;
  std::vector<float> values;

  Mxfp4(const std::string& stem, int64_t experts, int64_t rows, int64_t cols, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> codes, scales;
    for (int64_t i = 0; i < experts * rows * cols; ++i) {
      if (i % 32 == 0) scales.push_back(static_cast<uint8_t>(120 + random() % 8));
      const auto code = static_cast<uint8_t>(random() % 16);
      if (i % 2 == 0)
        codes.push_back(code);
      else
        codes.back() = static_cast<uint8_t>(codes.back() | code << 4);
      values.push_back(kCodes[code] * std::ldexp(1.0F, scales.back() - 127));
    }
    tensors.push_back(safe_tensor(stem + "_blocks", "U8", {experts, rows, cols / 32, 16}, codes));
    tensors.push_back(safe_tensor(stem + "_scales", "U8", {experts, rows, cols / 32}, scales));
  }
};

class GptOssFolder : public testing::Test {
 protected:
  const TinyModel m_ = model("tiny-gptoss");
  const HfFolder folder_{m_};
  const std::string stem_ = "model.layers.0.mlp.experts.";
  const Mxfp4 gate_up_{stem_ + "gate_up_proj", m_.experts, 2 * m_.ffn, m_.hidden, 1};
  const Mxfp4 down_{stem_ + "down_proj", m_.experts, m_.hidden, m_.ffn, 2};

  // The model's tensors, those of layer 0's experts in MXFP4.
  std::vector<SafeTensor> tensors() const {
    std::vector<SafeTensor> all;
    for (const SafeTensor& t : safe_tensors(m_))
      if (t.name != stem_ + "gate_up_proj" && t.name != stem_ + "down_proj") all.push_back(t);
    for (const Mxfp4* x : {&gate_up_, &down_}) all.insert(all.end(), x->tensors.begin(), x->tensors.end());
    return all;
  }
  std::string error_of(const std::vector<SafeTensor>& all) const {
    folder_.write("model.safetensors", safetensors_file(all));
    const auto done = convert::convert({.folder = folder_.path(), .output = folder_.path("m.gguf"), .threads = 1});
    return done.ok() ? "converted" : done.error().message;
  }
};

TEST_F(GptOssFolder, KeepsMxfp4AndTakesGateAndUpApart) {
  folder_.write("model.safetensors", safetensors_file(tensors()));
  const gguf::File file = convert_folder(folder_, "m.gguf");
  const auto check = [&](const char* name, int64_t rows, int64_t cols, const std::vector<float>& from, int64_t first,
                         int64_t step) {
    const gguf::TensorInfo* t = file.find_tensor(name);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->dtype, DType::kMXFP4) << name;
    const std::vector<float> got = values_of(file, *t);
    std::vector<float> want;
    for (int64_t row = 0; row < m_.experts * rows; ++row) {
      const auto at = from.begin() + (row * step + first) * cols;
      want.insert(want.end(), at, at + cols);
    }
    EXPECT_EQ(got, want) << name;
  };
  check("blk.0.ffn_gate_exps.weight", m_.ffn, m_.hidden, gate_up_.values, 0, 2);
  check("blk.0.ffn_up_exps.weight", m_.ffn, m_.hidden, gate_up_.values, 1, 2);
  check("blk.0.ffn_down_exps.weight", m_.hidden, m_.ffn, down_.values, 0, 1);
  EXPECT_EQ(file.find_tensor("blk.1.ffn_gate_exps.weight")->dtype, DType::kBF16);
}

TEST_F(GptOssFolder, SaysWhatIsWrongWithIt) {
  std::vector<SafeTensor> all = tensors();
  const auto find = [&](const std::string& name) {
    return std::find_if(all.begin(), all.end(), [&](const SafeTensor& t) { return t.name == stem_ + name; });
  };
  find("gate_up_proj_scales")->bytes[7] = '\xff';
  EXPECT_THAT(error_of(all), HasSubstr("gate_up_proj_scales': scale code 0xff"));
  all = tensors();
  find("down_proj_blocks")->shape = {m_.experts, m_.hidden, m_.ffn / 16, 8};
  EXPECT_THAT(error_of(all), HasSubstr("down_proj_blocks"));
  all = tensors();
  all.erase(find("down_proj_scales"));
  EXPECT_THAT(error_of(all), HasSubstr("there is no " + stem_ + "down_proj_scales"));
  all = tensors();
  all.erase(find("gate_up_proj_blocks"));
  EXPECT_THAT(error_of(all), HasSubstr("are missing; the model needs one of them"));
  all = tensors();
  all.erase(find("gate_up_proj_bias"));
  EXPECT_THAT(error_of(all), HasSubstr("gate_up_proj_bias is missing"));
  all = safe_tensors(m_);
  find("down_proj")->shape = {m_.experts, m_.hidden, m_.ffn};
  EXPECT_THAT(error_of(all), HasSubstr("that config.json needs"));
}

}  // namespace
}  // namespace quire::test
