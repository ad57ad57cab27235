// From files to models: every architecture of the table is built from its small random model, and what a file may not
// ask for, or has wrong, is refused in words that say what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "arch/architecture.h"
#include "model/edited.h"
#include "support/cache_bytes.h"

namespace quire {
namespace {

using test::Edited;
using test::GgufEdit;
using test::Opened;
using test::TinyModel;
using test::with_mtp_block;
using testing::AllOf;
using testing::HasSubstr;

class EveryModel : public testing::TestWithParam<TinyModel> {};

TEST_P(EveryModel, IsBuiltFromItsRow) {
  const TinyModel& m = GetParam();
  const test::TinyModelFile on_disk(m);
  const Opened o(on_disk.path());
  ASSERT_EQ(o.error(), "");
  const Model& model = **o.model;
  const ModelConfig& c = model.config();
  EXPECT_EQ(c.layers, m.layers);
  ASSERT_EQ(std::ssize(c.mixers), m.layers);
  int64_t attention = 0;
  for (int64_t i = 0; i < m.layers; ++i) {
    const Mixer mixer = c.mixers[static_cast<size_t>(i)];
    EXPECT_EQ(mixer != Mixer::kDelta, m.full_attention(i)) << i;
    EXPECT_EQ(mixer == Mixer::kWindowAttention, m.windowed(i)) << i;
    attention += mixer != Mixer::kDelta && m.own_kv(i);
  }
  EXPECT_EQ(c.attention.gated_query, m.hybrid());
  EXPECT_EQ(c.attention.qk_norm, m.qk_norm());
  EXPECT_EQ(c.attention.window, m.window);
  EXPECT_EQ(c.attention.rope.n_rot, m.rotated());
  EXPECT_EQ(c.experts.dense_layers, m.dense);
  EXPECT_EQ(c.norms_after, m.norms_after());
  EXPECT_EQ(c.context_length, 2048);
  EXPECT_EQ(c.attention.rope.style,
            m.architecture == "llama" || m.architecture == "glm4" ? Rope::Style::kInterleaved : Rope::Style::kHalves);
  EXPECT_EQ(c.experts.count, m.experts);
  EXPECT_EQ(c.experts.d_ff_shared, m.shared_ffn);
  EXPECT_EQ(c.per_layer.width, m.per_layer);
  EXPECT_EQ(c.attention.shared_kv_layers, m.shared_kv);
  EXPECT_EQ(c.kv_layers(), attention);
  EXPECT_EQ(c.has_state(), m.hybrid());
  EXPECT_TRUE(model.unread().empty()) << model.unread().front();

  // Caches follow from the kinds of layers.
  const CacheShape shape = model.cache_shape(Device::kCpu);
  EXPECT_EQ(shape.attention_layers(), attention);
  int64_t block_bytes = 0, layer = 0;
  for (const AttentionCacheShape& run : shape.attention)
    for (int32_t i = 0; i < run.layers; ++i, ++layer) {
      while (!m.full_attention(layer)) ++layer;
      EXPECT_EQ(run.kv_heads, m.kv_heads_of(layer)) << layer;
      EXPECT_EQ(run.head_dim, m.head_dim_of(layer)) << layer;
      block_bytes += 2 * m.kv_heads_of(layer) * m.head_dim_of(layer) * kBlockTokens * 2;
    }
  EXPECT_EQ(test::unit_bytes(shape, "kv"), block_bytes);
  EXPECT_EQ(shape.delta.layers, m.hybrid() ? m.layers - attention : 0);
  EXPECT_EQ(shape.has_state(), m.hybrid());
  EXPECT_EQ(test::unit_bytes(shape, "state") > 0, m.hybrid());
  EXPECT_EQ(shape.delta.conv_channels, m.hybrid() ? 2 * m.k_heads * m.state + m.v_heads * m.state : 0);
  EXPECT_EQ(model.cache_shape(Device::kCpu, KvCacheType::kFp8).kv_dtype, DType::kF8E4M3);
}

// Each tensor in turn is missing. Its model is refused by its name, unless it is one that a file may be without.
TEST_P(EveryModel, NamesATensorThatIsMissing) {
  const Edited edited(GetParam().name);
  const gguf::File whole = std::move(gguf::File::open(edited.original())).value();
  for (const gguf::TensorInfo& t : whole.tensors()) {
    const std::string name(t.name), error = edited.error({.drop = {name}});
    using enum TensorRole;
    if (name.ends_with("ffn_down_exps.scale")) {
      EXPECT_EQ(error, "") << name << ": 1";
      continue;
    }
    const TensorRole role = find_tensor_spec(name)->spec->role;
    const bool keys_will_do =
        role == kAttnV && GetParam().gemma4() && !GetParam().windowed(find_tensor_spec(name)->block);
    const bool optional = role == kOutput || role == kRopeFreqs || role == kRopeShort || role == kRopeLong ||
                          role == kAttnQBias || role == kAttnKBias || role == kAttnVBias || role == kAttnOutputBias ||
                          role == kLayerScale || keys_will_do;
    if (optional)
      EXPECT_EQ(error, "") << name;
    else
      EXPECT_EQ(error, role == kTokenEmbedding ? "tensor token_embd.weight is missing"
                                               : fmt::format("tensor {} is missing", gguf::printable(name)))
          << name;
  }
}

// Each tensor in turn has one row less, or a vector one element less.
TEST_P(EveryModel, NamesATensorOfAnotherShape) {
  const Edited edited(GetParam().name);
  const gguf::File whole = std::move(gguf::File::open(edited.original())).value();
  for (const gguf::TensorInfo& t : whole.tensors()) {
    const std::string name(t.name);
    if (name == "token_embd.weight") continue;  // it says how large the vocabulary is
    std::vector<int64_t> dims(t.dims.begin(), t.dims.begin() + t.n_dims);
    --dims[t.n_dims > 1 ? 1 : 0];
    EXPECT_THAT(edited.error({.reshape = {{name, dims}}}),
                AllOf(HasSubstr("tensor " + name + ": shape "), HasSubstr("does not fit the model, which needs [")));
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, EveryModel, testing::ValuesIn(test::tiny_models()), [](const auto& model) {
  std::string name = model.param.name.substr(5);
  return name;
});

TEST(Architectures, HaveASmallModelEach) {
  for (const Architecture& row : architectures()) {
    const std::vector<TinyModel> all = test::tiny_models();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const TinyModel& m) { return m.architecture == row.name; }))
        << row.name;
  }
}

TEST(Refusals, NameTheKeyThatAsksForMore) {
  const Edited dense("tiny-qwen3"), experts("tiny-qwen3moe");
  EXPECT_EQ(dense.with("attention.sliding_window", 512u),
            "qwen3.attention.sliding_window: sliding windows are not supported");
  EXPECT_EQ(dense.with("attn_logit_softcapping", 50.0f),
            "qwen3.attn_logit_softcapping: soft caps of attention are not supported");
  EXPECT_EQ(dense.with("final_logit_softcapping", 30.0f),
            "qwen3.final_logit_softcapping: a soft cap of logits is not supported");
  EXPECT_THAT(dense.with("attention.scale", 0.0625f),
              AllOf(HasSubstr("qwen3.attention.scale: another scale"), HasSubstr("not supported")));
  EXPECT_EQ(dense.with("attention.causal", false),
            "qwen3.attention.causal: attention to later positions is not supported");
  EXPECT_EQ(dense.with("embedding_scale", 12.0f), "qwen3.embedding_scale: a scale of embeddings is not supported");
  EXPECT_EQ(dense.with("residual_scale", 0.22f),
            "qwen3.residual_scale: a scale of the residual stream is not supported");
  EXPECT_EQ(dense.with("logit_scale", 8.0f), "qwen3.logit_scale: a scale of logits is not supported");
  EXPECT_EQ(experts.with("expert_gating_func", 2u), "qwen3moe.expert_gating_func: a sigmoid router is not supported");
  EXPECT_EQ(experts.with("expert_weights_norm", false),
            "qwen3moe.expert_weights_norm: experts' weights that do not add up to 1 are not supported");
  EXPECT_EQ(experts.with("expert_weights_scale", 2.5f),
            "qwen3moe.expert_weights_scale: a scale of the experts is not supported");
  for (const auto& [name, said] : {std::pair("gelu_pytorch_tanh", "another activation than silu is not supported"),
                                   std::pair("relu\n2", "'relu\\x0a2' is not supported (silu is)")})
    EXPECT_EQ(dense.error({.metadata = [&, n = name](gguf::Writer& w) { w.add_string("qwen3.hidden_activation", n); }}),
              fmt::format("qwen3.hidden_activation: {}", said));
}

TEST(Refusals, LeaveAloneWhatAsksForNothing) {
  const Edited dense("tiny-qwen3"), experts("tiny-qwen3moe");
  EXPECT_EQ(dense.with("attention.sliding_window", 0u), "");
  EXPECT_EQ(dense.with("attention.sliding_window", 2048u), "") << "as long as the context";
  EXPECT_EQ(dense.with("attn_logit_softcapping", 0.0f), "");
  EXPECT_EQ(dense.with("attention.scale", 1 / std::sqrt(48.0f)), "") << "what is computed";
  EXPECT_EQ(dense.with("attention.causal", true), "");
  EXPECT_EQ(dense.with("logit_scale", 1.0f), "");
  EXPECT_EQ(experts.with("expert_gating_func", 1u), "");
  EXPECT_EQ(experts.with("expert_weights_norm", true), "");
  EXPECT_EQ(experts.with("expert_weights_scale", 1.0f), "");
}

TEST(Refusals, NameTheTensorThatNothingTakes) {
  const Edited dense("tiny-qwen3"), llama("tiny-llama"), experts("tiny-qwen3moe");
  EXPECT_EQ(dense.error({.add = {{"blk.1.attn_sinks.weight", {4}}}}),
            "tensor blk.1.attn_sinks.weight: attention sinks are not supported for the architecture qwen3");
  EXPECT_EQ(dense.error({.add = {{"blk.0.post_attention_norm.weight", {64}}}}),
            "tensor blk.0.post_attention_norm.weight: norms after attention are not supported for the "
            "architecture "
            "qwen3");
  EXPECT_THAT(llama.error({.add = {{"blk.2.attn_q_norm.weight", {32}}}}), HasSubstr("norms of the queries"));
  EXPECT_THAT(experts.error({.add = {{"blk.0.exp_probs_b.bias", {8}}}}), HasSubstr("biases of the router"));
  EXPECT_THAT(dense.error({.add = {{"blk.3.attn_sinks.weight", {4}}}}), HasSubstr("tensor blk.3.attn_sinks.weight"));
}

TEST(Refusals, NameContradictions) {
  const Edited hybrid("tiny-qwen35"), dense("tiny-qwen3"), experts("tiny-qwen3moe");
  // Block 1 is one of attention, and has no KV heads.
  const auto kv_heads = [&](std::vector<uint32_t> heads) {
    return hybrid.error({.drop = {"qwen35.attention.head_count_kv"}, .metadata = [&](gguf::Writer& w) {
                           w.add_array("qwen35.attention.head_count_kv", std::span<const uint32_t>(heads));
                         }});
  };
  EXPECT_EQ(kv_heads({0, 0, 0, 1}), "qwen35.attention.head_count_kv: 0 KV heads in block 1, which is one of attention");
  EXPECT_EQ(kv_heads({0, 1, 0, 2}), "qwen35.attention.head_count_kv: differs between blocks, which is not supported");
  EXPECT_EQ(kv_heads({0, 1, 7, 1}), "") << "what stands beside a delta net says nothing";
  EXPECT_THAT(kv_heads({0, 1, 0}), HasSubstr("head_count_kv"));
  EXPECT_THAT(hybrid.with("nextn_predict_layers", 4u), HasSubstr("4 is not between 0 and 3"));
  EXPECT_THAT(hybrid.with("full_attention_interval", 0u), HasSubstr("full_attention_interval"));
  EXPECT_THAT(hybrid.with("full_attention_interval", 4u), HasSubstr("blk.1."))
      << "block 1 becomes a delta net, but has attention's tensors";
  EXPECT_THAT(dense.with("expert_count", 4u), HasSubstr("qwen3.expert_count: qwen3 has no experts"));
  EXPECT_THAT(experts.with("expert_count", 0u), HasSubstr("a model of experts has none"));
  EXPECT_THAT(experts.with("expert_used_count", 9u), HasSubstr("9 is not between 1 and 8"));
  EXPECT_THAT(dense.with("attention.head_count_kv", 3u), HasSubstr("4 heads cannot share 3 KV heads"));
}

// ---- Multi-token prediction ----

TEST(Mtp, IsLoadedWhenAskedFor) {
  const Edited hybrid("tiny-qwen35");
  const Opened o = hybrid.open(with_mtp_block());
  ASSERT_EQ(o.error(), "");
  const Model& model = **o.model;
  EXPECT_EQ(model.config().layers, 4);
  EXPECT_EQ(model.config().mtp_layers, 1);
  EXPECT_TRUE(model.unread().empty());
  const auto block = model.mtp();
  ASSERT_TRUE(block.ok()) << block.error().message;
  EXPECT_EQ(block->weights.input.projection.rows, 64);
  EXPECT_EQ(block->weights.input.projection.cols, 128);
  EXPECT_TRUE(block->weights.embedding.empty()) << "the model's own";
  const auto& attention = std::get<AttentionWeights>(block->weights.layer.mixer);
  EXPECT_EQ(attention.q.data, o.file.find_tensor("blk.4.attn_q.weight")->data);
}

TEST(Mtp, NeverStopsAModelFromLoading) {
  const Edited hybrid("tiny-qwen35");
  // Each tensor of the block in turn is missing, or has another shape.
  const GgufEdit whole = with_mtp_block();
  std::vector<std::string> names;
  for (const auto& [from, to] : whole.copy) names.push_back(to);
  for (const auto& [name, dims] : whole.add) names.push_back(name);
  for (const std::string& name : names) {
    GgufEdit missing = whole, other = whole;
    std::erase_if(missing.copy, [&](const auto& c) { return c.second == name; });
    std::erase_if(missing.add, [&](const auto& a) { return a.first == name; });
    other.copy = missing.copy, other.add = missing.add;
    other.add.emplace_back(name, std::vector<int64_t>{3});
    const Opened without = hybrid.open(missing);
    ASSERT_EQ(without.error(), "") << name;
    const auto block = (*without.model)->mtp();
    if (name.ends_with("shared_head_norm.weight")) {
      EXPECT_TRUE(block.ok()) << "the model's own serves";
    } else {
      ASSERT_FALSE(block.ok()) << name;
      EXPECT_EQ(block.error().message, fmt::format("tensor {} is missing", gguf::printable(name)));
    }
    const Opened damaged = hybrid.open(other);
    ASSERT_EQ(damaged.error(), "") << name;
    const auto wrong = (*damaged.model)->mtp();
    ASSERT_FALSE(wrong.ok()) << name;
    EXPECT_THAT(wrong.error().message, HasSubstr("tensor " + name + ": shape [3]"));
  }
}

TEST(Mtp, SaysWhatIsNotSupported) {
  const Edited hybrid("tiny-qwen35");
  const Opened none = hybrid.open({}), two = hybrid.open(with_mtp_block(2));
  ASSERT_EQ(two.error(), "");
  EXPECT_EQ((*none.model)->mtp().error().message, "0 blocks for multi-token prediction: there is none to draft with");
  EXPECT_EQ((*two.model)->mtp().error().message, "2 blocks for multi-token prediction: one is supported");
  GgufEdit sinks = with_mtp_block();
  sinks.add.emplace_back("blk.4.attn_sinks.weight", std::vector<int64_t>{2});
  const Opened refused = hybrid.open(sinks);
  ASSERT_EQ(refused.error(), "");
  EXPECT_THAT((*refused.model)->mtp().error().message, HasSubstr("attention sinks are not supported"));
  // Values of the block in lists of metadata are its own.
  GgufEdit heads = with_mtp_block();
  heads.drop.insert("qwen35.attention.head_count");
  heads.metadata = [inner = heads.metadata](gguf::Writer& w) {
    inner(w);
    w.add_array("qwen35.attention.head_count", std::span<const uint32_t>(std::array<uint32_t, 5>{2, 2, 2, 2, 9}));
  };
  EXPECT_EQ(hybrid.error(heads), "");
}

// ---- Hostile files ----

// Whatever a byte of the metadata and of the list of tensors becomes, there is a model or a message.
TEST(Hostile, AnyByteOfTheHeader) {
  for (const char* name : {"tiny-qwen35", "tiny-qwen35moe", "tiny-llama3", "tiny-gemma4e"}) {
    const Edited edited(name);
    const std::string path = edited.original();
    std::vector<std::byte> bytes(std::filesystem::file_size(path));
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
    const size_t header = gguf::File::open(path).value().shards()[0].data_begin;
    uint64_t random = 0x9e3779b97f4a7c15u;
    int loaded = 0, refused = 0;
    for (int i = 0; i < 1500; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::byte& at = bytes[(random >> 33) % header];
      const std::byte before = std::exchange(at, static_cast<std::byte>(random >> 25));
      const auto file = gguf::File::parse(bytes);
      if (file.ok()) {
        const auto model = Model::load(*file);
        (model.ok() ? loaded : refused)++;
        if (model.ok())
          static_cast<void>((*model)->mtp());
        else
          EXPECT_FALSE(model.error().message.empty());
      }
      at = before;
    }
    EXPECT_GT(loaded, 100) << name;
    EXPECT_GT(refused, 10) << name;
  }
}

// ---- Placement ----

// Moves every pointer by one byte, and counts.
struct Shifter final : WeightPlacer {
  int64_t matrices = 0, tables = 0, vectors = 0;
  void matrix(Weight& w) override {
    if (w.empty()) return;
    ++matrices;
    w.data += 1;
  }
  void table(Weight& w) override {
    ++tables;
    w.data += 1;
  }
  void vector(Tensor& t) override {
    if (t.empty()) return;
    ++vectors;
    t.data = static_cast<std::byte*>(t.data) + 1;
  }
};

struct Collector final : WeightVisitor {
  std::vector<const void*> all;
  void matrix(const Weight& w) override { all.push_back(w.data); }
  void table(const Weight& w) override { all.push_back(w.data); }
  void vector(const Tensor& t) override { all.push_back(t.data); }
};

TEST_P(EveryModel, IsPlacedWithoutBeingChanged) {
  const test::TinyModelFile on_disk(GetParam());
  const Opened o(on_disk.path());
  const Decoder& decoder = (*o.model)->decoder();
  Collector before, after, placed;
  decoder.visit(before);
  Shifter shift;
  const Decoder copy = decoder.placed(shift);
  decoder.visit(after);
  copy.visit(placed);
  EXPECT_EQ(after.all, before.all);
  EXPECT_EQ(&copy.config(), &decoder.config()) << "they share it";
  ASSERT_EQ(placed.all.size(), before.all.size());
  for (size_t i = 0; i < before.all.size(); ++i)
    EXPECT_EQ(static_cast<const std::byte*>(placed.all[i]),
              before.all[i] == nullptr ? nullptr : static_cast<const std::byte*>(before.all[i]) + 1);
  // Everything that the file holds is shown once, a tied embedding twice, and each part of what lies fused; the
  // frequencies are the model's own, and take the place of their divisors. Numbers of layers are no tensors any more;
  // norms of values, and the coordinate that each pair of a rotation follows, have no tensor.
  const TinyModel& m = GetParam();
  int64_t parts = 0, divisors = 0;
  for (const gguf::TensorInfo& t : o.file.tensors()) {
    if (t.name.ends_with("layer_output_scale.weight")) continue;
    const bool fused_qkv = m.architecture == "phi3" && t.name.ends_with("attn_qkv.weight");
    const bool pair = t.name.ends_with("ssm_ba.weight") || (m.fused_gate_up() && t.name.ends_with("ffn_up.weight"));
    parts += fused_qkv ? 3 : pair ? 2 : 1;
    divisors += t.name.starts_with("rope_f");
  }
  const int64_t frequencies = m.window > 0 ? 2 : 1, axes = m.rope_sections.empty() ? 0 : 1;
  const int64_t value_norms = m.gemma4() ? m.layers - m.shared_kv : 0;
  EXPECT_EQ(shift.matrices + shift.tables + shift.vectors,
            parts - divisors + frequencies + axes + value_norms + m.tied);
}

}  // namespace
}  // namespace quire
