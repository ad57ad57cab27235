// FP8 model folders opened as folders: codes and scales stay what they are, and mean what the layouts' definitions say,
// to the last bit of a float32 product.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/open.h"
#include "convert/random_matrix.h"
#include "convert/support.h"
#include "convert/wide_model.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace quire::test
