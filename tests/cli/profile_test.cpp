// quire profile: kernels sorted into buckets and phases. The kernels themselves run on a GPU only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "cli/profile_report.h"
#include "support/program.h"

namespace quire::test {
namespace {

using cli::Bucket;
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

// The rule by which a new kernel is noticed: each has a bucket, and its name in the sources is the one that the table knows.
TEST(ProfileBuckets, EveryKernelOfTheSourcesIsKnown) {
  const std::regex kernel(R"(__global__\s+void\s+(?:__launch_bounds__\([^;{]*?\)\s+)?(\w+)\s*\()");
  int found = 0;
  const std::filesystem::path ops = std::filesystem::path(QUIRE_SOURCE_DIR) / "src/ops";
  for (const auto& entry : std::filesystem::recursive_directory_iterator(ops)) {
    const std::string extension = entry.path().extension();
    if (extension != ".cu" && extension != ".cuh") continue;
    const std::string text = read_whole_file(entry.path());
    int here = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), kernel), end; it != end; ++it, ++here)
      EXPECT_TRUE(cli::is_known_kernel((*it)[1].str())) << entry.path() << ": " << (*it)[1];
    // None is written in a way that the expression overlooks.
    int marks = 0;
    for (size_t at = 0; (at = text.find("__global__", at)) != text.npos; ++at) ++marks;
    EXPECT_EQ(here, marks) << entry.path();
    found += here;
  }
  EXPECT_GT(found, 20);
}

TEST(ProfileBuckets, Names) {
  EXPECT_EQ(cli::kernel_name("void quire::gemm::stream_kernel<quire::gemm::Decoder<(quire::TileFormat)3>, "
                             "4>(quire::gemm::Problem, quire::gemm::StreamPlan)"),
            "stream_kernel");
  EXPECT_EQ(cli::kernel_name("quire::(anonymous namespace)::scan(quire::SampleParams, int)"), "scan");
  EXPECT_EQ(cli::kernel_name("void quire::(anonymous namespace)::scan_kernel<64>(quire::GdnChunkedParams)"),
            "scan_kernel");
  EXPECT_EQ(
      cli::kernel_name(
          "void quire::tile<quire::(anonymous namespace)::Decoder, true>(quire::(anonymous namespace)::P)"),
      "tile");
  EXPECT_EQ(cli::kernel_name("_Z5plain"), "_Z5plain");
}

TEST(ProfileBuckets, ProductsBelongToTheirNeighbours) {
  using enum Bucket;
  EXPECT_THAT(cli::sort_into_buckets(stream({"embed",
                                             "add_rms_norm_kernel",  // 0
                                             "stream_kernel<A>",
                                             "decode_kernel",
                                             "stream_kernel<B>",     // 2
                                             "add_rms_norm_kernel",  // 5
                                             "stream_kernel<C>",
                                             "route_small_kernel",
                                             "sort_kernel",  // 6
                                             "stream_kernel<D>",
                                             "tile_kernel<D>",
                                             "combine_kernel",       // 9
                                             "add_rms_norm_kernel",  // 12
                                             "stream_kernel<C>",
                                             "few_rows_kernel<A, A>",
                                             "add_rms_norm_kernel",
                                             "tile_kernel<A>",
                                             "tile_kernel<A>",
                                             "prepare",  // 13
                                             "decode_parts_kernel<128, 1>",
                                             "add_parts<128>",
                                             "tile_kernel<A>",  // 16
                                             "add_rms_norm_kernel",
                                             "stream_kernel<A>",
                                             "stream_kernel<B>",  // 19
                                             "gather_rows",
                                             "add_rms_norm_kernel",
                                             "stream_kernel<E>",
                                             "scan",  // 22
                                             "select",
                                             "<",
                                             "mystery"})),
              ElementsAre(kNorms, kNorms,                          //
                          kProjections, kDelta, kProjections,      //
                          kNorms,                                  //
                          kRouting, kRouting, kRouting,            //
                          kExperts, kExperts, kExperts,            //
                          kNorms,                                  //
                          kRouting, kExperts, kNorms,              //
                          kProjections, kProjections, kAttention,  //
                          kAttention, kAttention, kProjections,    //
                          kNorms, kFeedForward, kFeedForward,      //
                          kNorms, kNorms, kHead, kSampling,        //
                          kSampling, kCopies, kOther));
}

TEST(ProfilePhases, PromptsThenSteps) {
  // Two steps with prompts, the second beside a sequence that generates already; then three of generated tokens.
  const auto all = stream({"embed", "prompt_kernel<64>", "<", "embed", "products_kernel", "decode_kernel",
                           "<", "embed", "<", "embed", "<", "embed", "<"});
  const auto phases = cli::find_phases(all, 2);
  ASSERT_TRUE(phases);
  EXPECT_EQ(phases->prompts.steps, 2);
  EXPECT_EQ(phases->prompts.end, 7u);
  EXPECT_EQ(phases->prompts.begin_ns, all[0].begin);
  EXPECT_EQ(phases->decode.first, 7u);
  EXPECT_EQ(phases->decode.end, 11u);
  EXPECT_EQ(phases->decode.begin_ns, all[6].end);
  EXPECT_EQ(phases->decode.end_ns, all[10].end);
  EXPECT_FALSE(cli::find_phases(all, 4)) << "there are three";
  EXPECT_FALSE(cli::find_phases(stream({"embed", "<", "embed", "<"}), 1)) << "no prompt";
}

TEST(ProfilePhases, EverythingAddsUp) {
  auto all = stream({"embed", "prompt_kernel<64>", "<", "embed", "stream_kernel<A>", "decode_kernel", "<"});
  all[5].begin = all[4].begin + 4;  // starts while the product ends
  const auto buckets = cli::sort_into_buckets(all);
  const auto phases = cli::find_phases(all, 1);
  ASSERT_TRUE(phases);
  const cli::PhaseProfile p = cli::profile_phase(all, buckets, phases->decode);
  double sum = 0;
  for (const cli::BucketTime& t : p.buckets) sum += t.seconds;
  EXPECT_NEAR(sum, p.seconds(), 1e-15);
  const auto of = [&](Bucket b) { return p.buckets[static_cast<size_t>(b)]; };
  EXPECT_NEAR(of(Bucket::kProjections).seconds, 10e-9, 1e-15);
  EXPECT_NEAR(of(Bucket::kDelta).seconds, 12e-9, 1e-15) << "but for what the product covers";
  EXPECT_NEAR(of(Bucket::kIdle).seconds, 6e-9, 1e-15);
  EXPECT_EQ(of(Bucket::kNorms).launches, 1);
  EXPECT_EQ(p.kernels.front().name, "decode_kernel");

  std::vector<double> bytes(cli::kBuckets, 0);
  bytes[static_cast<size_t>(Bucket::kProjections)] = 20;
  const cli::PhaseHeading h{.title = "generation", .tokens = 4, .bytes = bytes, .bandwidth = 4e9};
  const std::string table = cli::phase_table(p, h);
  EXPECT_THAT(table, HasSubstr("generation: 1 steps of"));
  EXPECT_THAT(table, HasSubstr("50.0%")) << "20 bytes in 10 ns, of 4 GB/s\n" << table;
  const auto json = cli::phase_json(p, h);
  EXPECT_NEAR(json["buckets"]["projections"]["share_of_limit"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(json["kernels"].size(), 4u);
}

TEST(ProfileTrace, IsJsonWithStepsAndKernels) {
  const auto all = stream({"embed", "<", "embed", "<"});
  const auto j = nlohmann::json::parse(cli::chrome_trace(all, cli::sort_into_buckets(all)));
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

}  // namespace
}  // namespace quire::test
