// What activations prompts are computed with: what a folder says that its weights were made for, what is chosen, and
// that texts depend on nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/random_matrix.h"
#include "convert/wide_model.h"
#include "engine/activations.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

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

// A folder of such weights, whose config.json says nothing.
HfFolder& with_weights(HfFolder& folder, const TinyModel& m, Layout layout) {
  folder.write("model.safetensors", safetensors_file(quantise(m, layout, 25, 64).quantised));
  return folder;
}

std::string chosen(const gguf::File& file, PromptActivations asked, const Machine& machine) {
  const Result<PromptActivations> a = choose_activations(file, asked, machine);
  return a.ok() ? std::string(activations_name(*a)) : a.error().message;
}

TEST(Activations, AreChosenWhereTheModelAndTheMachineAreMadeForThem) {
  const TinyModel m = wide("tiny-qwen3");
  HfFolder fp8_folder(m), fp4_folder(m), mxfp4_folder(m);
  const gguf::File bf16 = open(HfFolder(m)), made_for_fp8 = open(with_quantisation(fp8_folder, m, kDynamic)),
                   fp8 = open(with_quantisation(fp8_folder, m, {{"quant_method", "fp8"}})),
                   made_for_fp4 = open(with_weights(fp4_folder, m, Layout::kModelOpt)),
                   mxfp4 = open(with_weights(mxfp4_folder, m, Layout::kMxfp4));
  Machine hopper{.device = Device::kCuda}, blackwell{.device = Device::kCuda, .fp4 = true};
  hopper.gpu.wgmma = true;
  const Machine ampere{.device = Device::kCuda}, cpu{.device = Device::kCpu}, reference{.device = Device::kReference};
  for (const gguf::File* file : {&bf16, &made_for_fp8, &fp8, &made_for_fp4, &mxfp4})
    for (const Machine& machine : {hopper, blackwell, ampere, cpu, reference}) {
      const std::string best = file == &made_for_fp8 && machine.gpu.wgmma ? "fp8"
                               : file == &made_for_fp4 && machine.fp4     ? "fp4"
                                                                          : "bf16";
      EXPECT_EQ(chosen(*file, PromptActivations::kAuto, machine), best);
      EXPECT_EQ(chosen(*file, PromptActivations::kBf16, machine), "bf16");
    }
  constexpr PromptActivations kFp8 = PromptActivations::kFp8, kFp4 = PromptActivations::kFp4;
  EXPECT_EQ(chosen(fp8, kFp8, hopper), "fp8");
  EXPECT_EQ(chosen(fp8, kFp8, reference), "fp8");
  EXPECT_THAT(chosen(bf16, kFp8, hopper), HasSubstr("--activations fp8: this model has no FP8 weights"));
  EXPECT_THAT(chosen(fp8, kFp8, ampere), HasSubstr("compute capability 9.0"));
  EXPECT_THAT(chosen(made_for_fp8, kFp8, cpu), HasSubstr("a CPU computes prompts with"));
  for (const gguf::File* file : {&made_for_fp4, &mxfp4}) {
    EXPECT_EQ(chosen(*file, kFp4, blackwell), "fp4");
    EXPECT_EQ(chosen(*file, kFp4, reference), "fp4");
    EXPECT_THAT(chosen(*file, kFp4, hopper), HasSubstr("compute capability 12.x"));
    EXPECT_THAT(chosen(*file, kFp4, cpu), HasSubstr("a CPU computes prompts with"));
  }
  EXPECT_THAT(chosen(fp8, kFp4, blackwell), HasSubstr("--activations fp4: this model has no NVFP4 or MXFP4 weights"));
  Machine without_code = ampere;
  without_code.gpu.major = 12;
  EXPECT_THAT(chosen(mxfp4, kFp4, without_code), HasSubstr("QUIRE_CUDA_ARCHITECTURES"));
}

// Prompts with such activations, whatever else the engine does: in chunks of other sizes, beside others, found in the
// cache of prefixes, and making room for others on the way.
void expect_same_texts(const ModelPtr& model, PromptActivations activations) {
  const auto with = [&](EngineOptions o) {
    o.device = Device::kReference;
    if (o.activations == PromptActivations::kAuto) o.activations = activations;
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
  EXPECT_EQ(crowded->fingerprint(), bf16->fingerprint() + "/activations-" + std::string(activations_name(activations)));
  for (int round = 0; round < 2; ++round) {  // the second one finds prompts in the cache
    std::vector<Arrival> script;
    for (size_t i = 0; i < 5; ++i) script.push_back({request(i), i < 3 ? 0 : static_cast<int64_t>(2 * i)});
    const std::vector<Heard> together = play(*crowded, script);
    for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(said(together[i]), said(alone[i])) << i;
  }
  EXPECT_GT(crowded->stats().preemptions, 0) << "nobody made room: the test has lost its point";
  EXPECT_GT(crowded->stats().prefix_hits, 0);
}

TEST(Activations, ATextOfFp8IsTheSameWhoeverElseIsServed) {
  for (const char* name : {"tiny-qwen35", "tiny-qwen3moe"}) {
    SCOPED_TRACE(name);
    const TinyModel m = wide(name);
    HfFolder folder(m);
    expect_same_texts(load_or_die(with_quantisation(folder, m, kDynamic).path()), PromptActivations::kFp8);
  }
}

TEST(Activations, ATextOfFp4IsTheSameWhoeverElseIsServed) {
  const std::pair<const char*, Layout> cases[] = {{"tiny-qwen35", Layout::kModelOpt},
                                                  {"tiny-qwen3moe", Layout::kMxfp4}};
  for (const auto& [name, layout] : cases) {
    SCOPED_TRACE(name);
    const TinyModel m = wide(name);
    HfFolder folder(m);
    expect_same_texts(load_or_die(with_weights(folder, m, layout).path()), PromptActivations::kFp4);
  }
}

}  // namespace
}  // namespace quire::test
