// quire explain: who computes which call of a step, without computing it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lab/explain_report.h"
#include "ops/gemm/core.h"
#include "support/program.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kBase(kBaseLevel);
const std::string kModels = QUIRE_SOURCE_DIR "/models/";

class Explain : public ProgramTest {
 protected:
  // Without measuring anything.
  Outcome explain(const std::string& model, const std::string& options) const {
    return quire("--cpu " + kBase + " explain " + kModels + model + ".gguf --bandwidth 10 --peak 1 " + options);
  }
  json steps(const std::string& model, const std::string& options) const {
    const Outcome o = explain(model, "--json " + options);
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out).at("steps");
  }
  // Of the calls of an operator, that the model makes itself.
  static std::set<std::string> kernels(const json& step, const std::string& op) {
    std::set<std::string> all;
    for (const json& c : step.at("calls"))
      if (c.at("operator") == op) all.insert(c.at("kernel"));
    return all;
  }
};

TEST_F(Explain, NamesEveryOperatorOfBothDemoModels) {
  for (const auto& [model, block] : {std::pair{"demo-dense-nvfp4", "swiglu_mlp"}, {"demo-moe-nvfp4", "moe"}}) {
    SCOPED_TRACE(model);
    const json all = steps(model, "--rows 1,8 --context 300 --prompt 64");
    ASSERT_EQ(all.size(), 3u);
    EXPECT_EQ(all[1].at("sequences"), 8);
    EXPECT_EQ(all[1].at("context"), 300);
    EXPECT_EQ(all[2].at("prompt"), 64);
    for (const json& step : all) {
      std::set<std::string> ops;
      int64_t bytes = 0;
      for (const json& c : step.at("calls")) {
        EXPECT_GT(c.at("calls"), 0);
        const std::string kernel = c.at("kernel");
        for (const char* const newer : {"avx512", "amx", "vnni", "dotprod", "i8mm", "bfmmla"})
          EXPECT_EQ(kernel.find(newer), kernel.npos) << "on a CPU with " << kBase << ": " << c.dump();
        if (c.at("depth") != 0) continue;
        ops.insert(c.at("operator"));
        bytes += c.at("bytes").get<int64_t>();
      }
      EXPECT_THAT(ops, testing::IsSupersetOf({"embed", "linear", "add_rms_norm", "sample", block}));
      const json& total = step.at("total");
      EXPECT_EQ(total.at("bytes"), bytes);
      const double moved = static_cast<double>(bytes) / 10e9, computed = total.at("flops").get<double>() / 1e12;
      EXPECT_DOUBLE_EQ(total.at("floor_seconds"), std::max(moved, computed));
    }
    EXPECT_GT(all[1].at("total").at("flops"), all[0].at("total").at("flops"));
  }
}

TEST_F(Explain, SaysWhyAndWhatIsPartOfWhat) {
  const json step = steps("demo-dense-nvfp4", "--rows 4 --prompt 0").at(0);
  EXPECT_EQ(kernels(step, "linear"), std::set<std::string>{std::string(gemm::kIntegerBaseName)});
  for (const json& c : step.at("calls")) {
    if (c.at("operator") != "linear") continue;
    EXPECT_THAT(c.at("passed_over").dump(), HasSubstr(kOnX86 ? R"({"kernel":"amx","why":"not for this machine"})"
                                                             : R"({"kernel":"bfmmla","why":"not for this machine"})"));
  }
  const Outcome text = explain("demo-dense-nvfp4", "--rows 4 --prompt 0");
  EXPECT_THAT(text.out, HasSubstr(kOnX86 ? "before it: integer (not for this machine)"
                                         : "before it: bfmmla (not for this machine)"));
  EXPECT_THAT(text.out, HasSubstr("4 sequences that generate a token each, at position 1023"));
  EXPECT_THAT(text.out, HasSubstr("\ntotal"));
  EXPECT_THAT(text.out, HasSubstr("a CPU with " + kBase + ", 10.0 GB/s, 1.00 TFLOP/s"));
}

TEST_F(Explain, ForcedKernelsAreThoseThatWouldRun) {
  const json step = steps("demo-moe-nvfp4", "--rows 1 --prompt 0 --kernel linear=reference").at(0);
  EXPECT_EQ(kernels(step, "linear"), std::set<std::string>{"reference"});
  EXPECT_EQ(kernels(step, "moe"), std::set<std::string>{std::string(gemm::kIntegerBaseName)});
  const json plain = steps("demo-moe-nvfp4", "--rows 1 --prompt 0 --device reference").at(0);
  for (const json& c : plain.at("calls")) EXPECT_EQ(c.at("kernel"), "reference") << c.dump();
}

// Whether a step's kernels are those for latency is a matter of the engine, not of the step alone. On CPUs without
// AVX-512 they are the same ones.
TEST_F(Explain, KernelsForLatencyAreThoseOfTheArithmetic) {
  const std::string model = kModels + "demo-dense-nvfp4.gguf";
  const auto linear = [&](const std::string& options) {
    const Outcome o = quire("explain " + model + " --bandwidth 10 --peak 1 --json --prompt 0 " + options);
    EXPECT_EQ(o.code, 0) << o.err;
    return kernels(json::parse(o.out).at("steps").at(0), "linear");
  };
  EXPECT_EQ(linear("--rows 1"), linear("--rows 1 --arithmetic latency"));
  EXPECT_EQ(linear("--rows 3"), linear("--rows 3 --arithmetic throughput"));
  for (const std::string& kernel : linear("--rows 64 --arithmetic latency"))
    EXPECT_THAT(kernel, testing::AnyOf(testing::StartsWith("integer"), testing::StartsWith("vector")));
  expect_refused("explain --arithmetic fast " + model, "--arithmetic fast: must be auto");
}

TEST_F(Explain, PrintsTheCosts) {
  const Outcome text = quire("explain --costs");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("column_overhead"));
  const json costs = json::parse(quire("explain --costs --json").out);
  EXPECT_EQ(costs.at("stream_rows").at("value"), 8);
  EXPECT_EQ(costs.at("column_ns").at("unit"), "ns");
}

// A card that is not there, if the program has kernels for one.
TEST_F(Explain, ExplainsCards) {
  const std::string card = "--device cuda --card sm_90:132 --rows 1 --prompt 64 ";
  const Outcome o = explain("demo-moe-nvfp4", card + "--json");
  if (o.code != 0) {
    EXPECT_THAT(o.err, HasSubstr("compiled without CUDA"));
    return;
  }
  const json all = json::parse(o.out).at("steps");
  for (const json& step : all)
    for (const json& c : step.at("calls")) EXPECT_THAT(c.at("kernel").get<std::string>(), testing::StartsWith("cuda"));
}

TEST_F(Explain, Refuses) {
  const std::string model = "explain " + kModels + "demo-dense-nvfp4.gguf ";
  expect_refused("explain", "give a MODEL, or --costs");
  expect_refused(model + "--rows 0", "--rows 0: must be between 1 and 4096");
  expect_refused(model + "--context 0", "--context 0");
  expect_refused(model + "--prompt=-1", "--prompt -1");
  expect_refused(model + "--card sm_90:132", "add --device cuda");
  expect_refused(model + "--kernel linear=fast", "operator linear has no kernel fast");
  expect_refused("explain --costs --card sm_70:80", "card 'sm_70:80'");
}

TEST(ExplainReport, CountsPartsOnce) {
  cli::ExplainedStep step;
  const Launch whole{
      .op = "whole", .kernel = "parts", .arguments = "x", .passed = {}, .traffic = {.bytes = 30, .flops = 6}};
  const Launch part{
      .op = "part", .kernel = "fast", .arguments = "x", .passed = {}, .traffic = {.bytes = 20, .flops = 4}};
  for (int i = 0; i < 3; ++i) {
    step.begin(whole);
    step.begin(part);
    step.end();
    step.end();
  }
  step.begin(part);  // the model's own call
  step.end();
  ASSERT_EQ(step.calls().size(), 3u);
  EXPECT_EQ(step.calls()[0].calls, 3);
  EXPECT_EQ(step.calls()[1].depth, 1);
  EXPECT_EQ(step.calls()[2].depth, 0);
  EXPECT_EQ(step.total().bytes, 3 * 30 + 20);
  const cli::MachineLimits limits{.bandwidth = 10, .flops = 2};
  EXPECT_DOUBLE_EQ(*limits.seconds({.bytes = 30, .flops = 2}), 3);
  EXPECT_DOUBLE_EQ(*limits.seconds({.bytes = 10, .flops = 4}), 2);
  EXPECT_FALSE(cli::MachineLimits{}.seconds({.bytes = 1}));
}

}  // namespace
}  // namespace quire::test
