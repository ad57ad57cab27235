// quire profile: kernels given to operators and phases. The kernels themselves run on a GPU only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/profile_report.h"
#include "support/program.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Kernels one after the other, each of 10 ns after a gap of 2; "<" is the copy that ends a step.
std::vector<GpuActivity> stream(std::initializer_list<const char*> names) {
  std::vector<GpuActivity> out;
  int64_t now = 1000;
  for (const std::string name : names) {
    const bool copy = name == "<";
    out.push_back({.kind = copy ? GpuActivity::Kind::kToHost : GpuActivity::Kind::kKernel,
                   .name = copy ? "copy to the host" : "void quire::" + name + "(quire::Params)",
                   .begin = now,
                   .end = now + 10});
    now += 12;
  }
  return out;
}

// A step of calls with so many kernels, each call of 20 bytes.
struct Call {
  const char* op;
  const char* kernel;
  int64_t kernels = 1;
};
std::shared_ptr<const LoggedStep> logged(bool prompts, std::initializer_list<Call> calls) {
  LoggedStep step{.prompts = prompts, .launches = {}};
  for (const Call& c : calls)
    step.launches.push_back({.op = c.op, .kernel = c.kernel, .traffic = {.bytes = 20}, .kernels = c.kernels});
  return std::make_shared<const LoggedStep>(std::move(step));
}

std::vector<std::string> owners(const cli::Attribution& a) {
  std::vector<std::string> out;
  for (const LoggedLaunch* l : a.of) out.push_back(l == nullptr ? "-" : l->op + " " + l->kernel);
  return out;
}

TEST(ProfileKernels, Names) {
  EXPECT_EQ(cli::kernel_name("void quire::gemm::stream_kernel<quire::gemm::Decoder<(quire::TileFormat)3>, "
                             "4>(quire::gemm::Problem, quire::gemm::StreamPlan)"),
            "stream_kernel");
  EXPECT_EQ(cli::kernel_name("quire::(anonymous namespace)::scan(quire::SampleParams, int)"), "scan");
  EXPECT_EQ(cli::kernel_name("void quire::(anonymous namespace)::scan_kernel<64>(quire::GdnChunkedParams)"),
            "scan_kernel");
  EXPECT_EQ(cli::kernel_name(
                "void quire::tile<quire::(anonymous namespace)::Decoder, true>(quire::(anonymous namespace)::P)"),
            "tile");
  EXPECT_EQ(cli::kernel_name("_Z5plain"), "_Z5plain");
}

// Drafts are copied behind the results.
TEST(ProfileKernels, AStepMayEndWithSeveralCopies) {
  const cli::LoggedSteps steps = {logged(false, {{"embed", "cuda"}}), logged(false, {{"moe", "cuda"}})};
  const auto all = stream({"a", "<", "<", "b", "<"});
  const auto a = cli::attribute(all, steps);
  ASSERT_TRUE(a.ok()) << a.error().message;
  EXPECT_THAT(owners(*a), ElementsAre("embed cuda", "-", "-", "moe cuda", "-"));
  EXPECT_EQ(a->steps[1].first, 3u);
}

// Names do not matter: a call has as many kernels as its launch, in the order of the stream.
TEST(ProfileKernels, BelongToTheCallsThatLaunchedThem) {
  const auto all = stream({"a", "b", "b", "c", "<", "d", "<"});
  const cli::LoggedSteps steps = {
      logged(true,
             {{"embed", "cuda"}, {"copy_slots", "cuda", 0}, {"linear", "cuda_sliced_wgmma", 2}, {"moe", "cuda_few"}}),
      logged(false, {{"embed", "cuda"}})};
  const auto a = cli::attribute(all, steps);
  ASSERT_TRUE(a.ok()) << a.error().message;
  EXPECT_THAT(owners(*a), ElementsAre("embed cuda", "linear cuda_sliced_wgmma", "linear cuda_sliced_wgmma",
                                      "moe cuda_few", "-", "embed cuda", "-"));
  ASSERT_EQ(a->steps.size(), 2u);
  EXPECT_EQ(a->steps[1].first, 5u);
  EXPECT_EQ(a->steps[1].end, 7u);
}

TEST(ProfileKernels, RecordsThatDoNotFitTheLaunchesAreAnError) {
  const auto error = [](std::initializer_list<const char*> names, const cli::LoggedSteps& steps) {
    const auto a = cli::attribute(stream(names), steps);
    return a.ok() ? "none" : a.error().message;
  };
  const auto step = logged(false, {{"embed", "cuda"}, {"moe", "cuda_few"}});
  EXPECT_EQ(error({"a", "b", "<"}, {step}), "none");
  EXPECT_THAT(error({"a", "b", "c", "<"}, {step}), HasSubstr("more kernels than its operators launched, from c on"));
  EXPECT_THAT(error({"a", "<"}, {step}), HasSubstr("fewer kernels than its operators launched: moe"));
  EXPECT_THAT(error({"a", "b"}, {step}), HasSubstr("the records end within step 0"));
  EXPECT_THAT(error({"a", "b", "<", "c"}, {step}), HasSubstr("kernels after the last of 1 steps: c"));
}

TEST(ProfilePhases, PromptsThenSteps) {
  // Two steps with prompts, the second beside a sequence that generates already; then three of generated tokens.
  const auto all = stream({"e", "p", "<", "e", "p", "d", "<", "e", "<", "e", "<", "e", "<"});
  const auto one = logged(false, {{"embed", "cuda"}});
  const cli::LoggedSteps steps = {logged(true, {{"embed", "cuda"}, {"paged_attention", "cuda_mma"}}),
                                  logged(true, {{"embed", "cuda"}, {"gated_delta_net", "cuda_wide", 2}}), one, one,
                                  one};
  const auto a = cli::attribute(all, steps);
  ASSERT_TRUE(a.ok()) << a.error().message;
  const auto phases = cli::find_phases(all, *a, 2);
  ASSERT_TRUE(phases);
  EXPECT_EQ(phases->prompts.steps(), 2);
  EXPECT_EQ(phases->prompts.begin_ns, all[0].begin);
  EXPECT_EQ(phases->decode.first, 2u);
  EXPECT_EQ(phases->decode.end, 4u);
  EXPECT_EQ(phases->decode.begin_ns, all[6].end);
  EXPECT_EQ(phases->decode.end_ns, all[10].end);
  EXPECT_FALSE(cli::find_phases(all, *a, 4)) << "there are three";
  const cli::LoggedSteps without = {one, one};
  const auto decodes = stream({"e", "<", "e", "<"});
  EXPECT_FALSE(cli::find_phases(decodes, *cli::attribute(decodes, without), 1)) << "no prompt";
}

TEST(ProfilePhases, EverythingAddsUp) {
  auto all = stream({"e", "p", "<", "e", "s", "d", "<"});
  all[5].begin = all[4].begin + 4;  // starts while the product ends
  const cli::LoggedSteps steps = {
      logged(true, {{"embed", "cuda"}, {"paged_attention", "cuda_mma"}}),
      logged(false, {{"embed", "cuda"}, {"linear", "cuda_stream"}, {"gated_delta_net", "cuda_wide"}})};
  const auto a = cli::attribute(all, steps);
  ASSERT_TRUE(a.ok()) << a.error().message;
  const auto phases = cli::find_phases(all, *a, 1);
  ASSERT_TRUE(phases);
  const cli::PhaseProfile p = cli::profile_phase(all, *a, phases->decode);
  double sum = 0;
  for (const auto& r : p.rows) sum += r.time.seconds;
  EXPECT_NEAR(sum, p.seconds(), 1e-15);
  const auto of = [&](std::string_view name) {
    for (const auto& r : p.rows)
      if (r.name == name) return r.time;
    return cli::ProfiledTime{};
  };
  EXPECT_NEAR(of("linear").seconds, 10e-9, 1e-15);
  EXPECT_NEAR(of("gated_delta_net").seconds, 12e-9, 1e-15) << "but for what the product covers";
  EXPECT_NEAR(of("idle").seconds, 6e-9, 1e-15);
  EXPECT_EQ(of("embed").launches, 1);
  EXPECT_EQ(of("paged_attention").launches, 0) << "of the other phase";
  EXPECT_EQ(p.kernels.front().name, "d");
  EXPECT_EQ(p.kernels.front().kernel, "cuda_wide");

  const cli::PhaseHeading h{.title = "generation", .tokens = 4, .bandwidth = 4e9};
  const std::string table = cli::phase_table(p, h);
  EXPECT_THAT(table, HasSubstr("generation: 1 steps of"));
  EXPECT_THAT(table, HasSubstr("50.0%")) << "20 bytes in 10 ns, of 4 GB/s\n" << table;
  const auto json = cli::phase_json(p, h);
  EXPECT_NEAR(json["operators"]["linear"]["share_of_limit"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(json["kernels"].size(), 4u);
}

TEST(ProfileTrace, IsJsonWithStepsAndKernels) {
  const auto all = stream({"e", "<", "e", "<"});
  const auto one = logged(false, {{"embed", "cuda"}});
  const cli::LoggedSteps logged_steps = {one, one};
  const auto a = cli::attribute(all, logged_steps);
  ASSERT_TRUE(a.ok()) << a.error().message;
  const auto j = nlohmann::json::parse(cli::chrome_trace(all, *a));
  int kernels = 0, steps = 0;
  for (const auto& e : j["traceEvents"]) {
    if (e["ph"] != "X") continue;
    (e["tid"] == 0 ? steps : kernels)++;
    EXPECT_GE(e["ts"].get<double>(), 0);
  }
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(kernels, 4);
}

class Profile : public ProgramTest {};

TEST_F(Profile, Refuses) {
  expect_refused("profile --synth 0.6b --device cpu", "--device cpu: the kernels of a GPU are profiled");
  expect_refused("profile --synth 0.6b -npl 0", "-npl 0");
  expect_refused("profile", "give a model");
}

TEST_F(Profile, DoesNotAdviseWhatItRefuses) {
  const Outcome o = quire("profile --synth 0.6b --gpu 4096");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, testing::Not(HasSubstr("--device cpu")));
}

}  // namespace
}  // namespace quire::test
