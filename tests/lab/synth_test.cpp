// Models of random weights: the same in a file and in memory, however its pages come about.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lab/synth_image.h"
#include "lab/synth_values.h"
#include "quant/format.h"
#include "support/program.h"

namespace quire::test {
namespace {

using cli::SynthOptions;
using cli::SynthPages;
using nlohmann::json;
using testing::HasSubstr;

class Synth : public ProgramTest {};

const SynthOptions kExperts{.preset = "35b-a3b", .ffn_type = "nvfp4", .head_type = "q8_0", .layers = 1, .vocab = 512};

TEST_F(Synth, MemoryHoldsWhatTheFileHolds) {
  const Outcome o =
      quire("synth " + path("m.gguf") + " --preset 35b-a3b --ffn-type nvfp4 --head-type q8_0 --layers 1 --vocab 512");
  ASSERT_EQ(o.code, 0) << o.err;
  const auto file = load_model(path("m.gguf"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  for (const SynthPages pages : {SynthPages::kOwn, SynthPages::kShared}) {
    const auto model = load_synth_model(kExperts, pages);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ((*model)->identity(), (*file)->identity());
    const auto got = (*model)->file.tensors(), want = (*file)->file.tensors();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].name, want[i].name);
      ASSERT_EQ(got[i].bytes, want[i].bytes);
      EXPECT_EQ(std::memcmp(got[i].data, want[i].data, static_cast<size_t>(want[i].bytes)), 0) << got[i].name;
    }
  }
}

TEST_F(Synth, ATowerIsFoundBesideItsModel) {
  for (const char* const preset : {"4b-hybrid", "8b-vl", "gemma3-4b", "gemma4-e4b"}) {
    const std::string file = path(fmt::format("{}.gguf", preset));
    const Outcome o =
        quire(fmt::format("synth {} --preset {} --type q8_0 --layers 1 --vocab 512 --images", file, preset));
    ASSERT_EQ(o.code, 0) << o.err;
    const auto model = load_model(file);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_NE((*model)->vision, nullptr) << preset;
  }
}

TEST(SynthValues, EveryShapeIsAWholeModel) {
  for (const cli::SynthShape& shape : cli::synth_shapes()) {
    const auto model =
        load_synth_model({.preset = std::string(shape.name), .layers = 6, .vocab = 512}, SynthPages::kShared);
    ASSERT_TRUE(model.ok()) << shape.name << ": " << model.error().message;
    EXPECT_TRUE((*model)->model->unread().empty()) << shape.name;
    const ModelConfig& c = (*model)->model->config();
    EXPECT_EQ(c.context_length, shape.context) << shape.name;
    EXPECT_EQ(c.attention.window, shape.window) << shape.name;
    EXPECT_EQ(c.mixers[0] == Mixer::kWindowAttention, shape.window > 0) << shape.name;
    EXPECT_NE(c.mixers[5], Mixer::kWindowAttention) << shape.name << ": every second or sixth layer attends to all";
  }
}

TEST(SynthValues, ABlockForMultiTokenPredictionIsWhole) {
  for (const char* preset : {"4b-hybrid", "35b-a3b"}) {
    const auto model =
        load_synth_model({.preset = preset, .layers = 4, .vocab = 512, .mtp = true}, SynthPages::kShared);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const auto block = (*model)->model->mtp();
    EXPECT_TRUE(block.ok()) << block.error().message;
    EXPECT_TRUE((*model)->model->unread().empty());
  }
  const auto none = load_synth_model({.preset = "0.6b", .layers = 1, .mtp = true}, SynthPages::kShared);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message, HasSubstr("--mtp"));
}

// So that they can be mapped on kernels with pages of 64 KiB, too.
TEST(SynthValues, TensorsBeginOnPagesOfEverySize) {
  cli::SynthValueSource source(1);
  for (const DType type : {DType::kBF16, DType::kF32, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                           DType::kQ2_K, DType::kQ3_K, DType::kMXFP4, DType::kNVFP4, DType::kIQ4_XS}) {
    for (int i = 0; i < 3; ++i) {
      const cli::SynthPayload p = source.matrix(type, 1024, 1 << 20);
      EXPECT_EQ(p.begin % cli::kLargestPage, 0u) << dtype_name(type);
      EXPECT_EQ(p.pattern.size() % cli::kLargestPage, 0u) << dtype_name(type);
      EXPECT_LT(p.begin, p.pattern.size());
    }
  }
}

TEST(SynthValues, SpreadIsThatOfTheRowLength) {
  for (const char* type : {"bf16", "f16", "q8_0", "q4_k", "q6_k", "mxfp4"}) {
    const auto model = load_synth_model({.type = type, .layers = 1, .vocab = 512}, SynthPages::kShared);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const gguf::TensorInfo& t = **(*model)->file.get_tensor("blk.0.ffn_down.weight");
    std::vector<float> values(static_cast<size_t>(t.dims[0] * 64));
    for (int64_t r = 0; r < 64; ++r)
      quant::decode_row(t.dtype, t.data + r * t.row_bytes(), t.dims[0], values.data() + r * t.dims[0]);
    double sum = 0, squares = 0;
    for (const float x : values) sum += x, squares += double{x} * x;
    const auto n = static_cast<double>(values.size()), deviation = 1 / std::sqrt(static_cast<double>(t.dims[0]));
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 0.1 * deviation) << type;
    EXPECT_NEAR(sum / n, 0, 0.05 * deviation) << type;
  }
}

TEST_F(Synth, BenchmarksTakeModelsWithoutAFile) {
  const std::string shape = " --synth 0.6b --type q8_0 --layers 1 --vocab 512";
  const Outcome batch = quire("bench-batch" + shape + " -npp 8 -ntg 2 -npl 2 -r 1 --json");
  ASSERT_EQ(batch.code, 0) << batch.err;
  const json j = json::parse(batch.out);
  EXPECT_EQ(j["model"], "synthetic 0.6b q8_0, 1 layers, vocabulary of 512");
  EXPECT_GT(j["memory"]["mapped"].get<int64_t>(), 16 << 20);
  const Outcome bench = quire("bench" + shape + " -p 8 -n 2 -r 1");
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, HasSubstr("synthetic 0.6b q8_0"));
}

TEST_F(Synth, Refuses) {
  expect_refused("bench-batch --synth 70b", "unknown preset '70b': choose one of 0.6b");
  expect_refused("bench-batch --synth 0.6b --type q3", "unknown type 'q3'");
  expect_refused("bench-batch", "give a model: either a file (FILE or -m FILE) or random weights (--synth)");
  expect_refused("bench-batch -m a.gguf --synth 0.6b", "give a model: either");
  expect_refused("bench -m a.gguf --layers 2", "--layers requires --synth");
}

}  // namespace
}  // namespace quire::test
