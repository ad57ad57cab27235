// --kv-cache-dtype: who takes it, what is refused, and what it says of a text.
#include <nlohmann/json.hpp>

#include "cli/model_options.h"
#include "support/program.h"

namespace quire::test {
namespace {

class KvCacheOption : public ProgramTest {};

TEST_F(KvCacheOption, RefusesWhatItDoesNotKnow) {
  const std::string model = " -m " + kModelFile + " --kv-cache-dtype q8_0";
  const std::string message = "--kv-cache-dtype q8_0: must be auto, bf16 or fp8";
  expect_refused("run -p x -n 1" + model, message);
  expect_refused("serve" + model, message);
  expect_refused("bench -p 1 -n 1" + model, message);
  expect_refused("bench-batch" + model, message);
  expect_refused("perplexity -f " + kText + model, message);
  expect_refused("eval -f " + kText + model, message);
  expect_refused("compare " + kModelFile + " " + kModelFile + " -f " + kText + " --kv-cache-dtype q8_0", message);
  expect_refused("compare " + kModelFile + " -f " + kText + " --save-logits x --kv-cache-dtype fp8",
                 "--kv-cache-dtype is for the model that is judged, and there is only a reference");
}

TEST_F(KvCacheOption, TheFingerprintSaysIt) {
  const auto run = [&](const std::string& type) {
    const Outcome o =
        quire("run -m " + kModelFile + " --tokens 1,2,3 -n 3 --ignore-eos --json --kv-cache-dtype " + type);
    EXPECT_EQ(o.code, 0) << o.err;
    return nlohmann::json::parse(o.out);
  };
  const std::string wide = run("auto").at("fingerprint"), narrow = run("fp8").at("fingerprint");
  EXPECT_EQ(run("bf16").at("fingerprint"), wide);
  EXPECT_EQ(run("fp8_e4m3").at("fingerprint"), narrow);
  EXPECT_EQ(narrow, wide + "/kv-fp8");
}

// Of the model that is judged: against itself it differs, by little.
TEST_F(KvCacheOption, CompareMeasuresIt) {
  const auto kl = [&](const std::string& type) {
    const Outcome o = quire("compare " + kModelFile + " " + kModelFile + " -f " + kText +
                            " --window 128 --max-windows 1 --json --kv-cache-dtype " + type);
    EXPECT_EQ(o.code, 0) << o.err;
    return nlohmann::json::parse(o.out).at("mean_kl").get<double>();
  };
  EXPECT_EQ(kl("bf16"), 0.0);
  EXPECT_GT(kl("fp8"), 0.0);
  EXPECT_LT(kl("fp8"), 0.01);
}

}  // namespace
}  // namespace quire::test
