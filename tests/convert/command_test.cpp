// quire convert as a program: bad folders get one line and exit code 2, and no file; the rest of a broken run
// is nothing under the final name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "support/hf_folder.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code;  // -1: killed
  std::string out, err;
};

class ConvertCommand : public testing::Test {
 protected:
  ConvertCommand() : model_(tiny_models()[4]), folder_(model_) {}

  Outcome shell(const std::string& command) const {
    const std::string all = fmt::format("( {} ) </dev/null >{} 2>{}", command, out_.path("out"), out_.path("err"));
    const int status = std::system(all.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole_file(out_.path("out")),
            read_whole_file(out_.path("err"))};
  }
  std::string command(const std::string& more = "") const {
    return fmt::format(QUIRE_PROGRAM " convert {} {} {}", folder_.path(), out_.path("m.gguf"), more);
  }
  void expect_refused(const std::string& what, const std::string& reason, const std::string& more = "") const {
    SCOPED_TRACE(what);
    const Outcome o = shell(command(more));
    EXPECT_EQ(o.code, 2);
    EXPECT_EQ(o.out, "");
    EXPECT_TRUE(o.err.starts_with("quire: ")) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_THAT(o.err, HasSubstr(reason));
    expect_nothing_written();
  }
  void expect_nothing_written() const {
    for (const auto& entry : fs::directory_iterator(out_.path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with("m")) << entry.path();
  }
  // Refused with one key of a file changed (null: removed).
  void expect_config_refused(const std::string& key, const json& value, const std::string& reason) const {
    json config = hf_config(model_);
    if (value.is_null())
      config.erase(key);
    else
      config[key] = value;
    folder_.write_json("config.json", config);
    expect_refused(key, reason);
  }
  void expect_tokenizer_refused(const std::string& pointer, const json& value, const std::string& reason) const {
    json tokenizer = hf_tokenizer(model_);
    tokenizer[json::json_pointer(pointer)] = value;
    folder_.write_json("tokenizer.json", tokenizer);
    expect_refused(pointer, reason);
  }
  void write_weights(const std::function<void(std::vector<SafeTensor>&)>& change) const {
    std::vector<SafeTensor> tensors = safe_tensors(model_);
    change(tensors);
    folder_.write("model.safetensors", safetensors_file(tensors));
  }

  TinyModel model_;
  HfFolder folder_, out_;
};

TEST_F(ConvertCommand, RefusesFolders) {
  const Outcome absent = shell(QUIRE_PROGRAM " convert /none /tmp/none.gguf");
  EXPECT_EQ(absent.code, 2);
  EXPECT_EQ(absent.err, "quire: /none: no such folder\n");
  EXPECT_THAT(shell(QUIRE_PROGRAM " convert " + folder_.path("config.json") + " x.gguf").err,
              HasSubstr("is not a folder"));
  expect_refused("type", "--outtype q8_0: must be auto, bf16, f16 or f32", "--outtype q8_0");
  expect_refused("size", "'12X' is not a size", "--split-max-size 12X");
  expect_refused("no size", "'0G' is not a size", "--split-max-size 0G");
  folder_.remove("tokenizer.json");
  expect_refused("tokenizer", "has neither tokenizer.json nor tokenizer.model");
  folder_.write("tokenizer.model", "x");
  expect_refused("sentencepiece", "tokenizer.model: byte 1: the file ends within a number");
  folder_.remove("model.safetensors");
  expect_refused("weights", "has neither model.safetensors nor");
  folder_.write("config.json", "{");
  expect_refused("broken", "config.json: not valid JSON: syntax error at byte 2");
  folder_.write("config.json", "");
  expect_refused("empty", "config.json: not valid JSON");
  folder_.remove("config.json");
  expect_refused("config", "has no config.json");
}

TEST_F(ConvertCommand, RefusesConfigurations) {
  expect_config_refused("architectures", json{"GPT2LMHeadModel"},
                        "architecture 'GPT2LMHeadModel' is not supported (supported: LlamaForCausalLM, ");
  expect_config_refused("architectures", nullptr, "architectures: does not name one model class");
  expect_config_refused("hidden_size", nullptr, "hidden_size: missing");
  expect_config_refused("hidden_size", -5, "hidden_size: -5 is not between 1 and");
  expect_config_refused("hidden_size", "64", "hidden_size: is not a whole number");
  expect_config_refused("hidden_size", uint64_t{1} << 63, "is not between");
  expect_config_refused("hidden_size", 128, "does not fit config.json, which needs [333, 128]");
  expect_config_refused("num_key_value_heads", 3, "4 heads cannot share 3 KV heads");
  expect_config_refused("head_dim", 5, "head_dim: 5 is not even");
  expect_config_refused("rms_norm_eps", 0, "rms_norm_eps: 0 is not a positive number");
  expect_config_refused("hidden_act", "gelu", "hidden_act: 'gelu' is not supported");
  expect_config_refused("num_hidden_layers", 4, "tensor model.layers.3.input_layernorm.weight is missing");
  expect_config_refused("rope_scaling", {{"type", "longrope"}}, "rope_type: 'longrope' is not supported for qwen3");
  expect_config_refused("rope_scaling", {{"type", "llama3"}}, "rope_type: 'llama3' is not supported for qwen3");
  expect_config_refused("rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 8}}, "beta_fast 8");
  expect_config_refused("quantization_config", {{"quant_method", "bitsandbytes"}},
                        "quant_method: 'bitsandbytes' is not supported");
  expect_config_refused("quantization_config", {{"quant_method", "gptq"}, {"bits", 8}}, "'gptq' with bits 8");
  expect_config_refused("quantization_config", {{"quant_method", "awq"}, {"version", "marlin"}},
                        "'awq' in the format 'marlin'");
}

TEST_F(ConvertCommand, RefusesWeights) {
  write_weights([](auto& t) { t.erase(t.begin() + 3); });
  expect_refused("missing", "is missing; the model needs it");
  write_weights([](auto& t) { t[1].dtype = "I16"; });
  expect_refused("integers", "type I16 holds no weights that can be read here");
  write_weights([](auto& t) { t[1].dtype = "F8_E4M3", t[1].shape[1] *= 2; });
  expect_refused("no scales", "does not fit config.json");
  write_weights([](auto& t) {
    t.push_back(t[1]);
    t.back().name = "model.language_model." + t[1].name.substr(6);
  });
  expect_refused("twice", "would be the same one");
  write_weights([](auto& t) { t[1].dtype = "F32", t[1].shape.back() /= 2, t[1].shape[0] *= 1; });
  expect_refused("shape", "does not fit config.json");
}

TEST_F(ConvertCommand, RefusesTokenizers) {
  expect_tokenizer_refused("/model/type", "Unigram", "a model of type 'Unigram' is not supported (BPE is)");
  expect_tokenizer_refused("/model/byte_fallback", true, "normalizer: 'NFC' is not supported here");
  expect_tokenizer_refused("/pre_tokenizer", nullptr, "only byte-level tokenizers are supported");
  expect_tokenizer_refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "a+", "the pattern 'a+' is not one of");
  expect_tokenizer_refused("/pre_tokenizer/pretokenizers/0/type", "Metaspace", "step 'Metaspace' is not supported");
  expect_tokenizer_refused("/model/vocab/!", 333,
                           "token '!' has the id 333, but the vocabulary of config.json has 333");
  expect_tokenizer_refused("/model/vocab/!", 1, "id 1 stands for both");
  expect_tokenizer_refused("/model/vocab/!", "0", "token '!' has the id \"0\"");
  expect_tokenizer_refused("/model/merges/0", "ab", "tokenizer.json: ");
  expect_tokenizer_refused("/model/merges/0", 5, "merge 0 is not a pair of texts");
  expect_tokenizer_refused("/added_tokens/0/id", 0, "id 0 stands for both");
  expect_tokenizer_refused("/model/vocab", json::object(), "has no vocabulary");
}

TEST_F(ConvertCommand, SaysWhatIsLeftOut) {
  write_weights([](auto& t) {
    t.push_back(safe_tensor("model.visual.patch_embed.weight", "U8", {1}, std::vector<char>{'x'}));
    t.push_back(safe_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, std::vector<float>{1}));
  });
  const Outcome o = shell(command("--name 'a name'"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("note: 1 vision and audio tensors are left out"));
  EXPECT_THAT(o.out, HasSubstr("named a name"));
  const json summary = json::parse(shell(command("--json")).out);
  EXPECT_EQ(summary.at("notes").size(), 1u);
  EXPECT_EQ(summary.at("architecture"), "qwen3");
}

// What is in a folder and is not computed: one judgement of all commands.
TEST_F(ConvertCommand, RefusesWhatWouldNotBeComputed) {
  write_weights([](auto& t) {
    t.push_back(safe_tensor("model.layers.1.mlp.up_proj.pre_quant_scale", "F32", {1}, std::vector<float>{2}));
    for (int i = 0; i < 7; ++i) t.push_back(safe_tensor(fmt::format("more.{}", i), "U8", {1}, std::vector<char>{'x'}));
  });
  const std::string reason =
      "tensor 'model.layers.1.mlp.up_proj.pre_quant_scale' of the model folder would not be computed, and 7 more: "
      "activations are multiplied by it (AWQ of ModelOpt), which is not supported";
  expect_refused("convert", reason);
  for (const char* as : {"run -p hello -n 2 -m ", "serve --port 0 -m ", "inspect "}) {
    const Outcome o = shell(fmt::format(QUIRE_PROGRAM " {}{}", as, folder_.path()));
    EXPECT_EQ(o.code, 2) << as;
    EXPECT_THAT(o.err, HasSubstr(reason)) << as;
  }
}

// A file that may not grow is as a full disk.
TEST_F(ConvertCommand, NoSpaceGetsOneLineAndLeavesNothing) {
  const Outcome full = shell("ulimit -f 100; exec " + command());
  EXPECT_EQ(full.code, 2);
  EXPECT_TRUE(full.err.starts_with("quire: ")) << full.err;
  EXPECT_THAT(full.err, HasSubstr("cannot write"));
  EXPECT_EQ(std::count(full.err.begin(), full.err.end(), '\n'), 1) << full.err;
  expect_nothing_written();
}
TEST_F(ConvertCommand, UnwritableOutputGetsOneLine) {
  const Outcome o = shell(fmt::format(QUIRE_PROGRAM " convert {} /proc/none/m.gguf", folder_.path()));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("cannot create /proc/none/m.gguf"));
}

TEST_F(ConvertCommand, DemoModelGeneratesTheSame) {
  const std::string shared = QUIRE_SOURCE_DIR "/../shared/models/", reference = shared + "gguf/demo-moe-bf16.gguf";
  if (!fs::exists(shared + "hf/demo-moe") || !fs::exists(reference)) GTEST_SKIP() << shared << " is not present";
  ASSERT_EQ(shell(QUIRE_PROGRAM " convert " + shared + "hf/demo-moe " + out_.path("moe.gguf")).code, 0);
  const auto text = [&](const std::string& model) {
    return shell(QUIRE_PROGRAM " run -m " + model + " -p 'Once upon a time' -n 40").out;
  };
  const std::string want = text(reference);
  EXPECT_GT(want.size(), 80u);
  EXPECT_EQ(text(out_.path("moe.gguf")), want);
}

}  // namespace
}  // namespace quire::test
