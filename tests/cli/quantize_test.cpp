// quire quantize and quire synth, run as programs on small models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "gguf/reader.h"
#include "gguf/writer.h"
#include "quant/format.h"
#include "quant/importance.h"
#include "support/gguf_edit.h"
#include "support/golden.h"
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
  // A few tensors of a hybrid with experts, rows of `cols`.
  void write_small(const std::string& name, int64_t cols, int64_t rows = 8) const {
    gguf::Writer w;
    w.add_string("general.architecture", "qwen35moe");
    const int64_t flat[] = {cols, rows}, stacked[] = {cols, rows, 3}, router[] = {cols, 3}, norm[] = {cols};
    const std::vector<std::pair<std::string, std::span<const int64_t>>> tensors = {
        {"token_embd.weight", flat},          {"blk.0.attn_norm.weight", norm}, {"blk.0.attn_qkv.weight", flat},
        {"blk.0.attn_gate.weight", flat},     {"blk.0.ssm_out.weight", flat},   {"blk.0.ffn_gate_inp.weight", router},
        {"blk.0.ffn_up_exps.weight", stacked}};
    for (const auto& [tensor, dims] : tensors) ASSERT_TRUE(w.add_tensor(tensor, DType::kF32, dims).ok());
    ASSERT_TRUE(w.open(path(name)).ok());
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 0.02f);
    for (const auto& [tensor, dims] : tensors) {
      int64_t elems = 1;
      for (const int64_t d : dims) elems *= d;
      std::vector<float> values(static_cast<size_t>(elems));
      for (float& x : values) x = normal(random);
      ASSERT_TRUE(w.write_tensor(std::as_bytes(std::span(values))).ok());
    }
    ASSERT_TRUE(w.finish().ok());
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
  const std::string in = path("in.gguf"), out = path("out.gguf"), q8 = " --type q8_0";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {in + " " + out + " --type q2_k", "cannot write type 'q2_k': choose one of f32"},
      {path("none.gguf") + " " + out + q8, "none.gguf: No such file or directory"},
      {folder_.string() + " " + out + q8, "has no config.json"},
      {in + " " + folder_.string() + q8, "Is a directory"},
      {in + " " + path("no/such/folder/out.gguf") + q8, "No such file or directory"},
      {in + " " + in + q8, "is the input itself"},
      {in + " " + path("./in.gguf") + q8, "is the input itself"},
      {in + " " + out + q8 + " --threads -1", "--threads -1: must be between 0 and 1024"},
      {in + " " + out + q8 + " --head-type nvfp4", "--head-type nvfp4 is not supported"},
      {in + " " + out + q8 + " --tensor ffn_up", "--tensor ffn_up: give REGEX=TYPE"},
      {in + " " + out + q8 + " --tensor =q8_0", "--tensor =q8_0: give REGEX=TYPE"},
      {in + " " + out + q8 + " --tensor ffn_up=q9", "cannot write type 'q9'"},
      {in + " " + out + q8 + " --tensor '(ffn=q8_0'", "pattern '(ffn' is no regular expression: missing closing"},
      {in + " " + out + q8 + " --tensor nothing_like_it=q4_0", "matches no matrix"},
      {in + " " + out + q8 + " --tensor attn_norm=q4_0", "matches no matrix"},
      {in + " " + out + q8 + " --tensor ssm_conv1d=q4_0", "no multiple of q4_0's block of 32"},
      {in + " " + out + q8 + " --tensor '((([a-z_.0-9]+)+)+)+[!#]=q4_0'", "limit exceeded"},
      {in + " " + out + q8 + " --imatrix " + path("none.imatrix"), "none.imatrix: No such file or directory"},
      {in + " " + out + q8 + " --imatrix " + in, "in.gguf"},
  };
  for (const auto& [arguments, reason] : cases) {
    SCOPED_TRACE(arguments);
    const Outcome o = quire("quantize " + arguments);
    EXPECT_EQ(o.code, 2);
    EXPECT_THAT(o.output, testing::StartsWith("quire: "));
    EXPECT_THAT(o.output, HasSubstr(reason));
    EXPECT_EQ(std::count(o.output.begin(), o.output.end(), '\n'), 1) << o.output;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "only the input is left";
  }
}

// The example of the documents, on a hybrid: its convolution has rows of 4.
TEST_F(Quantize, APatternForAWholeBlockLeavesWhatCannotHaveTheType) {
  const Outcome o = quire("quantize " + path("in.gguf") + " " + path("out.gguf") +
                          " --type q4_0 --tensor 'blk\\.0\\.=q8_0' --tensor 'blk\\.1\\.ssm_=nvfp4' --json");
  ASSERT_EQ(o.code, 0) << o.output;
  const gguf::File f = open("out.gguf"), before = open("in.gguf");
  const auto type = [&](const std::string& name) { return dtype_name(f.find_tensor(name)->dtype); };
  EXPECT_EQ(type("blk.0.attn_qkv.weight"), "q8_0");
  EXPECT_EQ(type("blk.0.ffn_up_exps.weight"), "q8_0");
  for (const char* conv : {"blk.0.ssm_conv1d.weight", "blk.1.ssm_conv1d.weight"})
    EXPECT_EQ(f.find_tensor(conv)->dtype, before.find_tensor(conv)->dtype) << conv;
  EXPECT_EQ(type("blk.1.ssm_out.weight"), "nvfp4");
  const auto fallbacks = nlohmann::json::parse(o.output)["fallbacks"];
  EXPECT_TRUE(std::any_of(fallbacks.begin(), fallbacks.end(), [](const auto& x) {
    return x["tensor"] == "'blk.0.ssm_conv1d.weight'" && x["wanted"] == "q8_0";
  })) << fallbacks;
}

TEST_F(Quantize, MixOverridesAndFallbacks) {
  write_small("small.gguf", 96);  // no multiple of 256, nor of 64
  const Outcome o = quire("quantize " + path("small.gguf") + " " + path("out.gguf") +
                          " --type q4_k --tensor attn_qkv=q4_0 --tensor 'attn_(qkv|gate)=keep' --tensor "
                          "ssm_out=bf16 --json");
  ASSERT_EQ(o.code, 0) << o.output;
  const gguf::File f = open("out.gguf");
  const auto type = [&](const std::string& name) { return dtype_name(f.find_tensor(name)->dtype); };
  EXPECT_EQ(type("token_embd.weight"), "q8_0") << "instead of q6_k";
  EXPECT_EQ(type("blk.0.ffn_up_exps.weight"), "q5_0") << "instead of q4_k";
  EXPECT_EQ(type("blk.0.attn_qkv.weight"), "f32") << "the last override that matches decides";
  EXPECT_EQ(type("blk.0.attn_gate.weight"), "f32") << "hybrids keep their projections";
  EXPECT_EQ(type("blk.0.ssm_out.weight"), "bf16");
  EXPECT_EQ(type("blk.0.ffn_gate_inp.weight"), "f32");
  EXPECT_EQ(f.get_u32("general.file_type").value(), 15u);
  EXPECT_EQ(f.get_u32("general.quantization_version").value(), 2u);
  EXPECT_THAT(std::string(f.get_string("quire.quantize.mix").value()),
              HasSubstr("feed-forward and experts q4_k; projections as they were; embedding and head q6_k"));
  EXPECT_EQ(f.get_string("quire.quantize.search").value(), "best");
  EXPECT_EQ(f.get_strings("quire.quantize.overrides").value().size(), 3u);

  const auto j = nlohmann::json::parse(o.output);
  EXPECT_EQ(j["file"]["bytes_after"], fs::file_size(path("out.gguf")));
  ASSERT_EQ(j["fallbacks"].size(), 2u);
  EXPECT_EQ(j["fallbacks"][0]["wanted"], "q6_k");
  EXPECT_EQ(j["fallbacks"][0]["type"], "q8_0");
  EXPECT_EQ(j["fallbacks"][0]["columns"], 96);
  bool seen = false;
  for (const auto& c : j["classes"]) {
    if (c["class"] != "experts") continue;
    seen = true;
    const double error =
        relative_error(values_of(open("small.gguf"), "blk.0.ffn_up_exps"), values_of(f, "blk.0.ffn_up_exps"));
    EXPECT_NEAR(c["relative_rms_error"].get<double>(), error, 1e-6);
    EXPECT_EQ(c["tensors"], 1);
    EXPECT_DOUBLE_EQ(c["bits_per_weight"].get<double>(), 5.5);
  }
  EXPECT_TRUE(seen);
  ASSERT_EQ(quire("quantize " + path("small.gguf") + " " + path("projected.gguf") +
                  " --type mxfp4 --projection-type q8_0 --head-type f16")
                .code,
            0);
  const gguf::File projected = open("projected.gguf");
  EXPECT_EQ(dtype_name(projected.find_tensor("blk.0.attn_gate.weight")->dtype), "q8_0");
  EXPECT_EQ(dtype_name(projected.find_tensor("token_embd.weight")->dtype), "f16");
  EXPECT_EQ(dtype_name(projected.find_tensor("blk.0.ffn_up_exps.weight")->dtype), "mxfp4");
  // A second run writes the second's mix, not both.
  ASSERT_EQ(quire("quantize " + path("out.gguf") + " " + path("again.gguf") + " --type q8_0 --rtn").code, 0);
  EXPECT_EQ(open("again.gguf").get_string("quire.quantize.search").value(), "nearest");
  EXPECT_FALSE(open("again.gguf").find("quire.quantize.overrides"));
}

TEST_F(Quantize, MixesOfThreeBitsAndOfUnevenFour) {
  write_small("small.gguf", 256);
  write_small("narrow.gguf", 96);
  const auto type = [&](const std::string& input, const std::string& to, const std::string& name) {
    const Outcome o = quire("quantize " + path(input) + " " + path("out.gguf") + " --type " + to);
    EXPECT_EQ(o.code, 0) << o.output;
    return std::string(dtype_name(open("out.gguf").find_tensor(name)->dtype));
  };
  EXPECT_EQ(type("small.gguf", "q3_k", "blk.0.ffn_up_exps.weight"), "q3_k");
  EXPECT_EQ(open("out.gguf").get_u32("general.file_type").value(), 12u);
  EXPECT_EQ(type("small.gguf", "q3_k", "token_embd.weight"), "q6_k");
  EXPECT_EQ(type("small.gguf", "q3_k", "blk.0.attn_gate.weight"), "f32") << "hybrids keep their projections";
  EXPECT_EQ(type("narrow.gguf", "q3_k", "blk.0.ffn_up_exps.weight"), "iq4_nl") << "96 is no multiple of 256";
  EXPECT_EQ(type("small.gguf", "iq4_nl", "blk.0.ffn_up_exps.weight"), "iq4_nl");
  EXPECT_EQ(open("out.gguf").get_u32("general.file_type").value(), 25u);
  EXPECT_EQ(type("small.gguf", "iq4_nl", "token_embd.weight"), "q8_0");
  for (const std::string read_only : {"q2_k", "iq4_xs"})
    EXPECT_THAT(quire("quantize " + path("small.gguf") + " " + path("not.gguf") + " --type " + read_only).output,
                testing::AllOf(HasSubstr("cannot write type '" + read_only + "'"), HasSubstr("q3_k")));
}

TEST_F(Quantize, TheBytesDoNotDependOnThreads) {
  write_small("small.gguf", 256);
  for (const std::string type : {"nvfp4", "q4_k", "mxfp4", "q6_k", "q3_k", "iq4_nl"}) {
    for (const std::string threads : {"1", "2", "5"})
      ASSERT_EQ(
          quire("quantize " + path("small.gguf") + " " + path(threads) + " --type " + type + " --threads " + threads)
              .code,
          0);
    EXPECT_EQ(test::read_whole_file(path("1")), test::read_whole_file(path("2"))) << type;
    EXPECT_EQ(test::read_whole_file(path("1")), test::read_whole_file(path("5"))) << type;
  }
}

TEST_F(Quantize, SearchAndImportanceLowerTheError) {
  write_small("small.gguf", 256);
  // Experts 0 and 1 have inputs of very different sizes; nothing reached expert 2.
  quant::ImportanceTotals totals;
  std::vector<double> sum2(256 * 3);
  for (size_t i = 0; i < 512; ++i) sum2[i] = i % 16 == 0 ? 500 : 1 + static_cast<double>(i % 7);
  const double counts[] = {10, 20, 0};
  ASSERT_TRUE(totals.add("blk.0.ffn_up_exps.weight", 256, sum2, counts).ok());
  ASSERT_TRUE(totals.add_text("a text", 3, 512).ok());
  ASSERT_TRUE(totals.write(path("imatrix.gguf")).ok());
  const auto weighted_error = [&](const std::string& options) {
    const Outcome o = quire("quantize " + path("small.gguf") + " " + path("out.gguf") +
                            " --type nvfp4 --json --imatrix " + path("imatrix.gguf") + options);
    EXPECT_EQ(o.code, 0) << o.output;
    const auto j = nlohmann::json::parse(o.output);
    EXPECT_EQ(j["importance"]["tensors"], 1);
    EXPECT_EQ(j["importance"]["missing"].size(), 1u) << "token_embd";
    EXPECT_EQ(j["importance"]["unreached"][0]["experts"], 1);
    for (const auto& c : j["classes"])
      if (c["class"] == "experts") return c["weighted_relative_rms_error"].get<double>();
    return 1.0;
  };
  const double plain = weighted_error(" --rtn"), searched = weighted_error("");
  EXPECT_LT(searched, 0.8 * plain);
  EXPECT_EQ(open("out.gguf").get_string("quantize.imatrix.dataset").value(), "a text");
  EXPECT_EQ(open("out.gguf").get_u32("quantize.imatrix.chunks_count").value(), 3u);
  const Outcome text = quire("quantize " + path("small.gguf") + " " + path("out.gguf") + " --type nvfp4 --imatrix " +
                             path("imatrix.gguf"));
  EXPECT_THAT(text.output, HasSubstr("no importance, columns count alike: 'token_embd.weight'"));
  EXPECT_THAT(text.output, HasSubstr("no token reached 1 experts"));

  quant::ImportanceTotals other;  // of a model with other shapes
  ASSERT_TRUE(other.add("blk.0.ffn_up_exps.weight", 128, std::vector<double>(128), std::vector<double>{0}).ok());
  ASSERT_TRUE(other.write(path("other.gguf")).ok());
  EXPECT_EQ(
      quire("quantize " + path("small.gguf") + " " + path("out.gguf") + " --type nvfp4 --imatrix " + path("other.gguf"))
          .code,
      2);
}

// NVFP4 with its scales is accepted everywhere a matrix is multiplied, and runs.
TEST_F(Quantize, Nvfp4ProjectionsAndHeadsRun) {
  std::vector<std::string> models;
  for (const auto& entry : fs::directory_iterator(QUIRE_SOURCE_DIR "/models"))
    if (entry.path().extension() == ".gguf") models.push_back(entry.path().string());
  int scaled = 0;
  for (const test::TinyModel& m : test::tiny_models()) {
    ASSERT_TRUE(m.write_gguf(path(m.name + ".gguf")).ok());
    models.push_back(path(m.name + ".gguf"));
  }
  for (const std::string& model : models) {
    SCOPED_TRACE(model);
    // Rows of 96 cannot be nvfp4: such projections take q8_0.
    const bool fits = model.find("demo") != model.npos;
    const Outcome o = quire("quantize " + model + " " + path("out.gguf") + " --rtn --type nvfp4" +
                            (fits ? " --tensor 'attn_(q|k|v|qkv|gate|output)\\.|ssm_(out|alpha|beta)'=nvfp4" : ""));
    ASSERT_EQ(o.code, 0) << o.output;
    const gguf::File f = open("out.gguf");
    for (const gguf::TensorInfo& t : f.tensors())
      scaled += t.name.ends_with(".scale") && t.name.find("ffn") == t.name.npos;
    const Outcome run = quire("run -m " + path("out.gguf") + " --tokens 1,2,3 -n 4 --ignore-eos --json");
    EXPECT_EQ(run.code, 0) << run.output;
    if (fits) {
      EXPECT_EQ(quire("quantize " + model + " " + path("no.gguf") + " --type q8_0 --tensor token_embd=nvfp4").code, 2);
    }
  }
  EXPECT_GT(scaled, 20);
}

// Whatever ends the work early, the output's name holds nothing, and no temporary file is left.
TEST_F(Quantize, AFullDiskIsOneLineAndLeavesNothing) {
  const std::string command =
      "ulimit -f 20; " QUIRE_PROGRAM " quantize " + path("in.gguf") + " " + path("out.gguf") + " --type f32 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 2);
  EXPECT_THAT(output, HasSubstr("quire: cannot write " + path("out.gguf")));
  EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "only the input is left";
}

// The program at work on path("large.gguf"), long enough to be disturbed.
class LongWork : public Quantize {
 protected:
  LongWork() { write_small("large.gguf", 4096, 1024); }

  // Returns once the temporary file shows that work has begun.
  void start() {
    child_ = fork();
    if (child_ == 0) {
      const std::string in = path("large.gguf"), out = path("out.gguf");
      if (std::freopen(path("err").c_str(), "w", stderr) == nullptr) _exit(98);
      execl(QUIRE_PROGRAM, QUIRE_PROGRAM, "quantize", in.c_str(), out.c_str(), "--type", "q4_k", "-t", "1", nullptr);
      _exit(99);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (files() < 4 && std::chrono::steady_clock::now() < deadline) sched_yield();
  }
  int wait() const {
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    return status;
  }
  int64_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  pid_t child_ = 0;
};

TEST_F(LongWork, SignalsLeaveNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    start();
    kill(child_, signal);
    const int status = wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
    EXPECT_EQ(test::read_whole_file(path("err")), "quire: interrupted; " + path("out.gguf") + " was not written\n");
    EXPECT_EQ(files(), 3) << "the two inputs and what was printed";
  }
}

TEST_F(LongWork, AnInputCutShortIsOneLine) {
  start();
  fs::resize_file(path("large.gguf"), 4096);
  const int status = wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
  EXPECT_THAT(test::read_whole_file(path("err")),
              testing::AllOf(testing::StartsWith("quire: a file in use was cut short"), testing::EndsWith("\n")));
  EXPECT_FALSE(fs::exists(path("out.gguf")));
}

// Eight bits for what drafts, whatever the rest has; --tensor decides otherwise.
TEST_F(Files, QuantizeKeepsTheBlockForMultiTokenPredictionPrecise) {
  const test::TinyModel tiny = test::tiny_models()[6];
  ASSERT_EQ(tiny.name, "tiny-qwen35");
  ASSERT_TRUE(tiny.write_gguf(path("tiny.gguf")).ok());
  test::edit_gguf(path("tiny.gguf"), path("m.gguf"), test::with_mtp_block());
  Outcome r = quire("quantize --type nvfp4 " + path("m.gguf") + " " + path("q.gguf"));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_THAT(r.output, HasSubstr("MTP block"));
  EXPECT_THAT(r.output, HasSubstr("; block for multi-token prediction q8_0;"));
  const auto type = [&](const std::string& file, const std::string& tensor) {
    const gguf::File f = gguf::File::open(path(file)).value();
    const gguf::TensorInfo* const t = f.find_tensor(tensor);
    return t == nullptr ? "missing" : std::string(dtype_name(t->dtype));
  };
  EXPECT_EQ(type("q.gguf", "blk.1.ffn_up.weight"), "nvfp4");
  EXPECT_EQ(type("q.gguf", "blk.4.ffn_up.weight"), "q8_0");
  EXPECT_EQ(type("q.gguf", "blk.4.attn_q.weight"), "q8_0");
  EXPECT_EQ(type("q.gguf", "blk.4.nextn.eh_proj.weight"), "q8_0");
  EXPECT_EQ(type("q.gguf", "blk.4.nextn.enorm.weight"), "f32");
  r = quire("quantize --type nvfp4 --tensor '^blk\\.4\\.ffn_up=nvfp4' " + path("m.gguf") + " " + path("n.gguf"));
  ASSERT_EQ(r.code, 0) << r.output;
  EXPECT_EQ(type("n.gguf", "blk.4.ffn_up.weight"), "nvfp4");
  r = quire("quantize --type bf16 " + path("q.gguf") + " " + path("b.gguf"));
  EXPECT_EQ(type("b.gguf", "blk.4.ffn_up.weight"), "bf16");
}

class Synth : public Files, public testing::WithParamInterface<const char*> {};

TEST_P(Synth, WritesSaneBlocksOfEveryType) {
  const std::string type = GetParam(), preset = type == "nvfp4" ? "4b-hybrid" : "0.6b";
  const Outcome r = quire("synth " + path("m.gguf") + " --layers 1 --vocab 512 --preset " + preset + " --type " + type);
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
                         testing::Values("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k",
                                         "q6_k", "mxfp4", "nvfp4", "q2_k", "q3_k", "iq4_nl", "iq4_xs"));

}  // namespace
}  // namespace quire
