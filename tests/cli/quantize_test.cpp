// quire quantize and quire synth, run as programs on small models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "gguf/reader.h"
#include "gguf/writer.h"
#include "quant/format.h"
#include "support/tiny_models.h"
#include "tokenizer/tokenizer.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

struct Outcome {
  int code;
  std::string output;  // both streams
};

Outcome quire(const std::string& arguments) {
  FILE* pipe = popen((QUIRE_PROGRAM " " + arguments + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

// The values of a tensor, with the factors of its ".scale".
std::vector<float> values_of(const gguf::File& f, const std::string& stem) {
  const gguf::TensorInfo* t = f.find_tensor(stem + ".weight");
  const gguf::TensorInfo* scale = f.find_tensor(stem + ".scale");
  std::vector<float> out(static_cast<size_t>(t->elems()));
  for (int64_t r = 0; r < t->rows(); ++r) {
    float* row = out.data() + r * t->dims[0];
    quant::decode_row(t->dtype, t->data + r * t->row_bytes(), t->dims[0], row);
    float factor = 1;
    if (scale != nullptr) std::memcpy(&factor, scale->data + r / t->dims[1] * 4, 4);
    for (int64_t i = 0; i < t->dims[0]; ++i) row[i] *= factor;
  }
  return out;
}

// Root mean square of the difference over that of the values.
double relative_error(const std::vector<float>& want, const std::vector<float>& got) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{want[i]} - got[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(error / size);
}

class Files : public testing::Test {
 protected:
  Files() {
    std::string pattern = (fs::temp_directory_path() / "quire-cli-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Files() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }
  fs::path folder_;
};

class Quantize : public Files {
 protected:
  Quantize() {
    for (const test::TinyModel& m : test::tiny_models()) {
      if (m.architecture != "qwen35moe") continue;
      EXPECT_TRUE(m.write_gguf(path("in.gguf")).ok());
    }
  }
  gguf::File open(const std::string& name) const { return gguf::File::open(path(name)).value(); }
};

TEST_F(Quantize, EncodesMatricesAndKeepsTheRest) {
  const Outcome r = quire("quantize " + path("in.gguf") + " " + path("out.gguf") + " --type q8_0");
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_THAT(r.output, HasSubstr("bf16 -> q8_0"));
  const gguf::File in = open("in.gguf"), out = open("out.gguf");
  ASSERT_EQ(in.tensors().size(), out.tensors().size());
  int encoded = 0;
  for (size_t i = 0; i < in.tensors().size(); ++i) {
    const gguf::TensorInfo &a = in.tensors()[i], &b = out.tensors()[i];
    SCOPED_TRACE(std::string(a.name));
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dims, b.dims);
    if (b.dtype == DType::kQ8_0) {
      ++encoded;
      const std::string stem(a.name.substr(0, a.name.size() - 7));
      EXPECT_LT(relative_error(values_of(in, stem), values_of(out, stem)), 0.01);
    } else {
      ASSERT_EQ(a.bytes, b.bytes);
      EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)), 0);
      EXPECT_TRUE(a.dtype == DType::kF32 || a.dims[0] % 32 != 0) << "matrices are re-encoded";
    }
  }
  EXPECT_GT(encoded, 20);
  EXPECT_EQ(out.get_u32("general.file_type").value(), 7u);
  EXPECT_EQ(in.get_strings("tokenizer.ggml.tokens").value().size(),
            out.get_strings("tokenizer.ggml.tokens").value().size());
}

TEST_F(Quantize, Nvfp4ScalesEachExpertAndGoesBack) {
  const std::string experts = "blk.0.ffn_up_exps", projection = "blk.0.attn_qkv", head = "token_embd";
  std::vector<float> values(64 * 4 * 3);  // expert e is 100^e as large as the first
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * std::pow(100.0f, static_cast<float>(i / 256));
  const std::span<const float> all(values);
  gguf::Writer w;
  w.add_string("general.architecture", "qwen35moe");
  const int64_t stacked[] = {64, 4, 3}, flat[] = {64, 4};
  ASSERT_TRUE(w.add_tensor(head + ".weight", DType::kF32, flat).ok());
  ASSERT_TRUE(w.add_tensor(projection + ".weight", DType::kF32, flat).ok());
  ASSERT_TRUE(w.add_tensor(experts + ".weight", DType::kF32, stacked).ok());
  ASSERT_TRUE(w.open(path("small.gguf")).ok());
  ASSERT_TRUE(w.write_tensor(std::as_bytes(all.first(256))).ok());
  ASSERT_TRUE(w.write_tensor(std::as_bytes(all.first(256))).ok());
  ASSERT_TRUE(w.write_tensor(std::as_bytes(all)).ok());
  ASSERT_TRUE(w.finish().ok());

  const std::string there = " --type nvfp4 --head-type q8_0";
  ASSERT_EQ(quire("quantize " + path("small.gguf") + " " + path("nvfp4.gguf") + there).code, 0);
  ASSERT_EQ(quire("quantize " + path("nvfp4.gguf") + " " + path("back.gguf") + " --type f32").code, 0);
  const gguf::File nvfp4 = open("nvfp4.gguf"), back = open("back.gguf");
  EXPECT_EQ(nvfp4.find_tensor(head + ".weight")->dtype, DType::kQ8_0);
  EXPECT_EQ(nvfp4.find_tensor(projection + ".weight")->dtype, DType::kF32);
  EXPECT_EQ(nvfp4.find_tensor(experts + ".weight")->dtype, DType::kNVFP4);
  ASSERT_NE(nvfp4.find_tensor(experts + ".scale"), nullptr);
  EXPECT_EQ(nvfp4.find_tensor(experts + ".scale")->elems(), 3);
  const std::vector<float> got = values_of(nvfp4, experts);
  for (int64_t e = 0; e < 3; ++e) {
    const auto part = [&](const std::vector<float>& v) {
      return std::vector<float>(v.begin() + e * 256, v.begin() + (e + 1) * 256);
    };
    EXPECT_LT(relative_error(part(values), part(got)), 0.12) << "expert " << e;
  }
  EXPECT_EQ(back.find_tensor(experts + ".scale"), nullptr) << "multiplied in";
  EXPECT_EQ(got, values_of(back, experts));
}

TEST_F(Quantize, RefusesWithOneLine) {
  const Outcome type = quire("quantize " + path("in.gguf") + " " + path("out.gguf") + " --type q2_k");
  EXPECT_EQ(type.code, 2);
  EXPECT_THAT(type.output, HasSubstr("cannot write type 'q2_k': choose one of f32"));
  const Outcome absent = quire("quantize " + path("none.gguf") + " " + path("out.gguf") + " --type q8_0");
  EXPECT_EQ(absent.code, 2);
  EXPECT_FALSE(fs::exists(path("out.gguf")));
}

class Synth : public Files, public testing::WithParamInterface<const char*> {};

TEST_P(Synth, WritesSaneBlocksOfEveryType) {
  const std::string type = GetParam(), preset = type == "nvfp4" ? "4b-hybrid" : "0.6b";
  const Outcome r =
      quire("synth " + path("m.gguf") + " --layers 1 --vocab 512 --preset " + preset + " --type " + type);
  ASSERT_EQ(r.code, 0) << r.output;
  const gguf::File f = gguf::File::open(path("m.gguf")).value();
  const Result<Tokenizer> tokenizer = Tokenizer::load(f);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->size(), 512);
  EXPECT_EQ(dtype_name(f.find_tensor("blk.0.ffn_up.weight")->dtype), type);
  const std::vector<float> x = values_of(f, "blk.0.ffn_up");
  double mean = 0, squares = 0;
  for (const float v : x) mean += v, squares += double{v} * v;
  mean /= static_cast<double>(x.size());
  const auto n = static_cast<double>(f.find_tensor("blk.0.ffn_up.weight")->dims[0]);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(x.size()) * n), 1, 0.1) << "variance 1 / row length";
  EXPECT_LT(std::fabs(mean) * std::sqrt(n), 0.1);
}
INSTANTIATE_TEST_SUITE_P(Types, Synth,
                         testing::Values("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k",
                                         "q5_k", "q6_k", "mxfp4", "nvfp4"));

}  // namespace
}  // namespace quire
