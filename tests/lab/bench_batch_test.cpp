// quire bench-batch: what it reports of a small model, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/batch_workload.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class BenchBatch : public ProgramTest {
 protected:
  const TinyModelFile file_{tiny_models().back()};  // hybrid, with experts
};

TEST_F(BenchBatch, ReportsEveryWidth) {
  const Outcome o = quire("bench-batch -m " + file_.path() + " -npp 20 -ntg 6 -npl 1,3,7 --batch-tokens 64 --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const json j = json::parse(o.out);
  EXPECT_EQ(j["prompt_tokens"], 20);
  EXPECT_EQ(j["batch_tokens"], 64);
  ASSERT_EQ(j["widths"].size(), 3u);
  const int widths[] = {1, 3, 7};
  for (size_t i = 0; i < 3; ++i) {
    const json& w = j["widths"][i];
    EXPECT_EQ(w["sequences"], widths[i]);
    for (const char* key : {"prefill_tokens_per_second", "decode_tokens_per_second", "tokens_per_second",
                            "first_token_seconds", "step_seconds", "step_host_seconds"}) {
      EXPECT_GT(w[key].get<double>(), 0) << key;
      EXPECT_EQ(w["repetitions"][key].size(), 3u) << key;
    }
    // A step gives each sequence a token.
    EXPECT_NEAR(w["repetitions"]["decode_tokens_per_second"][0].get<double>() *
                    w["repetitions"]["step_seconds"][0].get<double>(),
                widths[i], 1e-6);
  }
}

TEST_F(BenchBatch, PrintsATable) {
  const Outcome o = quire("bench-batch -m " + file_.path() + " --npp 4 --ntg 2 --npl 2 -r 1");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("prompts of 4 tokens, 2 generated, steps of up to 512 tokens, median of 1"));
  EXPECT_THAT(o.out, HasSubstr("| sequences | prefill t/s |  decode t/s |"));
  EXPECT_THAT(o.out, HasSubstr("\n|         2 |"));
}

TEST_F(BenchBatch, Refuses) {
  const std::string model = "bench-batch -m " + file_.path();
  expect_refused(model + " -npp 0", "--npp 0: must be between 1 and 1048576");
  expect_refused(model + " -ntg 0", "--ntg 0: must be between 1 and 1048576");
  expect_refused(model + " -npl 2,5000", "--npl 5000: must be between 1 and 4096");
  expect_refused(model + " -r 0", "--repetitions 0");
  expect_refused(model + " --device tpu", "--device tpu");
  expect_refused(model + " -npp 1000000", "the model was trained for");
  // Prompts enter one by one, a step each: the first sequence is done before the last begins.
  const Outcome late = quire(model + " -npp 64 -ntg 2 -npl 6 --batch-tokens 64");
  EXPECT_EQ(late.code, 2);
  EXPECT_EQ(late.out, "");
  EXPECT_NE(late.err.find("raise --batch-tokens"), std::string::npos) << late.err;
}

TEST(BatchWorkload, OptionsAreForTheWidestAndLongest) {
  const cli::BatchShape shapes[] = {{.sequences = 40, .prompt = 10, .generate = 5},
                                    {.sequences = 3, .prompt = 100, .generate = 20}};
  const EngineOptions o = cli::options_for(shapes, {}, 0);
  EXPECT_EQ(o.max_sequences, 40);
  EXPECT_EQ(o.context, 121);
  EXPECT_EQ(o.kv_tokens, 40 * 2 * 16);  // with a block to spare for each; three of 128 tokens take less
  EXPECT_EQ(o.max_batch_tokens, kDefaultBatchTokens);
  EXPECT_EQ(cli::options_for(shapes, {.device = Device::kCuda}, 0).max_batch_tokens, 8192);
  EXPECT_EQ(cli::options_for(shapes, {}, 100).max_batch_tokens, 100);
}

TEST(BatchWorkload, Median) {
  EXPECT_EQ(cli::median({}), 0);
  EXPECT_EQ(cli::median({3, 1, 2}), 2);
  EXPECT_EQ(cli::median({4, 1, 3, 2}), 2.5);
}

}  // namespace
}  // namespace quire::test
