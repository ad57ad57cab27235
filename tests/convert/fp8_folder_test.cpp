// FP8 model folders opened as folders: codes and scales stay what they are, and mean what the layouts' definitions say,
// to the last bit of a float32 product.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/open.h"
#include "convert/random_matrix.h"
#include "convert/support.h"
#include "engine/activations.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

// Wide enough for blocks of 128 columns, with what puts rows, columns and experts in order.
TinyModel wide(const std::string& name) {
  TinyModel m = model(name);
  m.hidden = 256;
  m.ffn = m.ffn > 0 ? 384 : 0;
  if (m.expert_ffn > 0) m.expert_ffn = 128;
  if (m.shared_ffn > 0) m.shared_ffn = 128;
  if (m.hybrid()) {
    m.k_heads = 2;
    m.v_heads = 4;
    m.state = 128;
  }
  return m;
}

struct Case {
  std::string model;
  Layout layout;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ' ' << kLayoutNames[static_cast<int>(c.layout)];
}
class Fp8Folder : public testing::TestWithParam<Case> {};
std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* name :
       {"tiny-llama", "tiny-mixtral", "tiny-qwen3", "tiny-qwen3moe", "tiny-qwen35", "tiny-qwen35moe"})
    for (const Layout layout : {Layout::kFp8Block, Layout::kFp8Row, Layout::kFp8Tensor}) out.push_back({name, layout});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, Fp8Folder, testing::ValuesIn(cases()), [](const auto& c) {
  return c.param.model.substr(std::strlen("tiny-")) + kLayoutNames[static_cast<int>(c.param.layout)];
});

gguf::File open(const HfFolder& folder, bool keep_fp8 = true) {
  Result<gguf::File> f = convert::open_model(folder.path(), {.keep_fp8 = keep_fp8, .threads = 2});
  QUIRE_CHECK(f.ok(), "{}", f.error().message);
  return std::move(f).value();
}

TEST_P(Fp8Folder, KeepsCodesAndScales) {
  const TinyModel m = wide(GetParam().model);
  const QuantisedPair pair = quantise(m, GetParam().layout, 21, 128, true);
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(pair.plain));
  const gguf::File want = convert_folder(folder, "plain.gguf");
  folder.write("model.safetensors", safetensors_file(pair.quantised));
  const gguf::File got = open(folder), decoded = open(folder, false);
  int64_t kept = 0;
  for (const gguf::TensorInfo& a : want.tensors()) {
    SCOPED_TRACE(std::string(a.name));
    const gguf::TensorInfo *b = got.find_tensor(a.name), *c = decoded.find_tensor(a.name);
    ASSERT_TRUE(b != nullptr && c != nullptr);
    EXPECT_EQ(a.dims, b->dims);
    const std::vector<float> values = values_of(got, *b);
    EXPECT_TRUE(values_of(want, a) == values);
    EXPECT_NE(c->dtype, DType::kFP8);
    if (b->dtype == DType::kFP8) ++kept;
  }
  EXPECT_GT(kept, 6);
}

// With scales that bf16 holds, all weights are the same numbers as in the converted file, and kernels for bf16 and FP8
// add up products in the same order.
TEST_P(Fp8Folder, SaysWhatItsConversionSays) {
  const TinyModel m = wide(GetParam().model);
  const QuantisedPair pair = quantise(m, GetParam().layout, 22, 128);
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(pair.quantised));
  const gguf::File file = convert_folder(folder, "m.gguf");
  const auto logprobs = [](const std::string& path) {
    EngineOptions options;
    options.context = 128;
    options.max_sequences = 1;
    std::unique_ptr<Engine> engine = std::move(Engine::create(load_or_die(path), options)).value();
    Request request;
    std::vector<TokenId> prompt;
    for (TokenId t = 3; t < 40; ++t) prompt.push_back(t);
    request.prompt = prompt;
    request.max_tokens = 12;
    request.ignore_eos = true;
    request.sampling.logprobs = 5;
    std::vector<std::pair<TokenId, float>> out;
    EXPECT_TRUE(engine
                    ->submit(std::move(request),
                             [&](const TokenEvent& e) {
                               if (const auto* const t = e.as<TokenEvent::Token>())
                                 for (const auto& top : t->top) out.emplace_back(top.token, top.logprob);
                             })
                    .ok());
    while (engine->busy()) engine->step();
    engine.reset();  // which waits for all events
    return out;
  };
  const auto want = logprobs(folder.path("m.gguf")), got = logprobs(folder.path());
  EXPECT_GT(want.size(), 20U);
  EXPECT_EQ(want, got);
}

// Experts of one tensor: the gate and `up` halves of each have their own rows of its grid of scales.
TEST(Fp8Folder, KeepsPackedExperts) {
  const TinyModel m = wide("tiny-qwen35moe");
  std::mt19937 random(24);
  std::vector<SafeTensor> tensors;
  for (SafeTensor& t : safe_tensors(m)) {
    if (t.shape.size() != 3 || t.name.find(".experts.") == std::string::npos) {
      tensors.push_back(std::move(t));
      continue;
    }
    std::string codes(t.bytes.size() / 2, 0);
    for (char& c : codes)
      if (c = static_cast<char>(random()); (c & 0x7f) == 0x7f) c = 0;
    const std::vector<int64_t> grid = {t.shape[0], t.shape[1] / 128, t.shape[2] / 128};
    std::vector<float> scales(static_cast<size_t>(grid[0] * grid[1] * grid[2]));
    for (float& x : scales) x = std::uniform_real_distribution<float>(0.001F, 0.002F)(random);
    tensors.push_back({t.name, "F8_E4M3", t.shape, std::move(codes)});
    tensors.push_back(safe_tensor(t.name + "_scale_inv", "F32", grid, scales));
  }
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(tensors));
  ASSERT_TRUE(convert::convert({.folder = folder.path(), .output = folder.path("m.gguf"), .type = DType::kF32}).ok());
  const gguf::File want = std::move(gguf::File::open(folder.path("m.gguf"))).value(), got = open(folder);
  int kept = 0;
  for (const gguf::TensorInfo& a : want.tensors()) {
    const gguf::TensorInfo* const b = got.find_tensor(a.name);
    ASSERT_NE(b, nullptr);
    if (b->dtype != DType::kFP8) continue;
    ++kept;
    EXPECT_TRUE(values_of(want, a) == values_of(got, *b)) << a.name;
  }
  EXPECT_EQ(kept, 3 * m.layers);
}

TEST(Fp8Folder, RefusesCodesAndScalesThatAreNoNumbers) {
  const TinyModel m = wide("tiny-qwen3");
  for (const bool scale : {false, true}) {
    QuantisedPair pair = quantise(m, Layout::kFp8Block, 23, 128);
    for (SafeTensor& t : pair.quantised)
      if (t.name == (scale ? "model.layers.1.mlp.up_proj.weight_scale_inv" : "model.layers.1.mlp.up_proj.weight"))
        t.bytes[t.bytes.size() - 1] = t.bytes[t.bytes.size() - 2] = '\xff';
    const HfFolder folder(m);
    folder.write("model.safetensors", safetensors_file(pair.quantised));
    const Result<gguf::File> f = convert::open_model(folder.path());
    ASSERT_FALSE(f.ok());
    EXPECT_THAT(f.error().message, HasSubstr("1 tensor holds NaN or infinity: 'model.layers.1.mlp.up_proj.weight'"));
  }
}

// ---- Activations

// A folder of FP8 weights whose config.json says this of them.
HfFolder& with_quantisation(HfFolder& folder, const TinyModel& m, const nlohmann::json& quantisation) {
  nlohmann::json config = hf_config(m);
  config["quantization_config"] = quantisation;
  folder.write_json("config.json", config);
  folder.write("model.safetensors", safetensors_file(quantise(m, Layout::kFp8Block, 25, 128).quantised));
  return folder;
}
const nlohmann::json kDynamic = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};

TEST(Fp8Activations, TheFolderSaysWhatItsWeightsWereMadeFor) {
  const TinyModel m = wide("tiny-qwen3");
  HfFolder folder(m);
  const auto scheme = [&](const nlohmann::json& quantisation) -> std::string {
    const gguf::File file = open(with_quantisation(folder, m, quantisation));
    const Result<std::string_view> said = file.get_string("quire.activation_scheme");
    return said.ok() ? std::string(*said) : "none";
  };
  EXPECT_EQ(scheme(kDynamic), "dynamic");
  EXPECT_EQ(scheme({{"quant_method", "fp8"}, {"activation_scheme", "static"}}), "static");
  EXPECT_EQ(scheme({{"quant_method", "fp8"}, {"activation_scheme", 7}}), "none");
  EXPECT_EQ(scheme({{"quant_method", "fp8"}, {"activation_scheme", "of tomorrow"}}), "none");
  EXPECT_EQ(scheme({{"quant_method", "fp8"}}), "none");
  EXPECT_EQ(scheme({{"quant_method", "fbgemm_fp8"}}), "dynamic");
  const auto groups = [&](std::initializer_list<nlohmann::json> activations) {
    nlohmann::json all = nlohmann::json::object();
    for (const nlohmann::json& a : activations)
      all["group_" + std::to_string(all.size())] = {{"input_activations", a}, {"targets", {"Linear"}}};
    return scheme({{"quant_method", "compressed-tensors"}, {"config_groups", all}});
  };
  const auto eight = [](const nlohmann::json& dynamic) -> nlohmann::json {
    return {{"num_bits", 8}, {"type", "float"}, {"dynamic", dynamic}};
  };
  EXPECT_EQ(groups({}), "none");
  EXPECT_EQ(groups({nullptr}), "none");
  EXPECT_EQ(groups({"float"}), "none");
  EXPECT_EQ(groups({eight(true)}), "dynamic");
  EXPECT_EQ(groups({eight(false)}), "static");
  EXPECT_EQ(groups({eight(false), nullptr, eight(true)}), "dynamic");
  EXPECT_EQ(groups({{{"num_bits", 4}, {"type", "float"}, {"dynamic", "local"}}}), "none");
  EXPECT_EQ(groups({{{"num_bits", 8}, {"type", "int"}, {"dynamic", true}}}), "none");
  EXPECT_EQ(scheme({{"quant_method", "compressed-tensors"}, {"config_groups", 3}}), "none");
}

TEST(Fp8Activations, AreChosenWhereTheModelAndTheMachineAreMadeForThem) {
  const TinyModel m = wide("tiny-qwen3");
  HfFolder folder(m);
  const gguf::File made_for = open(with_quantisation(folder, m, kDynamic)),
                   fp8 = open(with_quantisation(folder, m, {{"quant_method", "fp8"}})), bf16 = open(HfFolder(m));
  Machine hopper{.device = Device::kCuda}, other{.device = Device::kCuda};
  hopper.gpu.wgmma = true;
  const auto chosen = [](const gguf::File& file, PromptActivations asked, const Machine& machine) -> std::string {
    const Result<PromptActivations> a = choose_activations(file, asked, machine);
    return !a.ok()                          ? a.error().message
           : *a == PromptActivations::kFp8  ? "fp8"
           : *a == PromptActivations::kBf16 ? "bf16"
                                            : "auto";
  };
  for (const gguf::File* file : {&made_for, &fp8, &bf16})
    for (const Machine& machine :
         {hopper, other, Machine{.device = Device::kCpu}, Machine{.device = Device::kReference}}) {
      const bool best = file == &made_for && machine.gpu.wgmma;
      EXPECT_EQ(chosen(*file, PromptActivations::kAuto, machine), best ? "fp8" : "bf16");
      EXPECT_EQ(chosen(*file, PromptActivations::kBf16, machine), "bf16");
    }
  EXPECT_EQ(chosen(fp8, PromptActivations::kFp8, hopper), "fp8");
  EXPECT_EQ(chosen(fp8, PromptActivations::kFp8, {.device = Device::kReference}), "fp8");
  EXPECT_THAT(chosen(bf16, PromptActivations::kFp8, hopper),
              HasSubstr("--activations fp8: this model has no FP8 weights"));
  EXPECT_THAT(chosen(fp8, PromptActivations::kFp8, other), HasSubstr("compute capability 9.0"));
  EXPECT_THAT(chosen(made_for, PromptActivations::kFp8, {.device = Device::kCpu}),
              HasSubstr("a CPU computes prompts with"));
}

// Prompts with FP8 activations, whatever else the engine does: in chunks of other sizes, beside others, found in the
// cache of prefixes, and making room for others on the way.
TEST(Fp8Activations, ATextIsTheSameWhoeverElseIsServed) {
  for (const char* name : {"tiny-qwen35", "tiny-qwen3moe"}) {
    SCOPED_TRACE(name);
    const TinyModel m = wide(name);
    HfFolder folder(m);
    const ModelPtr model = load_or_die(with_quantisation(folder, m, kDynamic).path());
    const auto with = [&](EngineOptions o) {
      o.device = Device::kReference;
      if (o.activations == PromptActivations::kAuto) o.activations = PromptActivations::kFp8;
      o.context = 256;
      return make_engine(model, o);
    };
    // The first three grow while the long prompt is computed, and take blocks that it has filled already.
    constexpr int64_t kLengths[] = {14, 1, 15, 150, 70}, kGenerated[] = {50, 50, 50, 30, 12};
    const auto request = [&](size_t i) {
      Request r = request_of(tokens(kLengths[i], static_cast<int32_t>(i)), kGenerated[i]);
      r.sampling.logprobs = 3;
      return r;
    };
    const auto said = [](const Heard& h) { return std::pair(h.tokens, h.tops); };
    std::vector<Heard> alone;
    for (size_t i = 0; i < 5; ++i)
      alone.push_back(hear_one(*with({.threads = 2, .max_sequences = 1, .max_batch_tokens = 512}), request(i)));
    const auto bf16 = with({.max_sequences = 5, .activations = PromptActivations::kBf16});
    EXPECT_NE(said(hear_one(*bf16, request(3))), said(alone[3])) << "the option does nothing";
    const auto crowded = with({.threads = 2,
                               .max_sequences = 5,
                               .max_batch_tokens = 128,
                               .kv_tokens = 256,
                               .swap_bytes = int64_t{64} << 20,
                               .prefix_cache = true});
    EXPECT_EQ(crowded->fingerprint(), bf16->fingerprint() + "/activations-fp8");
    for (int round = 0; round < 2; ++round) {  // the second one finds prompts in the cache
      std::vector<Arrival> script;
      for (size_t i = 0; i < 5; ++i) script.push_back({request(i), i < 3 ? 0 : static_cast<int64_t>(2 * i)});
      const std::vector<Heard> together = play(*crowded, script);
      for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(said(together[i]), said(alone[i])) << i;
    }
    EXPECT_GT(crowded->stats().preemptions, 0) << "nobody made room: the test has lost its point";
    EXPECT_GT(crowded->stats().prefix_hits, 0);
  }
}

}  // namespace
}  // namespace quire::test
