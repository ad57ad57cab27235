// The small models of tests/support hold the weights that the golden outputs were computed with, in files
// that the reader accepts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "gguf/reader.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using nlohmann::json;

json golden_of(const TinyModel& m) {
  std::ifstream in(m.golden_path());
  EXPECT_TRUE(in) << m.golden_path();
  return json::parse(in);
}

const HfTensor& find(const std::vector<HfTensor>& tensors, const std::string& name) {
  for (const HfTensor& t : tensors)
    if (t.name == name) return t;
  fatal(__FILE__, __LINE__, name);
}

// Element i of a tensor in the file.
float at(const gguf::File& file, const std::string& name, int64_t i) {
  const gguf::TensorInfo* t = file.find_tensor(name);
  QUIRE_CHECK(t != nullptr && i < t->elems(), "{} [{}]", name, i);
  if (t->dtype == DType::kF32) {
    float x = 0;
    std::memcpy(&x, t->data + i * 4, sizeof x);
    return x;
  }
  QUIRE_CHECK(t->dtype == DType::kBF16, "{}", name);
  bf16 x;
  std::memcpy(&x, t->data + i * 2, sizeof x);
  return to_float(x);
}

float hf_at(const std::vector<HfTensor>& hf, const std::string& name, int64_t i) {
  return to_float(find(hf, name).values.at(static_cast<size_t>(i)));
}

class TinyModels : public testing::TestWithParam<TinyModel> {};

INSTANTIATE_TEST_SUITE_P(All, TinyModels, testing::ValuesIn(tiny_models()),
                         [](const auto& model) { return model.param.name.substr(std::strlen("tiny-")); });

TEST_P(TinyModels, HoldTheWeightsOfTheGoldenRun) {
  const json golden = golden_of(GetParam());
  EXPECT_EQ(fmt::format("{:016x}", fnv1a64(GetParam().hf_tensors())), golden.at("weights_fnv1a64").get<std::string>());
}

TEST_P(TinyModels, HaveTheConfigurationOfTheGoldenRun) {
  const TinyModel& m = GetParam();
  const json golden = golden_of(m), config = golden.at("config");
  const std::pair<const char*, double> numbers[] = {
      {"seed", m.seed},
      {"vocab", m.vocab},
      {"hidden", m.hidden},
      {"layers", m.layers},
      {"heads", m.heads},
      {"kv_heads", m.kv_heads},
      {"head_dim", m.head_dim},
      {"ffn", m.ffn},
      {"theta", m.rope_theta},
      {"experts", m.experts},
      {"used", m.experts_used},
      {"expert_ffn", m.expert_ffn},
      {"shared_ffn", m.shared_ffn},
      {"interval", m.interval},
      {"k_heads", m.k_heads},
      {"v_heads", m.v_heads},
      {"state", m.state},
      {"n_rot", m.n_rot},
      {"dense", m.dense},
      {"groups", m.groups},
      {"used_groups", m.used_groups},
      {"scale", m.routed_scale},
      {"window", m.window},
      {"window_interval", m.window_interval},
      {"local_theta", m.local_theta},
      {"scalar", m.scalar},
      {"global_head_dim", m.global_head_dim},
      {"global_kv_heads", m.global_kv_heads},
      {"rotated_pairs", m.rotated_pairs},
      {"soft_cap", m.soft_cap},
      {"per_layer", m.per_layer},
      {"shared_kv", m.shared_kv},
  };
  for (const auto& [key, value] : numbers) EXPECT_EQ(config.value(key, 0.0), value) << key;
  EXPECT_EQ(static_cast<float>(config.at("eps").get<double>()), m.rms_eps);
  EXPECT_EQ(config.at("tied").get<bool>(), m.tied);
  EXPECT_EQ(config.at("arch").get<std::string>(), m.architecture);
  EXPECT_EQ(config.value("double_wide", false), m.double_wide);
  EXPECT_EQ(config.contains("llama3"), m.llama3_rope);
  ASSERT_EQ(config.contains("longrope"), m.long_rope.original > 0);
  if (config.contains("longrope")) {
    EXPECT_EQ(config["longrope"].at("original").get<int64_t>(), m.long_rope.original);
    EXPECT_EQ(config["longrope"].at("magnitude").get<float>(), m.long_rope.magnitude);
  }
  EXPECT_EQ(golden.at("pre").get<std::string>(), m.pre_tokenizer());
  EXPECT_EQ(golden.at("add_bos").get<bool>(), m.add_bos());
}

TEST_P(TinyModels, MakeFilesThatOpen) {
  const TinyModel& m = GetParam();
  const TinyModelFile made(m);
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(*file->get_string("general.architecture"), m.architecture);
  EXPECT_EQ(*file->get_u32(m.architecture + ".block_count"), m.layers);
  EXPECT_EQ(file->get_strings("tokenizer.ggml.tokens")->size(), static_cast<size_t>(m.vocab));
  EXPECT_EQ(file->get_i32_array("tokenizer.ggml.token_type")->size(), static_cast<size_t>(m.vocab));

  int64_t elems = 0;
  for (const gguf::TensorInfo& t : file->tensors()) {
    elems += t.elems();
    for (int64_t i = 0; i < t.elems(); ++i) ASSERT_TRUE(std::isfinite(at(*file, std::string(t.name), i))) << t.name;
  }
  EXPECT_EQ(elems, golden_of(m).at("parameters").get<int64_t>() + (m.llama3_rope ? m.head_dim / 2 : 0) +
                       m.global_head_dim / 2 + std::ssize(m.short_factors()) + std::ssize(m.long_factors()));
  EXPECT_EQ(file->find_tensor("output.weight") == nullptr, m.tied);
  EXPECT_EQ(file->find_tensor("rope_freqs.weight") != nullptr, m.llama3_rope || m.gemma4());
  EXPECT_LT(file->mapped_bytes(), 4u << 20);
}

// What tests of a forward pass rely on: prompts of the lengths that matter, and outputs that are neither ties
// nor one token over and over.
TEST_P(TinyModels, GoldenOutputsMeanSomething) {
  const TinyModel& m = GetParam();
  const json golden = golden_of(m);
  std::set<size_t> lengths;
  std::set<int> last_tokens;
  for (const json& p : golden.at("prompts")) {
    SCOPED_TRACE(p.at("name").get<std::string>());
    const auto ids = p.at("ids").get<std::vector<int>>(), next = p.at("continuation_ids").get<std::vector<int>>();
    for (const int id : ids) EXPECT_TRUE(id >= 0 && id < m.vocab) << id;
    lengths.insert(ids.size());
    last_tokens.insert(next.back());
    // A tied model may repeat a lone token for ever.
    if (ids.size() > 2) {
      EXPECT_GE(std::set<int>(next.begin(), next.end()).size(), 8u);
    }
    EXPECT_EQ(p.at("last_top10").size(), 10u);
    EXPECT_EQ(p.at("full_forward_agrees").get<size_t>(), next.size());
    for (const double gap : p.at("continuation_gap").get<std::vector<double>>()) EXPECT_GT(gap, 3e-3);
  }
  for (const size_t n : {64u, 65u, 129u, 261u}) EXPECT_TRUE(lengths.contains(n)) << n;
  EXPECT_GT(last_tokens.size(), 4u);
  const json& ppl = golden.at("ppl");
  EXPECT_EQ(ppl.at("ids").size(), ppl.at("window").get<size_t>() * ppl.at("windows").get<size_t>());
}

// The transformations of a conversion, each at one place worked out by hand.
TEST(TinyModelLayout, LlamaRotaryPairsBecomeNeighbours) {
  const TinyModel m = tiny_models()[0];
  const TinyModelFile made(m);
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto hf = m.hf_tensors();
  // Head 1, file row 32 + 2*5 + 1, is transformers row 32 + 16 + 5.
  EXPECT_EQ(at(*file, "blk.0.attn_q.weight", 43 * 64 + 7),
            hf_at(hf, "model.layers.0.self_attn.q_proj.weight", 53 * 64 + 7));
  EXPECT_EQ(at(*file, "blk.2.attn_k.weight", 2 * 64), hf_at(hf, "model.layers.2.self_attn.k_proj.weight", 1 * 64));
  EXPECT_EQ(at(*file, "blk.0.attn_v.weight", 9), hf_at(hf, "model.layers.0.self_attn.v_proj.weight", 9));
}

TEST(TinyModelLayout, ValueHeadsAreTiled) {
  const TinyModel m = tiny_models()[7];
  ASSERT_EQ(m.name, "tiny-qwen35moe");
  const TinyModelFile made(m);
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto hf = m.hf_tensors();
  const std::string from = "model.layers.0.linear_attn.";
  // 2 key heads, 6 value heads: file head 3 = 1 * 2 + 1 is transformers head 1 * 3 + 1 = 4. 96 inputs, heads
  // of 64.
  EXPECT_EQ(at(*file, "blk.0.attn_gate.weight", (3 * 64 + 2) * 96 + 5),
            hf_at(hf, from + "in_proj_z.weight", (4 * 64 + 2) * 96 + 5));
  EXPECT_EQ(at(*file, "blk.0.attn_qkv.weight", (256 + 3 * 64) * 96),
            hf_at(hf, from + "in_proj_qkv.weight", (256 + 4 * 64) * 96));
  EXPECT_EQ(at(*file, "blk.0.attn_qkv.weight", 255 * 96), hf_at(hf, from + "in_proj_qkv.weight", 255 * 96));
  EXPECT_EQ(at(*file, "blk.0.ssm_conv1d.weight", (256 + 3 * 64) * 4 + 1),
            hf_at(hf, from + "conv1d.weight", (256 + 4 * 64) * 4 + 1));
  EXPECT_EQ(at(*file, "blk.0.ssm_out.weight", 2 * 384 + 3 * 64 + 9),
            hf_at(hf, from + "out_proj.weight", 2 * 384 + 4 * 64 + 9));
  EXPECT_EQ(at(*file, "blk.0.ssm_dt.bias", 3), hf_at(hf, from + "dt_bias", 4));
  EXPECT_EQ(at(*file, "blk.0.ssm_alpha.weight", 3 * 96), hf_at(hf, from + "in_proj_a.weight", 4 * 96));
  EXPECT_FLOAT_EQ(at(*file, "blk.0.ssm_a", 3), -std::exp(hf_at(hf, from + "A_log", 4)));
  EXPECT_EQ(at(*file, "blk.0.ssm_norm.weight", 3), hf_at(hf, from + "norm.weight", 3));
  EXPECT_EQ(at(*file, "blk.3.attn_q_norm.weight", 3), 1 + hf_at(hf, "model.layers.3.self_attn.q_norm.weight", 3));
  EXPECT_EQ(at(*file, "output_norm.weight", 3), 1 + hf_at(hf, "model.norm.weight", 3));
}

TEST(TinyModelLayout, ExpertsAreSplitIntoGateAndUp) {
  const TinyModel m = tiny_models()[5];
  ASSERT_EQ(m.name, "tiny-qwen3moe");
  const TinyModelFile made(m);
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto hf = m.hf_tensors();
  const std::string packed = "model.layers.1.mlp.experts.gate_up_proj";  // [8, 96, 64]
  EXPECT_EQ(at(*file, "blk.1.ffn_gate_exps.weight", (2 * 48 + 5) * 64 + 1), hf_at(hf, packed, (2 * 96 + 5) * 64 + 1));
  EXPECT_EQ(at(*file, "blk.1.ffn_up_exps.weight", (2 * 48 + 5) * 64 + 1),
            hf_at(hf, packed, (2 * 96 + 48 + 5) * 64 + 1));
  EXPECT_EQ(at(*file, "blk.1.ffn_down_exps.weight", 4321), hf_at(hf, "model.layers.1.mlp.experts.down_proj", 4321));
}

TEST(TinyModelLayout, RopeDivisorsCoverAllThreeKindsOfWavelength) {
  const TinyModel m = tiny_models()[1];
  ASSERT_TRUE(m.llama3_rope);
  const TinyModelFile made(m);
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(at(*file, "rope_freqs.weight", 0), 1);
  EXPECT_EQ(at(*file, "rope_freqs.weight", 23), 8);
  // j = 4: wavelength 2 pi 10000^(8/48) = 29.163963, a = (64/29.163963 - 1)/3 = 0.398163, f = 1/((1-a)/8 +
  // a).
  EXPECT_NEAR(at(*file, "rope_freqs.weight", 4), 2.112411, 1e-4);
}

}  // namespace
}  // namespace quire::test
