// Keys that a config.json leaves out: what the configuration classes of transformers 5.24.0 have then, or a refusal
// that names the key. Sizes that a model cannot be guessed without (hidden_size, num_hidden_layers, widths and numbers
// of experts) are refused in all classes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "convert/support.h"

namespace quire::test {
namespace {

using convert::HfConfig;
using convert::RopeScaling;
using nlohmann::json;

enum class Of { kContext, kKvHeads, kHeadDim, kEps, kTheta, kBias, kTied, kWindow, kRotated, kScale, kFirstDense };

double value_of(const HfConfig& c, Of what) {
  switch (what) {
    case Of::kContext:
      return static_cast<double>(c.context);
    case Of::kKvHeads:
      return static_cast<double>(c.kv_heads);
    case Of::kHeadDim:
      return static_cast<double>(c.window_head_dim > 0 ? c.window_head_dim : c.head_dim);
    case Of::kEps:
      return c.rms_eps;
    case Of::kTheta:
      return c.rope_theta;
    case Of::kBias:
      return c.qkv_bias ? 1 : 0;
    case Of::kTied:
      return c.tied ? 1 : 0;
    case Of::kWindow:
      return static_cast<double>(c.window);
    case Of::kRotated:
      return static_cast<double>(c.n_rot) / static_cast<double>(c.head_dim);
    case Of::kScale:
      return c.routed_scale;
    case Of::kFirstDense:
      return static_cast<double>(c.dense_layers);
  }
  return 0;
}

constexpr double kRefused = -1;

struct Default {
  const char* family;
  const char* key;
  Of what;
  double expected;
};

TEST(ConfigDefaults, AreThoseOfTheClasses) {
  const Default cases[] = {
      // The class has 2048, 32768 and the like: a context that nobody wrote down is refused.
      {"tiny-llama", "max_position_embeddings", Of::kContext, kRefused},
      {"tiny-qwen3", "max_position_embeddings", Of::kContext, kRefused},
      {"tiny-gptoss", "max_position_embeddings", Of::kContext, 131072},
      {"tiny-gemma3", "max_position_embeddings", Of::kContext, 131072},
      {"tiny-gemma4", "max_position_embeddings", Of::kContext, 131072},

      {"tiny-llama", "rms_norm_eps", Of::kEps, kRefused},
      {"tiny-glm4", "rms_norm_eps", Of::kEps, kRefused},  // 1.5625e-07 in the class
      {"tiny-gptoss", "rms_norm_eps", Of::kEps, 1e-5},
      {"tiny-gemma3", "rms_norm_eps", Of::kEps, 1e-6},
      {"tiny-gemma4", "rms_norm_eps", Of::kEps, 1e-6},

      {"tiny-qwen2", "num_key_value_heads", Of::kKvHeads, kRefused},
      {"tiny-qwen3moe", "num_key_value_heads", Of::kKvHeads, kRefused},
      {"tiny-glm4", "num_key_value_heads", Of::kKvHeads, kRefused},

      {"tiny-qwen3", "head_dim", Of::kHeadDim, 128},
      {"tiny-qwen35", "head_dim", Of::kHeadDim, 256},
      {"tiny-qwen3next", "head_dim", Of::kHeadDim, 256},
      {"tiny-glm4", "head_dim", Of::kHeadDim, 128},
      {"tiny-gptoss", "head_dim", Of::kHeadDim, 64},
      {"tiny-gemma3", "head_dim", Of::kHeadDim, 256},
      {"tiny-gemma4", "head_dim", Of::kHeadDim, 256},

      {"tiny-llama", "attention_bias", Of::kBias, 0},
      {"tiny-qwen2", "attention_bias", Of::kBias, 1},
      {"tiny-qwen3", "attention_bias", Of::kBias, 0},
      {"tiny-qwen3moe", "attention_bias", Of::kBias, 0},
      {"tiny-qwen35", "attention_bias", Of::kBias, 0},
      {"tiny-qwen3next", "attention_bias", Of::kBias, 0},
      {"tiny-glm4", "attention_bias", Of::kBias, 1},
      {"tiny-glm4moe", "attention_bias", Of::kBias, 0},
      {"tiny-gptoss", "attention_bias", Of::kBias, 1},
      {"tiny-gemma3", "attention_bias", Of::kBias, 0},
      {"tiny-gemma4", "attention_bias", Of::kBias, 0},

      {"tiny-llama", "tie_word_embeddings", Of::kTied, 0},
      {"tiny-qwen2", "tie_word_embeddings", Of::kTied, 0},
      {"tiny-qwen35", "tie_word_embeddings", Of::kTied, 0},
      {"tiny-glm4", "tie_word_embeddings", Of::kTied, 0},
      {"tiny-gptoss", "tie_word_embeddings", Of::kTied, 0},
      {"tiny-gemma3", "tie_word_embeddings", Of::kTied, 1},
      {"tiny-gemma4", "tie_word_embeddings", Of::kTied, 1},

      {"tiny-gptoss", "sliding_window", Of::kWindow, 128},
      {"tiny-gemma3", "sliding_window", Of::kWindow, 4096},
      {"tiny-gemma4", "sliding_window", Of::kWindow, 512},

      {"tiny-llama", "rope_theta", Of::kTheta, 1e4},
      {"tiny-mixtral", "rope_theta", Of::kTheta, 1e6},
      {"tiny-glm4moe", "rope_theta", Of::kTheta, 1e4},
      {"tiny-gptoss", "rope_theta", Of::kTheta, 1.5e5},
      {"tiny-gemma3", "rope_theta", Of::kTheta, 1e6},

      {"tiny-phi3", "partial_rotary_factor", Of::kRotated, 1},
      {"tiny-glm4", "partial_rotary_factor", Of::kRotated, 0.5},
      {"tiny-glm4moe", "partial_rotary_factor", Of::kRotated, 0.5},

      {"tiny-glm4moe", "routed_scaling_factor", Of::kScale, 1},
      {"tiny-glm4moe", "first_k_dense_replace", Of::kFirstDense, 1},
  };
  for (const Default& d : cases) {
    json config = hf_config(model(d.family));
    config.erase(d.key);
    if (d.what == Of::kRotated) config.erase("rope_scaling");  // lists of as many numbers as pairs rotate
    const Result<HfConfig> c = convert::read_hf_config(config);
    const std::string message = c.ok() ? "" : c.error().message;
    if (d.expected == kRefused)
      EXPECT_EQ(message, fmt::format("{}: missing", d.key)) << d.family;
    else if (c.ok())
      EXPECT_EQ(value_of(*c, d.what), d.expected) << d.family << " without " << d.key;
    else
      ADD_FAILURE() << d.family << " without " << d.key << ": " << message;
  }
}

TEST(ConfigDefaults, SizesAreNotGuessed) {
  for (const char* family : {"tiny-llama", "tiny-qwen35", "tiny-glm4", "tiny-gptoss", "tiny-gemma3", "tiny-gemma4"})
    for (const char* key : {"hidden_size", "num_hidden_layers", "intermediate_size"}) {
      json config = hf_config(model(family));
      config.erase(key);
      const Result<HfConfig> c = convert::read_hf_config(config);
      ASSERT_FALSE(c.ok()) << family << " without " << key;
      EXPECT_EQ(c.error().message, fmt::format("{}: missing", key)) << family;
    }
}

// The class scales where config.json says nothing of RoPE, or that there is no scaling.
TEST(ConfigDefaults, GptOssScalesItsRope) {
  json config = hf_config(model("tiny-gptoss"));
  for (const char* key : {"rope_scaling", "rope_parameters", "rope_theta"}) config.erase(key);
  for (const json& nothing : {json(nullptr), json::object()}) {
    config["rope_scaling"] = nothing;
    const HfConfig c = config_of(config);
    EXPECT_EQ(c.rope.kind, RopeScaling::Kind::kYarn);
    EXPECT_EQ(c.rope.factor, 32);
    EXPECT_EQ(c.rope.original_context, 4096);
    EXPECT_EQ(c.rope_theta, 1.5e5);
  }
  config["rope_theta"] = 1e4;
  EXPECT_EQ(config_of(config).rope_theta, 1e4);
  config["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_EQ(config_of(config).rope.kind, RopeScaling::Kind::kNone);
}

// Beside the parameters the key outranks the one inside, and the class always has one beside.
TEST(ConfigDefaults, Phi3WasFirstTrainedTo4096) {
  json config = hf_config(model("tiny-phi3"));
  ASSERT_TRUE(config.contains("rope_scaling")) << config.dump();
  config["original_max_position_embeddings"] = 512;
  EXPECT_EQ(config_of(config).rope.original_context, 512);
  config.erase("original_max_position_embeddings");
  EXPECT_EQ(config_of(config).rope.original_context, 4096);
  config["rope_scaling"]["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(config_of(config).rope.original_context, 4096);
}

}  // namespace
}  // namespace quire::test
